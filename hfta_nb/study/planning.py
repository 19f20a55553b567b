"""The plan of a study, with its measurements."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from hfta_nb.data import Stream
from hfta_nb.errors import FamilyError
from hfta_nb.errors.user_frames import UserFrame
from hfta_nb.models.study_config import ARGUMENTS
from hfta_nb.records import events as ev
from hfta_nb.records.events import Control
from hfta_nb.study import keeping, populations
from hfta_nb.study.study_state import StudyState
from hfta_nb.train import Settings, Trainer
from hfta_nb.train.dry_run import tried
from hfta_nb.train.featured_batches import planned
from hfta_nb.train.memory import shown
from hfta_nb.train.step import Precision
from hfta_nb.workers.fleet.arrays import Arrays
from hfta_nb.workers.fleet.profile import Profile, profile
from hfta_nb.workers.pools import reached

if TYPE_CHECKING:
    import pandas

    from hfta_nb.train.plan import Group

ON_GPU, WHERE_SWEPT = 1024, 64
"""Samples of validation that go through at once: on a GPU, where few calls matter and no cache; on a CPU where
`batch_size` is an axis."""


def settings_of(study: StudyState) -> Settings:
    """The settings of the training loop."""
    searcher = study.searcher
    slots = None if searcher is None or study.serial else searcher.slots * searcher.each
    more = {
        "precision": Precision(study.precision, study.device),
        "compiling": "never" if study.deterministic else study.compile,
        "slots": slots,
        "population": study.rounds,
        "pulling": populations.pulling_of(study),
        "validation_batch_size": validation_batch_size(study),
    }
    same = {one.name: getattr(study, one.name) for one in fields(Settings) if one.name in ARGUMENTS.keys() - more}
    return Settings(
        family=study.family,
        data=study.data,
        maximize=study.maximize,
        refilled=slots is not None and searcher is not None and searcher.trials > searcher.slots,
        keep_last=keeping.LAST in study.keep_checkpoints,
        rungs=keeping.rungs(study),
        **same | more,
    )


def validation_batch_size(study: StudyState) -> int | None:
    """Samples of validation that go through at once; None for mini-batches of the data's own.

    On a CPU they are as many as in training: their activations stay in cache, in the blocks of members that training
    has chosen. All variants have the same, and nothing is timed, so that a loss that is no mean over samples compares.
    """
    own = isinstance(study.data, Stream) and not study.data.validation.takes_batch_size
    if own or study.validation_batch_size is not None:
        return study.validation_batch_size
    if study.device.type != "cpu":
        return ON_GPU
    return WHERE_SWEPT if "batch_size" in study.grid.axes else int(study.plan_groups[0].rows[0]["batch_size"])


def fitted(study: StudyState) -> list[Group]:
    """The arrays of a study, each as large as the device and the study's capacity let it be."""
    if all(g.fitted for g in study.plan_groups):
        return study.plan_groups
    for event in tried(settings_of(study), study.plan_groups):
        if event.reason:
            raise forward_error(study, event)
    trainer = Trainer(settings_of(study), study.plan_groups, Control())
    for group in list(trainer.arrays):
        if not group.fitted:
            for _ in trainer.fitted(group, measure=True):
                pass
    return [planned(trainer, group) for group in trainer.arrays]


def array_name(index: int) -> str:
    """The name of an array, by its number, in profiles and plans of flotillas."""
    return f"array {index}"


def profiled(study: StudyState, groups: Sequence[Group], cache: Path | None, devices: int) -> Profile:
    """See `Study.profile`; of these arrays."""
    reached("inline", devices=devices, on_cpu=study.device.type == "cpu")
    by_name = {array_name(group.index): group for group in groups}
    members = {name: len(group.variants) for name, group in by_name.items()}
    return profile(Arrays(settings_of(study), by_name, study.devices_batch_norm), members, devices, cache=cache)


def profile_events(study: StudyState) -> Iterator[ev.RateMeasured]:
    """See `Study.profile_events`."""
    for group in study.plan_groups:
        (found,) = profiled(study, [group], None, study.devices).groups.values()
        yield ev.RateMeasured(time.time(), group.index, found.members, found.rates, found.memory_bytes)


def speed_events(study: StudyState) -> Iterator[ev.SpeedMeasured]:
    """See `Study.speed_events`."""
    for group in [] if study.serial else study.plan_groups:
        name = array_name(group.index)
        with Arrays(settings_of(study), {name: group})(name, len(group.variants), 1) as opened:
            found = opened.speed()
        if found is not None:
            yield found


def forward_error(study: StudyState, event: ev.ForwardTried) -> FamilyError:
    """The error of a variant's forward or loss; its message begins with the line of the user's code."""
    own = UserFrame(event.file, event.line, event.function, event.source) if event.file else None
    label = next(v.label for g in study.plan_groups for v in g.variants if v.id == event.variant)
    where = f"{study.family.name}, {label}" if own is None else str(own)
    of = "" if own is None else f" ({study.family.name}, {label})"
    return FamilyError(f"{event.reason}, tried on one batch{of}", where=where,
                       remedy="mend it, or plan(measure=False) runs no forward")  # fmt: skip


def table(study: StudyState) -> pandas.DataFrame:
    """The arrays as a table; see `Study.plan`."""
    from hfta_nb.figures.tables import Table

    validated = validation_batch_size(study)
    rows = [{**g.row(), "validation_batch_size": validated} for g in study.plan_groups]
    first = ["members", "differing_in", "split_because", "parameters", "memory_bytes"]
    if any(row["architectures"] > 1 for row in rows):
        first[3:3] = ["architectures", "padding"]
    if any(group.features for group in study.plan_groups):
        first.append("features")
    if any(row["capacity"] is not None for row in rows):
        first.append("capacity")
    return Table(rows, "array", first, {"memory_bytes": shown, "padding": "{:.0%}".format})
