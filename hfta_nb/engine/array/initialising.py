"""`array.apply`: functions that initialise submodules, which read shapes without a member axis."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hfta_nb.engine.array import surgery, tensor_storage
from hfta_nb.engine.array.held_once import put_tensors
from hfta_nb.engine.eager.state import ArrayState
from hfta_nb.engine.equality import same_value
from hfta_nb.engine.members.generators import current_state, set_state, streams_apart
from hfta_nb.engine.members.process_streams import one_thread, set_stream_states, stream_states
from hfta_nb.errors import FusionError


def apply(state: ArrayState, function: Callable[[nn.Module], Any], run: Callable[[], Any]) -> None:
    """Apply a function to the submodules of an array; if it writes tensors, to those of every member too.

    `torch.nn.init.kaiming_normal_` and others derive the scale from the shape, in which a member axis would count. The
    array's own submodules therefore hold copies of the first member's tensors while the function is applied to them;
    what it sets there besides tensors, such as attributes and hooks, stays.

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
    with one_thread():
        process = stream_states()
        with streams_apart(device):
            writes, drawn = _writes(state, run), current_state(device)
        if not writes:
            set_state(drawn, device)
            return
        set_stream_states(process)
        plain = [surgery.member(state, i) for i in range(len(state))]
        for module in plain:
            module.apply(function)
    rows = [_values(state, i, module) for i, module in enumerate(plain)]
    with torch.no_grad():
        for i, row in enumerate(rows):
            own = partial(tensor_storage.own_tensors, state, i)
            put_tensors(state, own, {name: row[name] for name in own()})


def _writes(state: ArrayState, run: Callable[[], Any]) -> bool:
    """Run; True if that writes or replaces tensors, which are copies of the first member's."""
    given = {name: b.detach()[0].clone() for name, b in state.tensors.named_buffers()}
    for name, p in state.tensors.named_parameters():
        given[name] = nn.Parameter(p.detach()[0].clone(), requires_grad=p.requires_grad)
    before = {name: t.detach().clone() for name, t in given.items()}
    with state.slots.filled(given):
        run()
        now = state.slots.current()
    return any(now[name] is not t or not same_value(t.detach(), before[name]) for name, t in given.items())


def _values(state: ArrayState, index: int, plain: nn.Module) -> dict[str, Tensor]:
    """A plain module's tensors by name, which must be those of the member."""
    found = {name: t.detach() for name, t in [*plain.named_parameters(), *plain.named_buffers()]}
    for name, own in tensor_storage.own_tensors(state, index).items():
        given = found.get(name)
        if given is None or (given.shape, given.dtype) != (own.shape, own.dtype):
            got = None if given is None else f"{list(given.shape)}, {given.dtype}"
            accepted = f"{list(own.shape)}, {own.dtype}"
            raise FusionError("another tensor", where=f"apply, member {index}, {name}", got=got, accepted=accepted)
    return found
