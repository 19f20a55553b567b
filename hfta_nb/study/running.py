"""A run of a study, from its directory to its last event."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from hfta_nb import events as ev
from hfta_nb import telemetry
from hfta_nb.errors import StudyError
from hfta_nb.events import Control, Event
from hfta_nb.study import saving
from hfta_nb.train import Trainer

if TYPE_CHECKING:
    from hfta_nb.study.study import Study


@contextlib.contextmanager
def opened(study: Study, resume: bool, again: bool = False) -> Iterator[Any]:
    """Make the run's directory, or read the checkpoint in it, and keep it for this run until the block is left.

    Args:
        study: of the run.
        resume: carry on from the checkpoint.
        again: begin from the start where a run has ended before its first checkpoint.

    Returns:
        The state to go on from; None for a new run.

    Raises:
        StudyError: a run is there already, or there is nothing to resume.
        StoreError: the directory can't be used, or the run in it is going on.
    """
    where = str(study.directory)
    if not resume:
        if study.store.has_events and not (again and not study.store.has_checkpoint):
            remedy = "resume it with run(resume=True), or choose another directory"
            raise StudyError("a run is already there", where=where, remedy=remedy)
        saving.write(study)
        with study.store.claimed():
            yield None
        return
    none = StudyError("no checkpoint to resume from", where=where, remedy="run it from the start")
    if not study.store.exists:
        raise none
    with study.store.claimed():  # first: a run that goes on may be about to end
        if study.history.state == ev.COMPLETE:
            raise StudyError("the run is complete", where=where, remedy="start a new study")
        if not study.store.has_checkpoint:
            raise none
        yield study.store.read_checkpoint()


def again(study: Study, control: Control) -> Iterator[Event]:
    """`Study.run` from the start where a run has ended before its first checkpoint; its events are added to those."""
    with opened(study, resume=False, again=True) as state:
        yield from study._run(state, control, resume=False)


def events(study: Study, trainer: Trainer, resumed: bool) -> Iterator[Event]:
    """All that happens, from the first event to the one that says how it ended."""
    yield started(study, resumed)
    yield ev.PlanMade(time.time(), trainer.records())
    yield from trainer
    if trainer.stopped:
        for member in list(study.history.members.values()):
            if member.state == ev.WAITING:
                yield ev.MemberChanged(time.time(), member.id, ev.STOPPED, "the run was stopped")
        yield ev.RunChanged(time.time(), ev.STOPPED, "stopped by request")
    else:
        study.store.remove_checkpoint()
        yield ev.RunChanged(time.time(), ev.COMPLETE)


def started(study: Study, resumed: bool) -> ev.RunStarted:
    """The first event: everything that a view needs to lay itself out."""
    return ev.RunStarted(
        time.time(),
        run_id=study.directory.name,
        family=study.family.name,
        data=study.data.name,
        device=str(study.device),
        device_name=telemetry.device_name(str(study.device)),
        dtype=str(study.dtype).removeprefix("torch."),
        epochs=study.epochs,
        threads=torch.get_num_threads(),
        directory=str(study.directory),
        axes=dict(study.grid.axes),
        variants=tuple(ev.VariantRecord(v.id, v.config, v.seed) for v in study.variants),
        metrics=study.metrics,
        monitor=study.monitor,
        direction="maximize" if study.maximize else "minimize",
        resumed=resumed,
        precision=study.precision,
    )
