"""The memory layout of an array's tensors, which is renewed after tensors have moved or changed."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Mapping

import torch
from torch import Tensor, nn

from hfta_nb.engine.eager.current_member import share
from hfta_nb.engine.eager.engine import Engine
from hfta_nb.engine.eager.handlers import install
from hfta_nb.engine.eager.padding import Padding
from hfta_nb.engine.eager.state import ArrayState
from hfta_nb.engine.members.arena import Arena, arenas_of, is_held_once
from hfta_nb.engine.members.flattening import prevent_flattening
from hfta_nb.engine.members.marks import marked
from hfta_nb.engine.members.tensor_slots import TensorSlots
from hfta_nb.engine.padded.blueprint import Blueprint
from hfta_nb.engine.padded.runtime import PaddedArchitectures, architectures_of
from hfta_nb.errors import FusionError


def take(
    state: ArrayState,
    skeleton: nn.Module,
    parameters: Mapping[str, Tensor],
    buffers: Mapping[str, Tensor],
    blueprint: Blueprint | None = None,
) -> None:
    """Set the skeleton and the tensors of an array."""
    slots = TensorSlots(prevent_flattening(skeleton))
    like = dict(skeleton.named_parameters())
    own = {
        k: marked(nn.Parameter(v.detach(), requires_grad=like[k].requires_grad), like[k]) for k, v in parameters.items()
    }
    slots.replace({**own, **buffers})
    state.skeleton, state.slots = skeleton, slots
    state.tensors = share(skeleton, nn.Module())
    state.engine = Engine(skeleton, slots, state.generators, functions=state.functions)
    state.engine.architectures = None if blueprint is None else PaddedArchitectures(blueprint, slots)
    state.owned = {} if blueprint is None else dict(blueprint.owned())
    if not state.pending:
        build(state)


def show_members(array: nn.Module, state: ArrayState) -> None:
    """Let an array show the tensors and submodules of all members; `current_member` shows those of one."""
    share(state.skeleton, array)
    array.__dict__["_model"] = state.skeleton  # no submodule of it
    state.face = weakref.ref(array)


def build(state: ArrayState) -> None:
    """Copy parameters and buffers into arenas; what is held once stays so while it is frozen."""
    named = dict(state.tensors.named_parameters())
    known, state.held_once = state.held_once, {}
    for name, p in named.items():
        if is_held_once(p) and not p.requires_grad:
            there = known.pop(name, None)
            same = there is not None and there.data.data_ptr() == p.data_ptr()
            state.held_once[name] = arena = there if there is not None and same else Arena.once(name, p.detach())
            p.data = arena.view(name)
    state.arenas = arenas_of({k: p.detach() for k, p in named.items() if k not in state.held_once})
    for arena in state.arenas:
        for span in arena.spans:
            named[span.name].data = arena.view(span.name)
    state.lay_buffers(arenas_of(dict(state.tensors.named_buffers())))
    state.padding = Padding(state.arenas, state.owned)
    install(state)


def resize_buffers(state: ArrayState) -> None:
    """Store buffers that the model has replaced by tensors of another shape or dtype.

    Raises:
        FusionError: the members' buffers differ in shape or dtype.
    """
    members, grown = len(state), state.engine.resized_buffers
    buffers = dict(state.tensors.named_buffers())
    for name, rows in grown.items():
        own = [rows.get(i, buffers[name][i]) for i in range(members)]
        kinds = {(v.dtype, tuple(v.shape)) for v in own}
        if len(kinds) > 1:
            remedy = "train these members in arrays of their own"
            raise FusionError("members come to different shapes of a buffer", where=name,
                              got=[list(v.shape) for v in own], remedy=remedy)  # fmt: skip
        buffers[name] = torch.stack([v.detach() for v in own])
    state.slots.replace({name: buffers[name] for name in grown})
    grown.clear()
    state.lay_buffers(arenas_of(dict(state.tensors.named_buffers())))


@torch.no_grad()
def separate(state: ArrayState, names: Collection[str]) -> None:
    """Give each member memory of its own for parameters that are held once."""
    for name in names:
        p = state.tensors.get_parameter(name)
        p.data = p.detach().contiguous()
    build(state)
    state.laid()


def own_tensors(state: ArrayState, index: int) -> dict[str, Tensor]:
    """Views of a member's parameters and buffers, by the names of its plain module."""
    tensors = {k: v.detach() for k, v in [*state.tensors.named_parameters(), *state.tensors.named_buffers()]}
    architectures = architectures_of(state)
    return (
        {k: v[index] for k, v in tensors.items()}
        if architectures is None
        else architectures.blueprint.own_tensors(index, tensors)
    )
