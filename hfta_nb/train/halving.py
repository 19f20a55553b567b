"""What becomes of an array for which the memory did not suffice: two halves, which carry on from where it was."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from hfta_nb.records import events as ev
from hfta_nb.records.events import Control, Event
from hfta_nb.train.group_run import GroupRun
from hfta_nb.train.memory import free_bytes, let_go, shown
from hfta_nb.train.plan import Group
from hfta_nb.train.schedule import Schedule
from hfta_nb.train.settings import WeightsOf
from hfta_nb.train.step.rollback import on_host


def halve(trainer: Schedule, run: GroupRun, reason: str) -> Iterator[Event]:
    """Put the halves of an array in its place, both to be trained next; an array of one member fails.

    The state goes to the host, and the array is let go of, before anything is allocated anew.

    Args:
        trainer: of the array, which it is training.
        run: of the array, as the step that failed has left it: as before that step.
        reason: the error in words.
    """
    group, stage, device = run.group, run.stage, trainer.settings.device
    built = hasattr(run, "members")
    ids = list(run.members.ids) if built else list(run.resume["ids"] if run.resume else group.ids)
    # Before the first step a half is built as it would have been; what was to be taken up is as it was kept.
    fresh = run.resume is None and stage == "building"
    unsaved: Mapping[WeightsOf, Any] = {}
    state: Mapping[str, Any] | None = None
    if not fresh:
        state = run.resume if stage == "building" else on_host(run.state())
    if built:
        unsaved = on_host(run.members.unsaved())
    run.forget()
    let_go(device)
    needed, free = group.fixed_bytes + len(ids) * group.memory_bytes, free_bytes(device)
    if len(ids) == 1 and state is not None and _rows(state) > 1:
        yield from _narrowed(trainer, group, ids, state, unsaved, reason)
        return
    if len(ids) == 1:
        yield from _fail(trainer, group, ids[0], stage, reason, needed, free, unsaved)
        return
    cut = (len(ids) + 1) // 2
    parts = ids[:cut], ids[cut:]
    index = trainer.free_index
    why = f"halved while {stage}: {len(ids)} members did not fit in {shown(free)}"
    # Members that come to a half later are no more than there is memory for.
    known: dict[str, Any] = {"fitted": True, "capacity": cut}
    halves = [
        replace(group.half(parts[0], group.index, group.reason), **known),
        replace(group.half(parts[1], index, f"not with array {group.index}: {why}"), **known),
    ]
    states = [None, None] if state is None else _cut(trainer, group, state, parts)
    gone = [v for v in group.ids if v not in ids]
    kept = [group.part(gone, index + 1, "ended before the array was halved")] if gone else []
    trainer.replace(group, [*kept, *halves])
    trainer.put_first(halves, states)
    sizes, numbers = tuple(map(len, parts)), (group.index, index)
    yield ev.ArrayHalved(time.time(), group.index, stage, len(ids), sizes, numbers, needed, free, reason)
    yield ev.PlanMade(time.time(), trainer.records())
    for variant in parts[1]:
        yield ev.MemberChanged(time.time(), variant, ev.WAITING, f"for the other half of array {group.index}")
    if trainer.save is not None:
        path = trainer.checkpoint(group, None, unsaved)
        yield ev.CheckpointSaved(time.time(), group.index, int(state["epoch"]) if state else 0, path)


def _narrowed(
    trainer: Schedule,
    group: Group,
    ids: list[int],
    state: Mapping[str, Any],
    unsaved: Mapping[WeightsOf, Any],
    reason: str,
) -> Iterator[Event]:
    """The last member of an array goes on without the rows that others have left, which a deterministic study keeps."""
    own = replace(group.half(ids, group.index, group.reason), fitted=True)
    gone = [v for v in group.ids if v not in ids]
    ended = [group.part(gone, trainer.free_index, "ended before others of the array")] if gone else []
    states = _cut(trainer, group, state, [ids])
    trainer.replace(group, [*ended, own])
    trainer.put_first([own], states)
    yield ev.PlanMade(time.time(), trainer.records())
    yield ev.MemberChanged(time.time(), ids[0], ev.WAITING, f"to train without rows that others have left: {reason}")
    if trainer.save is not None:
        path = trainer.checkpoint(group, None, unsaved)
        yield ev.CheckpointSaved(time.time(), group.index, int(state["epoch"]), path)


def _fail(
    trainer: Schedule,
    group: Group,
    variant: int,
    stage: str,
    reason: str,
    needed: int,
    free: int,
    unsaved: Mapping[WeightsOf, Any],
) -> Iterator[Event]:
    remedy = 'a smaller batch_size, checkpointing="always", or a device with more memory'
    text = f"out of memory while {stage}, alone: it needs about {shown(needed)} of {shown(free)} ({reason}); {remedy}"
    yield ev.MemberChanged(time.time(), variant, ev.FAILED, text)
    if trainer.save is not None:
        yield ev.CheckpointSaved(time.time(), group.index, 0, trainer.checkpoint(group, None, unsaved))


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
    run = GroupRun(host, group, state)
    try:
        run.open()
        return [run.state(part) for part in parts]
    finally:
        run.source.close()
