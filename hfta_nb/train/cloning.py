"""Clones: members that begin with the state of another one, in its array or in one of their own.

They do not go through `rebuild`: a clone is one more row of the step in the midst of an epoch, whose scores and
gradients so far are copied with it, where members that come between two passes begin with none.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from hfta_nb.data.augment import Setting
from hfta_nb.engine.array.access import seeded_state
from hfta_nb.records import events as ev
from hfta_nb.records.events import Clone, Event
from hfta_nb.train.group_progress import Progress
from hfta_nb.train.members import begun
from hfta_nb.train.plan import Group, rows_apart
from hfta_nb.train.schedule import Schedule
from hfta_nb.train.status import reached
from hfta_nb.train.step import ArrayStep, editing
from hfta_nb.train.step.rollback import on_host


def warm(run: Progress, request: Clone, planned: Group) -> Iterator[Event]:
    """Clone a member of an array that trains.

    Args:
        run: of the array.
        request: with the source, a member that still trains.
        planned: the array of the clone alone, one of the run's.
    """
    source = run.members.ids.index(request.variant)
    why = apart(run, request.variant, planned)
    if why:
        yield from alone(run.trainer, run, request, planned, run.state([request.variant]), why)
        return
    _join(run, source, request, planned)
    yield edited(request, planned, *reached(run.trainer, run, request.variant), "in the same array")
    yield ev.PlanMade(time.time(), run.trainer.records())
    yield ev.MemberChanged(time.time(), planned.ids[0], ev.RUNNING)


def apart(run: Progress, variant: int, planned: Group) -> str:
    """What keeps a clone out of its source's array, in words; empty where nothing does."""
    group = run.group
    place = group.ids.index(variant)
    mine, own = group.rows[place], planned.rows[0]
    if not isinstance(run.step, ArrayStep):
        return "its source trains alone"
    values = rows_apart(own, mine)
    if values is not None:
        return values
    if Setting.of(mine).mixes != Setting.of(own).mixes:
        return "mixup, cutmix: on in one and off in the other"
    if group.arguments[place] != planned.arguments[0]:
        return "the model is another one"
    if group.capacity and len(run.members.ids) >= group.capacity:
        return f"{group.capacity} members fit in the array"
    return ""


def _join(run: Progress, source: int, request: Clone, planned: Group) -> None:
    """The clone is the last member of its source's array, in the first row that is nobody's or in one more."""
    step, variant, row = run.step, planned.variants[0], planned.rows[0]
    assert isinstance(step, ArrayStep)  # `apart` has seen to it
    rows, places = run.rows, list(range(len(step)))
    own = next((place for place in places if place not in rows), len(step))
    places[own : own + 1] = [rows[source]]
    made = step.select(places)
    if "seed" in request.changes:
        made.array.generators.keep(own, seeded_state(variant.seed, run.settings.device))
    if run.members.active[source].row != row:
        editing.set_values(made, own, row, run.trainer.span(planned, variant.id), tuple(request.changes))
    run.take_clone(planned, source, made, places, own)


def alone(
    trainer: Schedule, run: Progress | None, request: Clone, planned: Group, source: Mapping[str, Any], why: str
) -> Iterator[Event]:
    """The clone trains in an array of its own, next.

    Args:
        trainer: of the run.
        run: the array that trains, if one does.
        request: with the source.
        planned: the array of the clone alone, one of the run's.
        source: how far the source is, which is alone in this state.
        why: the clone is not in its source's array.
    """
    whole, place = trainer.find(request.variant)
    state = _state(source, request, whole.rows[place], planned, trainer.settings.device)
    own = replace(
        whole.half([request.variant], planned.index, f"not with array {whole.index}: {why}"),
        variants=planned.variants,
        rows=planned.rows,
        arguments=planned.arguments,
        fitted=True,
    )
    trainer.replace(planned, [own])
    trainer.requested.change(own.ids[0], request.changes)
    trainer.put_first([own], [state])
    start, first_step = begun(state["members"])[own.ids[0]]
    reason = f"in an array of its own: {why}"
    yield edited(request, own, int(state["epoch"]) - start, int(state["steps"]) - first_step, reason)
    yield ev.PlanMade(time.time(), trainer.records())


def _state(
    source: Mapping[str, Any], request: Clone, row: Mapping[str, Any], planned: Group, device: torch.device
) -> dict[str, Any]:
    """How far the clone is, from how far its source is.

    What depends on the source's optimizer or batch size, and fits no other, is left out: the optimizer's state, and the
    epoch under way with the gradients that it has added up, which begins anew.

    Args:
        source, request, planned: see `alone`.
        row: the source's values of all training axes.
        device: of the run.
    """
    state: dict[str, Any] = copy.deepcopy(on_host(dict(source)))
    variant, own = planned.variants[0], planned.rows[0]
    state["ids"] = [variant.id]
    state.pop("wide", None)  # the clone's array is its own
    state["members"] |= {"pages": [[variant.id, repr(math.nan), 0, 0]], "patient": [repr(math.nan)]}
    state["renewed"] = [name for name in ("optimizer", "decay_on", "lr_scheduler") if row[name] != own[name]]
    if row["batch_size"] != own["batch_size"]:
        state |= {"batch": 0, "told": 0, "place": 0}
        state["scores"]["sizes"] = []
        state["step"] |= {"accumulation": None} if "accumulation" in state["step"] else {}
    if "seed" in request.changes:
        streams = seeded_state(variant.seed, device)
        state["step"]["generators"] = {k: streams[k].unsqueeze(0) for k in state["step"]["generators"]}
    return state


def edited(request: Clone, planned: Group, epoch: int, step: int, reason: str) -> ev.MemberEdited:
    """What is told of a clone."""
    variant, changes = planned.ids[0], dict(request.changes)
    return ev.MemberEdited(time.time(), variant, "cloned", request.variant, request.warm, epoch, step, changes, reason)
