"""What a member takes, reckoned without running it."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from hfta_nb.array.gradients import call_module
from hfta_nb.data import AnyData, Samples, tree_map
from hfta_nb.phases import Phase
from hfta_nb.step import in_phase


def estimate(module: nn.Module, states: int) -> int:
    """Estimate of the bytes one member needs without activations: values, gradients, optimizer state, best values.

    The module is only looked at: its forward is a person's code, which runs where the member trains.
    """
    sizes = [sum(t.numel() * t.element_size() for t in tensors if not is_lazy(t))
             for tensors in (module.parameters(), module.buffers())]  # fmt: skip
    return sizes[0] * (3 + states) + 2 * sizes[1]


def activation_bytes(module: nn.Module, data: AnyData, batch_size: int, phases: Sequence[Phase]) -> int:
    """Estimate of the bytes of activations that one member keeps for its backward, from a forward without memory."""
    return max(_activations(module, data, batch_size, p) for p in phases or (None,))


def _activations(module: nn.Module, data: AnyData, batch_size: int, phase: Phase | None) -> int:
    """Bytes that autograd keeps for the backward pass, counted on a forward without memory; 0 if that can't run."""
    kept: dict[int, int] = {}
    own = {id(p) for p in module.parameters()}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in own:
            kept[id(tensor.untyped_storage())] = tensor.numel() * tensor.element_size()
        alive.append(tensor)  # an id must not be given to a second tensor
        return tensor

    alive: list[torch.Tensor] = []
    try:
        spare = module.to("meta") if all(p.is_meta for p in module.parameters()) else _meta_copy(module)
        x: Samples = tree_map(
            lambda t: torch.empty((batch_size, *t.shape[1:]), dtype=t.dtype, device="meta"), data.sample(2)
        )
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t), torch.random.fork_rng(devices=[]):
            call_module(spare, in_phase(x, phase))
    except Exception:  # an estimate is not worth an error: a model may read values, which meta has none of
        return 0
    return sum(kept.values())


def _meta_copy(module: nn.Module) -> nn.Module:
    return copy.deepcopy(module).to("meta")
