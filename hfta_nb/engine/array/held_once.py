"""Frozen parameters that are equal in all members: one tensor, shown with a member axis of stride 0.

Which ones is decided when modules are fused. A parameter leaves this form, and each member gets memory of its own for
it, when it is to be trained, when a call writes to it, or when a member is to have another value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from hfta_nb.engine.array.tensor_storage import build, separate
from hfta_nb.engine.eager.state import ArrayState
from hfta_nb.engine.equality import same_bits
from hfta_nb.engine.members.arena import is_held_once

LEAST_BYTES = 4096
"""If what members have in common takes less, each has its own."""


def stacked(members: Sequence[nn.Module]) -> dict[str, Tensor]:
    """The members' parameters ``[M, *shape]``; those that can be held once are expanded from the first member's."""
    states = [dict(m.named_parameters()) for m in members]
    first = states[0]
    common = {name: p for name, p in first.items() if _is_common([s[name] for s in states])}
    for name in _copies_of_trained(first, common):
        del common[name]
    if sum(p.nbytes for p in common.values()) < LEAST_BYTES:
        common = {}
    return {
        name: p.detach().expand(len(members), *p.shape) if name in common else torch.stack([s[name] for s in states])
        for name, p in first.items()
    }


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


@torch.no_grad()
def put_tensors(state: ArrayState, views: Callable[[], Mapping[str, Tensor]], given: Mapping[str, Tensor]) -> None:
    """Copy values into tensors of one member; what is held once and would differ is separated first.

    Args:
        state: of the array.
        views: returns the member's tensors, views of the array's memory, by names.
        given: values by the same names.
    """
    own = views()
    names = {_address(arena.data): name for name, arena in state.held_once.items()}
    unlike = {
        names[address]
        for key, value in given.items()
        if (address := _address(own[key])) in names and not same_bits(own[key], value.to(own[key]))
    }
    if unlike:
        separate(state, unlike)
        own = views()
    for key, value in given.items():
        own[key].copy_(value)


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


class Loading(TorchFunctionMode):
    """Within the context, `nn.Module.load_state_dict` may copy values ``[M, *shape]`` into parameters that are held
    once: equal rows into the one tensor; unlike rows separate the members."""

    def __init__(self, state: ArrayState) -> None:
        super().__init__()
        self._state, self._separated = state, False

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is Tensor.copy_ and is_held_once(args[0]):
            target, given = args[:2]
            if given.shape == target.shape and all(same_bits(row, given[0]) for row in given[1:]):
                target[0].copy_(given[0])
                return target
            target.data, self._separated = target.contiguous(), True
        return func(*args, **(kwargs or {}))

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        if self._separated:
            build(self._state)
            self._state.laid()
