"""Stacks plain modules: one module that represents all of them, and their tensors with a member axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from hfta_nb.engine.array import held_once
from hfta_nb.engine.members.arena import is_held_once
from hfta_nb.engine.members.copying import copied_module
from hfta_nb.engine.padded.blueprint import Blueprint
from hfta_nb.engine.padded.compare import difference
from hfta_nb.errors import FusionError


def check_members(members: Sequence[Any], seeds: Sequence[int] | None) -> None:
    """Check that modules can be members of one array.

    Raises:
        FusionError: with the member and the reason.
    """
    if not members:
        raise FusionError("no modules", where="fuse", accepted="a list of at least one module")
    for i, module in enumerate(members):
        where = f"fuse, member {i}"
        if not isinstance(module, nn.Module):
            raise FusionError("not a module", where=where, got=module, accepted="torch.nn.Module")
        if any(isinstance(m, torch.jit.ScriptModule) for m in module.modules()):
            raise FusionError(
                "compiled by TorchScript, which keeps its parameters where no array can reach them",
                where=where,
                got=type(module).__name__,
                remedy="give the module as it was before torch.jit.script",
            )
        _check_layouts(module, where)
        _check_hooks_of_gradients(module, where)
        first = next(j for j in range(i + 1) if members[j] is module)
        if first < i:
            raise FusionError(f"the same module as member {first}", where=where, remedy="build one module per member")
        devices = {str(t.device) for t in [*members[0].parameters(), *module.parameters()]}
        if len(devices) > 1:
            raise FusionError(
                "modules on different devices", where=where, got=sorted(devices), remedy="move them first"
            )
    if seeds is not None and len(seeds) != len(members):
        raise FusionError("not one seed per member", where="fuse", got=len(seeds), accepted=f"{len(members)} seeds")
    for i, seed in enumerate(seeds or ()):
        if isinstance(seed, bool) or not hasattr(seed, "__index__") or not -(2**63) <= int(seed) < 2**64:
            raise FusionError("not a seed", where=f"fuse, member {i}", got=seed, accepted="a whole number of 64 bits")


def _check_layouts(module: nn.Module, where: str) -> None:
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if is_traceable_wrapper_subclass(tensor):
            raise FusionError(
                "a tensor that holds others, as quantised weights do, which members can't be stacked by",
                where=f"{where}, `{name}`",
                got=type(tensor).__name__,
                accepted="tensors of one dtype",
                remedy="dequantise it first: parameter.dequantize(); a frozen base is held once for all members",
            )
        if not is_lazy(tensor) and (tensor.layout is not torch.strided or tensor.is_nested):
            raise FusionError(
                "a tensor without a plain layout in memory, which members can't be stacked by",
                where=f"{where}, `{name}`",
                got=tensor.layout,
                accepted="torch.strided",
                remedy="keep its indices and values as buffers, or the tensor as an attribute that is no buffer",
            )


def _check_hooks_of_gradients(module: nn.Module, where: str) -> None:
    for name, p in module.named_parameters():
        if p._backward_hooks or p._post_accumulate_grad_hooks:
            raise FusionError(
                "a hook of a parameter's gradient, which an array does not take along",
                where=f"{where}, `{name}`",
                got=next(iter({**(p._backward_hooks or {}), **(p._post_accumulate_grad_hooks or {})}.values())),
                remedy=f'register it after fusing: array.get_parameter("{name}").register_hook(hook), whose gradient '
                "has the member axis. Or let the model do so in its forward, on a tensor: weight = self.weight * 1; "
                "weight.register_hook(hook)",
            )


def stack_members(
    members: Sequence[nn.Module], preallocated: bool = False
) -> tuple[nn.Module, dict[str, Tensor], dict[str, Tensor], Blueprint | None]:
    """A module that represents all, their parameters and buffers with a member axis, and the blueprint of padding.

    Args:
        preallocated: unlike members each have an architecture of their own, see `padded.preallocated`, and are used
            up.

    Raises:
        FusionError: they cannot be fused.
    """
    padded = blueprint(*members, preallocated=preallocated)
    if padded is not None:
        with torch.no_grad():
            return padded.skeleton, *padded.stacked(members), padded
    buffers = [dict(m.named_buffers()) for m in members]
    with torch.no_grad():
        parameters = held_once.stacked(members)
        stacked = {k: torch.stack([b[k] for b in buffers]) for k in buffers[0]}
    # The skeleton's own tensors are replaced at once: what is large is not copied for it.
    once = [p for name, p in members[0].named_parameters() if is_held_once(parameters[name])]
    skeleton = copied_module(members[0], {id(p): p for p in once}, where="fuse, member 0")
    return skeleton, parameters, stacked, None


def blueprint(*modules: nn.Module, preallocated: bool = False) -> Blueprint | None:
    """How modules of different architectures fit into one array; None if all have the same architecture.

    Raises:
        FusionError: they do not fit.
    """
    first = modules[0]
    alike = all(m is first or difference(first, m) is None for m in modules[1:])
    return None if alike else Blueprint.for_modules(modules, preallocated)
