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
from hfta_nb.engine.members.in_common import in_common


def stacked(members: Sequence[nn.Module]) -> dict[str, Tensor]:
    """The members' parameters ``[M, *shape]``; those that can be held once are expanded from the first member's."""
    states = [dict(m.named_parameters()) for m in members]
    first, common = states[0], in_common(states)
    return {
        name: p.detach().expand(len(members), *p.shape) if name in common else torch.stack([s[name] for s in states])
        for name, p in first.items()
    }


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
