"""Which parameters members have in common: frozen, and equal in all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

LEAST_BYTES = 4096
"""If what members have in common takes less, each has its own."""


def in_common(states: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The parameters that can be held once, by name.

    Args:
        states: per member, its parameters by the names that they have in the array.
    """
    first = states[0]
    common = {n: p for n, p in first.items() if all(n in s for s in states) and _is_common([s[n] for s in states])}
    for name in _copies_of_trained(first, common):
        del common[name]
    return common if sum(p.nbytes for p in common.values()) >= LEAST_BYTES else {}


def _is_common(values: Sequence[Tensor]) -> bool:
    first = values[0]
    if len(values) < 2 or any(p.requires_grad or type(p) is not nn.Parameter for p in values):
        return False
    if first.is_meta or first.numel() < 2:  # a number (a temperature) is there to be set between steps
        return False
    return all(_same(first, p) for p in values[1:])


def _copies_of_trained(own: Mapping[str, Tensor], common: Mapping[str, Tensor]) -> list[str]:
    """The names of frozen copies of what a member trains (a target or teacher network): they are there to be changed
    between steps. If all of them are constant (biases of zero), they are equal by chance."""
    trained = [p for p in own.values() if p.requires_grad]
    found = [name for name, p in common.items() if any(_same(p, other) for other in trained)]
    chance = all(_same(common[name], common[name].flatten()[0].expand_as(common[name])) for name in found)
    return [] if chance else found


def _same(a: Tensor, b: Tensor) -> bool:
    """True if two tensors are one, or equal bit for bit."""
    if (a.shape, a.dtype) != (b.shape, b.dtype):
        return False
    if a is b or (a.data_ptr() == b.data_ptr() and a.stride() == b.stride()):
        return True
    return torch.equal(_bytes(a), _bytes(b))


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().view(torch.uint8)
