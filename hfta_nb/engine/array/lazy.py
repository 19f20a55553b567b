"""Modules whose parameters get their shapes from the first input (`nn.LazyLinear`), initialized by a dry run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import UninitializedBuffer, is_lazy

from hfta_nb.engine.array.stack import check_members, stack_members
from hfta_nb.engine.array.tensor_storage import take
from hfta_nb.engine.eager.call_inputs import Inputs
from hfta_nb.engine.eager.function_states import FunctionStates
from hfta_nb.engine.eager.gradients import call_module
from hfta_nb.engine.eager.model_hooks import writing_classes
from hfta_nb.engine.eager.state import ArrayState
from hfta_nb.engine.members.copying import copied_module
from hfta_nb.engine.members.generators import current_state, set_state
from hfta_nb.errors import FusionError


def has_lazy(module: nn.Module) -> bool:
    """True if parameters or buffers have no shape yet."""
    return any(is_lazy(t) for t in [*module.parameters(), *module.buffers()])


def check_settled(state: ArrayState, where: str) -> None:
    """Check that the members' parameters have shapes.

    Raises:
        FusionError: they need a first input.
    """
    if state.pending:
        raise FusionError(
            "the array has lazy modules that have no shapes yet",
            where=where,
            remedy="call it once on an input: array(x)",
        )


def copied(module: nn.Module) -> nn.Module:
    """A deep copy, also of buffers without a shape, which torch's own copying does not support."""
    waiting = [b for b in module.buffers() if isinstance(b, UninitializedBuffer)]
    new: Any = UninitializedBuffer
    known = {id(b): new(b.requires_grad, device=b.data.device, dtype=b.data.dtype) for b in waiting}
    return copied_module(module, known)


def materialise(state: ArrayState, inputs: Inputs) -> None:
    """Run every member once, so that its lazy modules get their shapes and draw their values.

    A member draws them from its own stream and continues from there; numbers that the dry run draws afterwards are
    drawn again. (In a plain module, dropout between two lazy modules would draw between them.)
    """
    members, generators = state.pending, state.generators
    for i, module in enumerate(members):
        given, second = inputs.structure(inputs.member(i))
        both = isinstance(second, dict) and isinstance(given, tuple)
        with generators.member(i):
            take_shapes(module, lambda m, g=given, k=second, b=both: m(*g, **k) if b else call_module(m, g))  # type: ignore[misc]
    check_members(members, None)
    state.pending = []
    take(state, *stack_members(members))


@torch.no_grad()
def take_shapes(module: nn.Module, call: Callable[[nn.Module], Any]) -> None:
    """Call a lazy module once; everything except the state of its lazy parts is left unchanged.

    Torch's default generators are left in the state after the last lazy part has drawn its values.
    """
    device = next((t.device for t in [*module.parameters(), *module.buffers()]), torch.device("cpu"))
    settled = [m for m in module.modules() if not any(b is not None and is_lazy(b) for b in m._buffers.values())]
    before = {id(m): _buffers(m) for m in settled}
    state = [current_state(device)]

    def took_shape(lazy: nn.Module, args: Any) -> None:
        before[id(lazy)], state[0] = _buffers(lazy), current_state(device)

    hooks = [m.register_forward_pre_hook(took_shape) for m in module.modules() if isinstance(m, LazyModuleMixin)]
    try:
        with FunctionStates(1, shows=False).of_one(writing_classes([module])):
            call(module)
    finally:
        for hook in hooks:
            hook.remove()
        set_state(state[0], device)
    for child in module.modules():
        child._buffers.update(before.get(id(child), {}))


def _buffers(module: nn.Module) -> dict[str, Tensor]:
    return {k: b.clone() for k, b in module._buffers.items() if b is not None}
