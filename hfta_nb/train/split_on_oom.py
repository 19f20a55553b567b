"""What becomes of an array for which the memory did not suffice: two halves, which carry on from where it was."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from hfta_nb.records import events as ev
from hfta_nb.records.events import Control, Event
from hfta_nb.train import checkpoint
from hfta_nb.train.group_progress import Progress
from hfta_nb.train.memory import free_bytes, shown
from hfta_nb.train.pending_group import WeightsOf
from hfta_nb.train.plan import Group
from hfta_nb.train.schedule import Schedule


def split(
    trainer: Schedule,
    group: Group,
    stage: str,
    ids: Sequence[int],
    state: Mapping[str, Any] | None,
    unsaved: Mapping[WeightsOf, Any],
    reason: str,
) -> Iterator[Event]:
    """Put the halves of an array in its place, both to be trained next.

    An array of one member goes on without the rows that others have left, which a deterministic study keeps; without
    such rows it fails. The array is let go of already, before anything is allocated anew.

    Args:
        trainer: of the array, which it was training.
        group: the array.
        stage: of its run.
        ids, state, unsaved: its members that still train, how far they are, and their weights that are not saved yet,
            on the host and as before the step that failed; see `GroupRun.to_host`.
        reason: the error in words.
    """
    index = trainer.free_index
    needed, free = group.fixed_bytes + len(ids) * group.memory_bytes, free_bytes(trainer.settings.device)
    if len(ids) == 1 and (state is None or _rows(state) == 1):
        remedy = 'a smaller batch_size, checkpointing="always", or a device with more memory'
        takes = f"it needs about {shown(needed)} of {shown(free)} ({reason}); {remedy}"
        yield ev.MemberChanged(time.time(), ids[0], ev.FAILED, f"out of memory while {stage}, alone: {takes}")
        yield from trainer.save_after(group, unsaved)
        return
    cut = (len(ids) + 1) // 2
    parts = [part for part in (ids[:cut], ids[cut:]) if part]
    why = f"halved while {stage}: {len(ids)} members did not fit in {shown(free)}"
    named = [(group.index, group.reason), (index, f"not with array {group.index}: {why}")]
    # Members that come to a half later are no more than there is memory for.
    known: dict[str, Any] = {"fitted": True, "capacity": cut if len(parts) > 1 else group.capacity}
    arrays = [replace(group.half(part, *name), **known) for part, name in zip(parts, named, strict=False)]
    states = [None] * len(parts) if state is None else _cut(trainer, group, state, parts)
    gone = [v for v in group.ids if v not in ids]
    ended = [group.part(gone, index + 1, f"ended before others of array {group.index}")] if gone else []
    trainer.replace(group, [*ended, *arrays])
    trainer.put_first(arrays, states)
    waiting, until = parts[-1], f"for the other half of array {group.index}"
    if len(parts) == 1:
        until = f"to train without rows that others have left: {reason}"
    else:
        sizes, numbers = (len(parts[0]), len(parts[1])), (group.index, index)
        yield ev.ArrayHalved(time.time(), group.index, stage, len(ids), sizes, numbers, needed, free, reason)
    yield ev.PlanMade(time.time(), trainer.records())
    for variant in waiting:
        yield ev.MemberChanged(time.time(), variant, ev.WAITING, until)
    yield from trainer.save_after(group, unsaved, 0 if state is None else int(state["epoch"]))


def _rows(state: Mapping[str, Any]) -> int:
    """Rows of the array that a state is of."""
    return int(state["wide"]["members"]) if "wide" in state else len(state.get("held", state["ids"]))


def _cut(
    trainer: Schedule, group: Group, state: Mapping[str, Any], parts: Sequence[Sequence[int]]
) -> list[dict[str, Any]]:
    """The state of each part of an array, taken out of the whole's on the host."""
    # Each part is as wide as its members are many, in a deterministic study too: memory has run out.
    settings = replace(trainer.settings, device=torch.device("cpu"), measure=False, deterministic=False)
    host = Schedule(settings, [group], Control(), prepare=trainer.prepare)
    run = Progress(host, group, state)
    try:
        checkpoint.build(run)
        return [run.state(part) for part in parts]
    finally:
        run.source.close()
