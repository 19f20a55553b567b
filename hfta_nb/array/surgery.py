"""Taking members out of an array, putting states into it, and copying members within it."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from hfta_nb.array import attributes
from hfta_nb.array.lazy import check_settled, copied
from hfta_nb.array.saving import STREAMS, put_row, tensors_of
from hfta_nb.errors import FusionError

if TYPE_CHECKING:
    from hfta_nb.array.fused import FusedArray


def member(array: FusedArray, index: int) -> nn.Module:
    """See `FusedArray.__getitem__`."""
    index = _checked(array, index)
    plain = _tensors_of(array, index)
    attributes.put(plain, array.engine.attributes.of(index))
    return plain


def _tensors_of(array: FusedArray, index: int) -> nn.Module:
    if array._pending:
        return copied(array._pending[index])
    across = array.engine.across
    if across is not None:
        return across.member(index, dict(array.named_parameters()), dict(array.named_buffers()))
    tensors: dict[str, Tensor] = {k: v.detach()[index].clone() for k, v in array.named_buffers()}
    for name, p in array.named_parameters():
        tensors[name] = nn.Parameter(p.detach()[index].clone(), requires_grad=p.requires_grad)
    with array._slots.filled(tensors):
        return copy.deepcopy(array._skeleton)


def select(array: FusedArray, indices: Sequence[int]) -> FusedArray:
    """See `FusedArray.select`."""
    array.flush()
    chosen = list(indices)
    if not chosen or not all(0 <= i < len(array) for i in chosen):
        raise FusionError("not members of this array", got=chosen, accepted=f"some of 0 to {len(array) - 1}")
    skeleton, blueprint = _tensors_of(array, chosen[0]), None
    parameters: dict[str, Tensor] = {}
    buffers: dict[str, Tensor] = {}
    if array.engine.across is not None:
        blueprint = array.engine.across.blueprint.select(chosen)
        skeleton = blueprint.skeleton
        _copy_flags(array._skeleton, skeleton)
    if not array._pending:
        parameters = {k: v.detach()[chosen] for k, v in array.named_parameters()}
        buffers = {k: v[chosen] for k, v in array.named_buffers()}
    other = type(array)(
        skeleton,
        parameters,
        buffers,
        array.generators.select(chosen),
        pending=[copied(array._pending[i]) for i in chosen] if array._pending else (),
        blueprint=blueprint,
    )
    other.settings = array.settings.copy()
    size = array._tuning.home.block_size
    other.settings.block_size = len(chosen) if size == len(array) else min(size, len(chosen))
    other._proven, other.told = set(array._proven), array.told
    other._verified = dict(array._verified)
    other.engine.attributes = array.engine.attributes.select(chosen)
    other._install()
    return other


@torch.no_grad()
def copy_member(array: FusedArray, src: int, dst: int) -> None:
    """See `FusedArray.copy_member`."""
    array.flush()
    check_settled(array, "copy_member")
    src, dst = _checked(array, src), _checked(array, dst)
    if src == dst:
        return
    across = array.engine.across
    if across is not None and across.blueprint.of[src] != across.blueprint.of[dst]:
        raise FusionError(
            "members of different architecture", where="copy_member", got=[src, dst], accepted="two of one architecture"
        )
    for arena in [*array.arenas, *array.buffer_arenas]:
        arena.data[dst].copy_(arena.data[src])
    for p in array.parameters():
        if p.grad is not None:
            p.grad[dst].copy_(p.grad[src])
    array.generators.keep(dst, array.generators.states[src])
    array.engine.attributes.copy_member(src, dst)
    array.engine.own.clear()
    for follower in list(array.followers):
        follower.copy_member(src, dst)


@torch.no_grad()
def load_member(array: FusedArray, index: int, state_dict: Mapping[str, Tensor], strict: bool) -> None:
    """See `FusedArray.load_member`."""
    array.flush()
    check_settled(array, "load_member")
    index = _checked(array, index)
    where = f"load_member, member {index}"
    across = array.engine.across
    own = _own_state(array, index) if across is None else across.state(index, array)
    streams = None if STREAMS in own else state_dict.get(STREAMS)  # of a row of the array's state_dict
    if streams is not None:
        state_dict = {k: v for k, v in state_dict.items() if k != STREAMS}
    extra = [k for k in state_dict if k not in own]
    lacking = [k for k in own if k not in state_dict]
    if strict and (extra or lacking):
        raise FusionError(
            "other keys than the member's",
            where=where,
            got={"not known": extra, "missing": lacking},
            accepted=str(list(own)),
        )
    chosen = {k: v for k, v in state_dict.items() if k in own}
    for key, value in chosen.items():
        if not isinstance(value, Tensor) or value.shape != own[key].shape:
            shape = list(value.shape) if isinstance(value, Tensor) else value
            raise FusionError("another shape", where=f"{where}, {key}", got=shape, accepted=str(list(own[key].shape)))
    if streams is not None:
        put_row(array.generators, index, streams)
    for key, value in chosen.items():
        own[key].copy_(value)
    for follower in list(array.followers):
        follower.reset_member(index)


def twin(array: FusedArray) -> FusedArray:
    """A copy with its gradients. Parameters are views of the arenas, which copying one by one would take apart."""
    array.flush()
    other = select(array, range(len(array)))
    for p, q in zip(array.parameters(), other.parameters(), strict=True):
        q.grad = None if p.grad is None else p.grad.clone()
    return other


def _copy_flags(source: nn.Module, target: nn.Module) -> None:
    """Train and eval flags, and which parameters learn."""
    for a, b in zip(source.modules(), target.modules(), strict=True):
        b.training = a.training
    for p, q in zip(source.parameters(), target.parameters(), strict=True):
        q.requires_grad_(p.requires_grad)


def _own_state(array: FusedArray, index: int) -> dict[str, Tensor]:
    return {key: value[index] for key, value in tensors_of(array).items()}


def _checked(array: FusedArray, index: int) -> int:
    if not -len(array) <= index < len(array):
        raise IndexError(f"member {index} of an array of {len(array)}")
    return index % len(array)
