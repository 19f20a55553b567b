"""An array's tensors in memory, and what runs in place of its submodules; both anew after it has moved or changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from hfta_nb.array.across.blueprint import Blueprint
from hfta_nb.array.across.padding import Padding
from hfta_nb.array.across.runtime import Across
from hfta_nb.array.arena import arenas_of
from hfta_nb.array.checkpointing import handlers as checkpointing
from hfta_nb.array.checkpointing import segments
from hfta_nb.array.engine import Engine
from hfta_nb.array.fallback import attention_handlers, one_by_one
from hfta_nb.array.owners import own
from hfta_nb.array.slots import Slots
from hfta_nb.errors import FusionError

if TYPE_CHECKING:
    from hfta_nb.array.fused import FusedArray


def take(
    array: FusedArray,
    skeleton: nn.Module,
    parameters: Mapping[str, Tensor],
    buffers: Mapping[str, Tensor],
    blueprint: Blueprint | None = None,
) -> None:
    """Let a skeleton with these tensors be the array's."""
    slots = Slots(skeleton)
    trainable = {name: p.requires_grad for name, p in skeleton.named_parameters()}
    own = {k: nn.Parameter(v.detach(), requires_grad=trainable[k]) for k, v in parameters.items()}
    slots.replace({**own, **buffers})
    # The skeleton is one plain module: calls go through it with a member's tensors in place. Its own
    # containers serve as the array's, so that names, flags and movements are those of the plain module.
    for name in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
        object.__setattr__(array, name, getattr(skeleton, name))
    object.__setattr__(array, "_skeleton", skeleton)
    object.__setattr__(array, "_slots", slots)
    array.training = skeleton.training
    array.engine = Engine(skeleton, slots, array.generators)
    array.engine.across = None if blueprint is None else Across(blueprint, slots)
    array.owned = {} if blueprint is None else dict(blueprint.owned())
    if not array._pending:
        array._build_arenas()


def build(array: FusedArray) -> None:
    """Lay parameters and buffers into arenas, and forget what was recorded of where they lay before."""
    named = dict(array.named_parameters())
    array.arenas = arenas_of({k: p.detach() for k, p in named.items()})
    for arena in array.arenas:
        for span in arena.spans:
            named[span.name].data = arena.view(span.name)
            own(named[span.name], array, span.name)
    _build_buffers(array)
    array.padding = Padding(array)
    install(array)


def _build_buffers(array: FusedArray) -> None:
    array.buffer_arenas = arenas_of(dict(array.named_buffers()))
    array._slots.find()
    # `.data`: writing into one buffer must not count as a change of all others, which autograd may have saved.
    array._slots.replace({s.name: a.view(s.name).data for a in array.buffer_arenas for s in a.spans})
    array._slots.find()
    array._blocks.clear()
    for captured in (array._steps, array._forwards, array._results, array._losses):
        captured.clear()


def regrow(array: FusedArray) -> None:
    """Take up buffers that the model has replaced by tensors of another shape or dtype.

    Raises:
        FusionError: those of the members are unlike.
    """
    members, grown = len(array), array.engine.outgrown
    buffers = dict(array.named_buffers())
    for name, rows in grown.items():
        own = [rows.get(i, buffers[name][i]) for i in range(members)]
        kinds = {(v.dtype, tuple(v.shape)) for v in own}
        if len(kinds) > 1:
            remedy = "train these members in arrays of their own"
            raise FusionError("members come to different shapes of a buffer", where=name,
                              got=[list(v.shape) for v in own], remedy=remedy)  # fmt: skip
        buffers[name] = torch.stack([v.detach() for v in own])
    array._slots.replace({name: buffers[name] for name in grown})
    grown.clear()
    _build_buffers(array)


def install(array: FusedArray) -> None:
    """Put in place what runs instead of submodules."""
    engine, settings = array.engine, array.settings
    engine.private, engine.fast_rng, engine.plain = settings.private, settings.fast_rng, settings.strategy == "fixed"
    if engine.across is not None:
        settings.unlike = True
        engine.across.settle(settings.paths, settings.apart)
        return
    handlers = attention_handlers(array._skeleton)
    for path in settings.paths:
        handlers[path] = one_by_one(array._skeleton, path)
    engine.apart = tuple(settings.paths)
    engine.segments = segments(array._skeleton) if settings.checkpointed else []
    again = checkpointing(array._skeleton, handlers) if engine.segments else {}
    engine.handlers = handlers | {p: h for p, h in again.items() if p not in settings.paths}
