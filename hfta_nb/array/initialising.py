"""`array.apply`: functions that initialise submodules, which read shapes without a member axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from hfta_nb.array import surgery
from hfta_nb.eager.state import ArrayState
from hfta_nb.errors import FusionError
from hfta_nb.members.generators import current_state, set_state
from hfta_nb.members.process_streams import set_stream_states, stream_states


def apply(state: ArrayState, function: Callable[[nn.Module], Any], run: Callable[[], Any]) -> None:
    """Apply a function to the submodules of an array; if it writes tensors, to those of every member instead.

    `torch.nn.init.kaiming_normal_` and others derive the scale from the shape, in which a member axis would count.
    What the function sets on the array's own submodules besides tensors, such as attributes and hooks, stays.

    Args:
        state: of the array.
        function: of a module; it is called for each submodule.
        run: applies it to the array's own submodules.

    Raises:
        FusionError: the function gives a member tensors of other names, shapes or dtypes. Then none is changed.
    """
    if state.pending:
        for module in state.pending:
            module.apply(function)
        return
    device = state.generators.device
    streams, process = current_state(device), stream_states()
    tensors = _Tensors(state)
    try:
        run()
    except Exception:  # a shape with a member axis may be all that it does not accept
        tensors.restore()
    else:
        if not tensors.changed():
            return
        tensors.restore()
    set_state(streams, device)
    set_stream_states(process)
    plain = []
    for i in range(len(state)):
        plain.append(surgery.member(state, i))
        plain[-1].apply(function)
    rows = [_values(state, i, module) for i, module in enumerate(plain)]
    with torch.no_grad():
        for i, row in enumerate(rows):
            for name, own in surgery.own_tensors(state, i).items():
                own.copy_(row[name])


def _values(state: ArrayState, index: int, plain: nn.Module) -> dict[str, Tensor]:
    """A plain module's tensors by name, which must be those of the member."""
    found = {name: t.detach() for name, t in [*plain.named_parameters(), *plain.named_buffers()]}
    for name, own in surgery.own_tensors(state, index).items():
        given = found.get(name)
        if given is None or (given.shape, given.dtype) != (own.shape, own.dtype):
            got = None if given is None else f"{list(given.shape)}, {given.dtype}"
            accepted = f"{list(own.shape)}, {own.dtype}"
            raise FusionError("another tensor", where=f"apply, member {index}, {name}", got=got, accepted=accepted)
    return found


class _Tensors:
    """The tensors of an array, to be put back where a function has changed or replaced them."""

    def __init__(self, state: ArrayState) -> None:
        self._held: list[tuple[dict[str, Any], str, Tensor, Tensor]] = [
            (holder, key, tensor, tensor.data)
            for module in {id(m): m for root in (state.tensors, state.skeleton) for m in root.modules()}.values()
            for holder in (module._parameters, module._buffers)
            for key, tensor in holder.items()
            if tensor is not None
        ]
        self._arenas = [(arena, arena.data.clone()) for arena in (*state.arenas, *state.buffer_arenas)]

    def changed(self) -> bool:
        """True if a tensor has other values, or was replaced."""
        if any(holder.get(key) is not t or t.data_ptr() != data.data_ptr() for holder, key, t, data in self._held):
            return True
        return not all(torch.equal(arena.data, values) for arena, values in self._arenas)

    def restore(self) -> None:
        """Put tensors and values back."""
        for holder, key, tensor, data in self._held:
            holder[key], tensor.data = tensor, data
        for arena, values in self._arenas:
            arena.data.copy_(values)
