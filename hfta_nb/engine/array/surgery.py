"""Takes members out of an array, loads states into it, and copies members within it."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hfta_nb.engine.array.extra_states import kept_beside, put_extra_states
from hfta_nb.engine.array.held_once import put_tensors
from hfta_nb.engine.array.lazy import check_settled, copied
from hfta_nb.engine.array.saving import STREAMS, put_row
from hfta_nb.engine.array.state_code import as_loaded
from hfta_nb.engine.array.tensor_storage import own_tensors, take
from hfta_nb.engine.eager import attributes
from hfta_nb.engine.eager.attributes import Attributes
from hfta_nb.engine.eager.handlers import install
from hfta_nb.engine.eager.padding import Padding
from hfta_nb.engine.eager.state import ArrayState
from hfta_nb.engine.members.copying import copied_module
from hfta_nb.engine.padded import preallocated
from hfta_nb.engine.padded.compare import difference
from hfta_nb.engine.padded.runtime import architectures_of
from hfta_nb.errors import FusionError
from hfta_nb.errors.border import bounded, whole


def member(state: ArrayState, index: int) -> nn.Module:
    """See `FusedArray.__getitem__`."""
    index = _checked(state, index)
    with state.own_attributes():
        plain = _tensors_of(state, index)
        attributes.put(plain, state.engine.attributes.of(index))
    return plain


def _tensors_of(state: ArrayState, index: int) -> nn.Module:
    if state.pending:
        return copied(state.pending[index])
    architectures = architectures_of(state)
    if architectures is not None:
        return architectures.member(index, dict(state.tensors.named_parameters()), dict(state.tensors.named_buffers()))
    tensors: dict[str, Tensor] = {k: v.detach()[index].clone() for k, v in state.tensors.named_buffers()}
    for name, p in state.tensors.named_parameters():
        tensors[name] = nn.Parameter(p.detach()[index].clone(), requires_grad=p.requires_grad)
    with state.slots.filled(tensors):
        return copied_module(state.skeleton)


def numbers(indices: Any, count: int) -> list[Any]:
    """Members in a list, tensor or array of numbers, or of a truth value per member."""
    lacking = isinstance(indices, Tensor) and (indices.is_meta or indices.layout != torch.strided)
    given = indices.tolist() if hasattr(indices, "tolist") and not lacking else indices
    if lacking or isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise FusionError("not a list of members", got=indices, accepted=f"a list of numbers from 0 to {count - 1}")
    chosen = bounded(given, FusionError, "members")
    if not chosen or not all(isinstance(i, bool) for i in chosen):
        return chosen
    if len(chosen) != count:
        raise FusionError("not one truth value per member", got=len(chosen), accepted=str(count))
    return [i for i, wanted in enumerate(chosen) if wanted]


def select(state: ArrayState, indices: Sequence[int], block_size: int) -> ArrayState:
    """The state of an array of some members; see `FusedArray.select`.

    Args:
        state: of the array.
        indices: the members, in order.
        block_size: how many members of the array run at once.
    """
    chosen = numbers(indices, len(state))
    if not chosen or not all(_at(i) and 0 <= operator.index(i) < len(state) for i in chosen):
        raise FusionError("not members of this array", got=chosen, accepted=f"some of 0 to {len(state) - 1}")
    with state.own_attributes():  # also takes over what the user wrote
        skeleton, blueprint = _tensors_of(state, chosen[0]), None
    parameters: dict[str, Tensor] = {}
    buffers: dict[str, Tensor] = {}
    architectures = architectures_of(state)
    if architectures is not None:
        blueprint = architectures.blueprint.select(chosen)
        skeleton = blueprint.skeleton
        _copy_flags(state.skeleton, skeleton)
    if not state.pending:
        named = dict(state.tensors.named_parameters())
        once = {k: p.detach()[0].expand(len(chosen), *p.shape[1:]) for k, p in named.items() if k in state.held_once}
        parameters = once | {k: v.detach()[chosen] for k, v in named.items() if k not in once}
        buffers = {k: v[chosen] for k, v in state.tensors.named_buffers()}
    other = ArrayState(state.generators.select(chosen))
    other.pending = [copied(state.pending[i]) for i in chosen] if state.pending else []
    take(other, skeleton, parameters, buffers, blueprint)
    if (
        architectures is not None
        and architectures.preallocated
        and other.engine.architectures is not None
        and len(chosen) > 1
    ):
        other.engine.architectures.set_preallocated(other.generators.device)
    other.settings = state.settings.copy()
    other.settings.block_size = len(chosen) if block_size == len(state) else min(block_size, len(chosen))
    other.proven, other.verified, other.axes_known = set(state.proven), dict(state.verified), state.axes_known
    other.sums_reported = state.sums_reported
    other.paths = {key: set(paths) for key, paths in state.paths.items()}
    other.engine.attributes = state.engine.attributes.select(chosen)
    other.functions = other.engine.functions = state.functions.select(chosen)
    install(other)
    return other


@torch.no_grad()
def copy_member(state: ArrayState, src: int, dst: int) -> None:
    """See `FusedArray.copy_member`."""
    check_settled(state, "copy_member")
    src, dst = _checked(state, src), _checked(state, dst)
    if src == dst:
        return
    architectures = architectures_of(state)
    if architectures is not None and architectures.blueprint.of[src] != architectures.blueprint.of[dst]:
        raise FusionError(
            "members of different architecture", where="copy_member", got=[src, dst], accepted="two of one architecture"
        )
    for arena in [*state.arenas, *state.buffer_arenas]:
        arena.data[dst].copy_(arena.data[src])
    for p in state.tensors.parameters():
        if p.grad is not None:
            p.grad[dst].copy_(p.grad[src])
    state.generators.keep(dst, state.generators.states[src])
    with state.own_attributes():
        state.engine.attributes.copy_member(src, dst)
    state.functions.copy_member(src, dst)
    state.engine.reset_member_modules()
    for follower in list(state.followers):
        follower.copy_member(src, dst)


@torch.no_grad()
def take_member(state: ArrayState, index: int, source: ArrayState, src: int, consumed: bool = False) -> None:
    """See `access.take_member`."""
    for one in (state, source):
        check_settled(one, "take_member")
    index, src = _checked(state, index), _checked(source, src)
    if not suits(state, index, source, src):
        why = difference(_template(state, index), _template(source, src)) or "other shapes"
        raise FusionError(f"members of different architecture: {why}", where=f"take_member, member {index}", got=src)
    template, architectures = _template(source, src), architectures_of(state)
    if architectures is not None and difference(architectures.template(index), template) is not None:
        preallocated.admit(architectures, index, template, consumed)
        _cleared(state, index)
        for name, row in architectures.blueprint.owned_row(index):
            if name not in state.owned and not bool(row.all()):
                state.owned[name] = row.new_ones(len(state), *row.shape)
            if name in state.owned:
                state.owned[name][index] = row
        state.padding = Padding(state.arenas, state.owned)
    put_tensors(state, partial(own_tensors, state, index), own_tensors(source, src))
    state.generators.keep(index, source.generators.states[src])
    theirs = Attributes(1)
    with state.own_attributes(), source.own_attributes():
        theirs.keep(0, source.engine.attributes.of(src))
        state.engine.attributes.drop(index)
        state.engine.attributes.keep(index, theirs.select([0]).of(0))
    state.functions.take(index, source.functions, src)
    state.engine.reset_member_modules()


@torch.no_grad()
def load_member(state: ArrayState, index: int, state_dict: Mapping[str, Tensor], strict: bool) -> None:
    """See `FusedArray.load_member`."""
    check_settled(state, "load_member")
    index = _checked(state, index)
    where = f"load_member, member {index}"
    if not isinstance(state_dict, Mapping):
        raise FusionError("not a state_dict", where=where, got=state_dict, accepted="a dict of names to tensors")
    architectures = architectures_of(state)

    def views() -> dict[str, Tensor]:
        return _own_state(state, index) if architectures is None else architectures.state(index, state.tensors)

    every = views()
    plain = member(state, index)
    beside = kept_beside(plain)
    own = {k: v for k, v in every.items() if k not in beside}
    streams = None if STREAMS in beside else state_dict.get(STREAMS)  # in a row of the array's state_dict
    if streams is not None:
        state_dict = {k: v for k, v in state_dict.items() if k != STREAMS}
    state_dict = as_loaded(plain, state_dict, strict, where)
    extra = [k for k in state_dict if k not in own and k not in beside]
    lacking = [k for k in (*own, *beside) if k not in state_dict]
    if strict and (extra or lacking):
        raise FusionError(
            "other keys than the member's",
            where=where,
            got={"not known": extra, "missing": lacking},
            accepted=str([*own, *beside]),
        )
    chosen = {k: v for k, v in state_dict.items() if k in own}
    for key, value in chosen.items():
        if not isinstance(value, Tensor) or value.shape != own[key].shape:
            shape = list(value.shape) if isinstance(value, Tensor) else value
            raise FusionError("another shape", where=f"{where}, {key}", got=shape, accepted=str(list(own[key].shape)))
        if value.is_meta and not own[key].is_meta:
            raise FusionError("a tensor without values", where=f"{where}, {key}", got="on meta", accepted="with values")
    if streams is not None:
        put_row(state.generators, index, streams)
    put_tensors(state, views, chosen)
    if beside:
        put_extra_states(state, {index: {k: v for k, v in state_dict.items() if k in beside}})
    for follower in list(state.followers):
        follower.reset_member(index)


def _copy_flags(source: nn.Module, target: nn.Module) -> None:
    """Copy train and eval flags, and `requires_grad` of parameters."""
    for a, b in zip(source.modules(), target.modules(), strict=True):
        b.training = a.training
    for p, q in zip(source.parameters(), target.parameters(), strict=True):
        q.requires_grad_(p.requires_grad)


def suits(state: ArrayState, index: int, source: ArrayState, src: int) -> bool:
    """Whether a member of another array can be put in a member's place."""
    if same_architecture(state, index, source, src):
        return True
    architectures = architectures_of(state)
    together = state.settings.block_size > 1  # alone a member runs at its own sizes, and is recorded with them
    return architectures is not None and together and preallocated.admits(architectures, index, _template(source, src))


def _cleared(state: ArrayState, index: int) -> None:
    """A member's entries, padding too, become zero."""
    for arena in [*state.arenas, *state.buffer_arenas]:
        arena.data[index].zero_()


def same_architecture(state: ArrayState, index: int, source: ArrayState, src: int) -> bool:
    """See `access.same_architecture`."""
    own, given = own_tensors(state, index), own_tensors(source, src)
    if own.keys() != given.keys() or any(own[k].shape != given[k].shape for k in own):
        return False
    return difference(_template(state, index), _template(source, src)) is None


def _template(state: ArrayState, index: int) -> nn.Module:
    """A plain module of a member's architecture."""
    architectures = architectures_of(state)
    if architectures is None:
        return _tensors_of(state, index)
    architectures.copy_flags()
    return architectures.template(index)


def own_names(state: ArrayState, index: int) -> dict[str, str]:
    """See `access.own_names`."""
    names = [name for name, _ in state.tensors.named_parameters()]
    architectures = architectures_of(state)
    if architectures is None:
        return {name: name for name in names}
    blueprint = architectures.blueprint
    return {own: name for own, name in blueprint.names[blueprint.of[index]].items() if name in names}


def _own_state(state: ArrayState, index: int) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = dict(state.tensors.named_parameters(remove_duplicate=False))
    tensors |= dict(state.tensors.named_buffers(remove_duplicate=False))  # as they are, not as a module saves them
    return {key: tensors[key].detach()[index] for key in state.tensors.state_dict() if key in tensors}


def _at(index: Any) -> bool:
    return whole(index) or isinstance(index, bool)


def _checked(state: ArrayState, index: int) -> int:
    if not _at(index):
        raise FusionError("not a member's number", where="member", got=index, accepted=f"0 to {len(state) - 1}")
    place = operator.index(index)
    if not -len(state) <= place < len(state):
        raise IndexError(f"member {place} of an array of {len(state)}")
    return place % len(state)
