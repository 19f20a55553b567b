"""What a member takes, reckoned without running it."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from hfta_nb.data import AnyData, Samples, tree_map
from hfta_nb.engine.array.access import FunctionStates, call_module, kept_by, streams_apart
from hfta_nb.models.phases import Phase
from hfta_nb.train.step import in_phase

SMALL = 2**24
"""Up to so many parameters a module is given memory to be called."""

FEW = 2, 4
"""Samples by which activations are counted: what they grow by, they grow by with each further sample."""


def estimate(module: nn.Module, states: int) -> tuple[int, int]:
    """Estimate of the bytes one member needs without activations (values, gradients, optimizer state, best values), and
    of those that its array needs once: what members don't train is taken to be the same in all of them.

    The module is only looked at: its forward is a person's code, which runs where the member trains.
    """
    trained, frozen, buffers = (sum(t.numel() * t.element_size() for t in tensors if not is_lazy(t)) for tensors in (
        [p for p in module.parameters() if p.requires_grad],
        [p for p in module.parameters() if not p.requires_grad],
        module.buffers(),
    ))  # fmt: skip
    return trained * (3 + states) + 2 * buffers, frozen


def activation_bytes(module: nn.Module, data: AnyData, batch_size: int, phases: Sequence[Phase]) -> int:
    """Estimate of the bytes of activations that one member keeps for its backward.

    A small module is called with few samples, on memory of its own that holds zeros; a large one on no memory at all,
    for which torch imports its compiler: that takes seconds.
    """
    return max(_activations(module, data, batch_size, p) for p in phases or (None,))


def _activations(module: nn.Module, data: AnyData, batch_size: int, phase: Phase | None) -> int:
    """0 where the module can't be called: an estimate is not worth an error."""
    with streams_apart(torch.device("cpu")):
        if sum(p.numel() for p in module.parameters()) <= SMALL:
            with contextlib.suppress(Exception):
                few, more = (_kept(_with_zeros(module), _sample(data, n, "cpu"), phase) for n in FEW)
                each = (more - few) / (FEW[1] - FEW[0])
                return int(few + each * (batch_size - FEW[0]))
        with contextlib.suppress(Exception):  # a model may read values, which meta has none of
            return _kept(copy.deepcopy(module).to("meta"), _sample(data, batch_size, "meta"), phase)
    return 0


def _sample(data: AnyData, count: int, device: str) -> Samples:
    """Inputs of so many samples: two of the data's, again and again."""

    def enough(two: torch.Tensor) -> torch.Tensor:
        if device == "meta":
            return torch.empty((count, *two.shape[1:]), dtype=two.dtype, device=device)
        return two.repeat(-(-count // len(two)), *(1 for _ in two.shape[1:]))[:count]

    return tree_map(enough, data.sample(2))


def _with_zeros(module: nn.Module) -> nn.Module:
    """A copy whose values are zeros; torch's own copy of a tensor on "meta" would import its compiler's shapes."""
    known: dict[int, Any] = {id(t): torch.zeros(t.shape, dtype=t.dtype) for t in module.buffers()}
    for p in module.parameters():
        known[id(p)] = nn.Parameter(torch.zeros(p.shape, dtype=p.dtype), p.requires_grad)
    return copy.deepcopy(module, known)


def _kept(module: nn.Module, x: Samples, phase: Phase | None) -> int:
    """Bytes that autograd keeps for the backward of a call, without parameters."""
    kept: dict[int, int] = {}
    own = {id(p) for p in module.parameters()}
    alive: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in own:
            kept[id(tensor.untyped_storage())] = tensor.numel() * tensor.element_size()
        alive.append(tensor)  # an id must not be given to a second tensor
        return tensor

    apart = FunctionStates(1, shows=False).of_one(kept_by(module))
    with apart, torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        call_module(module, in_phase(x, phase))
    return sum(kept.values())
