"""Members of an array that are replaced by copies of others, as a population method decides.

Nobody comes or goes, so that there is no array to `rebuild`: `put_member`, on which that stands, is all they need.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from hfta_nb.records import events as ev
from hfta_nb.train.group_progress import Progress
from hfta_nb.train.plan import Group
from hfta_nb.train.status import noted
from hfta_nb.train.step import ArrayStep, Origin, editing, put_member

OWN = ("seed", "data_seed")
"""What a member keeps: its random streams, and the order of its data."""


def replaced(run: Progress, values: Sequence[float]) -> list[ev.MemberEdited]:
    """Let the population method replace members after an epoch; what there is to tell of it.

    Weights, buffers, optimizer, lr schedule and loss scale are copied on the device, between two steps.

    Args:
        run: the array. Members of other arrays are not compared with these: they train at another time.
        values: per member that trains, the monitored metric.
    """
    method, step = run.settings.population, run.step
    if method is None or not isinstance(step, ArrayStep) or run.epoch >= run.budget:
        return []
    ids, rows = run.members.ids, {m.id: m.row for m in run.members.active}
    found = []
    for target, source, changes in method.decide(
        run.epoch, dict(zip(ids, values, strict=True)), rows, run.settings.maximize
    ):
        alike = run.group.architectures == 1 or _arguments(run.group, target) == _arguments(run.group, source)
        if alike and target not in run.trainer.pinned:
            found.append(_exchange(run, step, target, source, changes))
    return found


def _exchange(run: Progress, step: ArrayStep, target: int, source: int, changes: Mapping[str, Any]) -> ev.MemberEdited:
    ids, trainer = run.members.ids, run.trainer
    dst, src = ids.index(target), ids.index(source)
    before, arguments = run.members.active[dst].row, _arguments(run.group, target)
    row = {**run.members.active[src].row, **{name: before[name] for name in OWN}, **changes}
    streams = dict(step.array.generators.states[run.rows[dst]])
    put_member(step, run.rows[dst], Origin(step, run.rows[src]))
    step.array.generators.keep(run.rows[dst], streams)
    if changes:
        editing.set_values(step, run.rows[dst], row, trainer.span(run.group, target), tuple(changes))
    changed = {name: value for name, value in row.items() if before[name] != value}
    changed |= {name: v for name, v in _arguments(run.group, source).items() if arguments.get(name) != v}
    noted(trainer, run, target, changed)
    value = f"after epoch {run.epoch}: among the worst, a copy of one of the best"
    return ev.MemberEdited(time.time(), target, "copied", source, True, run.epoch, run.steps, changed, value)


def _arguments(group: Group, variant: int) -> dict[str, Any]:
    return group.arguments[group.ids.index(variant)]
