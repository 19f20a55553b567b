"""A run of a study, from its directory to its last event."""

from __future__ import annotations

import contextlib
import functools
import json
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from hfta_nb.errors import StoreError, StudyError
from hfta_nb.models.model_zoo import families, family
from hfta_nb.records import events as ev
from hfta_nb.records import telemetry
from hfta_nb.records.events import Control, Event
from hfta_nb.records.history import History
from hfta_nb.records.store import is_full
from hfta_nb.study import adding, definition_files, loop, noting, searching, steering
from hfta_nb.study.arguments import positive
from hfta_nb.study.planning import settings_of
from hfta_nb.study.study_state import StudyState
from hfta_nb.train import Trainer
from hfta_nb.train.pending_group import WeightsOf
from hfta_nb.workers.distributed.leader import spread
from hfta_nb.workers.pools import Executor, WorkerPool, reached

SAMPLE_INTERVAL_S = 0.5
"""How often the device is looked at while a study runs."""

TRANSIENT = (ev.Heartbeat,)
"""Events that are not kept on disk."""


def run(
    study: StudyState,
    control: Control,
    resume: bool,
    epochs: int | None,
    executor: Executor | None = None,
    again: bool = False,
) -> loop.Events:
    """The work of `Study.run`. It is to be stopped by `control`, not closed."""
    ranks = (1 if study.serial else study.devices), study.devices_batch_norm
    count = ranks[0] if executor is None else 1  # workers start ranks of their own
    here = spread(count, study.device, ranks[1], layout=study.layout)
    with opened(study, resume, epochs, again) as state, here as prepare:
        if study.run_state.history.edits:  # of some the run may have gone back behind: they are made again
            study.run_state.history.edits = [e for e, _ in study.store.events() if isinstance(e, ev.MemberEdited)]
        searching.begin(study, state is not None or resume)
        noting.environment(study)
        samplers = [telemetry.sampler(name) for name in telemetry.names(str(study.device), ranks[0])]
        save = functools.partial(_save, study)
        take = functools.partial(adding.requested, study)
        settings, plan = settings_of(study), study.plan_groups
        owner = steering.Owner(study)
        study.store.requests.take()  # what was asked of an earlier run is not asked of this one
        trainer: Trainer | WorkerPool
        if executor is None:
            trainer = Trainer(settings, plan, control, save, state, prepare, ends=study.store, take=take, owner=owner)
        else:
            trainer = WorkerPool(
                settings, plan, control, executor, save, state, ends=study.store, take=take, ranks=ranks
            )
        control.attach(lambda request: steering.check(study, request, study.run_state.history))
        study.plan_groups, study.run_state.trainer, study.run_state.extended = trainer.arrays, trainer, False
        sampled = 0.0
        study.run_state.running += 1
        try:
            for event in events(study, trainer, state is not None):
                keep(study, event)
                searching.follow(study, control, event)
                if isinstance(event, ev.RunChanged) and event.state in ev.FINAL_STATES:
                    control.close()  # nobody reads it any more
                yield event
                if time.perf_counter() - sampled >= SAMPLE_INTERVAL_S:
                    sampled = time.perf_counter()
                    for request in study.store.requests.take():
                        control.post(request)
                    for sampler in samplers:
                        sample = sampler.sample()
                        keep(study, sample)
                        yield sample
        except BaseException as error:
            _end(study, _ended_by(study, error))
            raise
        finally:
            control.close()
            if isinstance(trainer, WorkerPool):
                trainer.close()
            searching.end(study)
            study.run_state.trainer = None
            study.run_state.running -= 1


def keep(study: StudyState, event: Event) -> None:
    """Take an event in, and write it down."""
    study.run_state.history.add(event)
    if not isinstance(event, TRANSIENT):
        study.run_state.read = study.store.append(event)


def reload(study: StudyState) -> None:
    """See `Study.reload`."""
    for event, offset in study.store.events(study.run_state.read):
        _take(study, event)
        study.run_state.read = offset
        if isinstance(event, ev.RunStarted):  # by a worker, perhaps, which was given more of either
            study.epochs = event.epochs
            if len(event.variants) > len(study.variants):
                adding.restore(study)


def _take(study: StudyState, event: Event) -> None:
    """Take an event of the store in, which may lack what came before it: some of it may be damaged."""
    history = study.run_state.history
    if history.run is None and not isinstance(event, ev.RunStarted):
        history.add(started(study, False))
    try:
        history.add(event)
    except KeyError:  # of a variant that was added
        adding.restore(study)
        history.add(started(study, True))
        try:
            history.add(event)
        except KeyError as error:
            where, what = str(study.directory), f"an event tells of a variant that there is none of ({error})"
            raise StoreError(what, where=where) from error


def looked_at(study: StudyState) -> History:
    """The state of the run; INTERRUPTED if the process that trained it is gone."""
    if study.run_state.running:
        return study.run_state.history
    for _ in range(2):  # it may end between the two looks
        reload(study)
        history = study.run_state.history
        if history.state not in (ev.RUNNING, ev.PAUSED) or study.store.running is not False:
            return history
    history.interrupt("; run(resume=True) resumes it")
    return history


def _save(study: StudyState, state: dict[str, Any], weights: Mapping[WeightsOf, Mapping[str, torch.Tensor]]) -> str:
    noting.choices(study)
    study.run_state.unkept = None
    try:
        return str(study.store.write_checkpoint(state, weights))
    except StoreError:
        study.run_state.unkept = state, weights
        raise


def _ended_by(study: StudyState, error: BaseException) -> Iterator[Event]:
    if is_full(error):
        return _cut_short(study, f"{error}")
    if isinstance(error, Exception):
        reason, detail = f"{type(error).__name__}: {error}", "".join(traceback.format_exception(error))
        return iter([ev.RunChanged(time.time(), ev.FAILED, reason, detail)])
    # A second Ctrl-C, or the family's own code ended the process.
    return _cut_short(study, f"{type(error).__name__} within a step; it resumes from its last checkpoint")


def _cut_short(study: StudyState, why: str) -> Iterator[Event]:
    for member in list(study.run_state.history.members.values()):
        if member.state not in (*ev.FINAL_STATES, ev.PAUSED):
            yield ev.MemberChanged(time.time(), member.id, ev.STOPPED, ev.WITH_RUN)
    yield ev.RunChanged(time.time(), ev.STOPPED, why)


def _end(study: StudyState, events: Iterable[Event]) -> None:
    """Keep how a run has ended by an error that is to be raised; where that can't be written, it is known here."""
    for event in events:
        with contextlib.suppress(StoreError):
            keep(study, event)


@contextlib.contextmanager
def opened(study: StudyState, resume: bool = False, epochs: int | None = None, again: bool = False) -> Iterator[Any]:
    """Make the run's directory, or read the checkpoint in it, and keep it for this run until the block is left.

    Args:
        study: of the run.
        resume: continue from the last checkpoint, or from the start if there is none or the run has not begun.
        epochs: train to so many, from where the run is, if it has begun.
        again: as `resume`, where the run may not have begun.

    Returns:
        The state to go on from; None for a run from the start.

    Raises:
        StudyError: the directory already holds a run, or another study's, or there is nothing to resume.
        StoreError: the directory can't be used, or its run is in progress.
    """
    wanted = study.epochs if epochs is None else positive("epochs", epochs)
    if resume and not study.store.exists:
        raise StudyError("no run to resume", where=str(study.directory), remedy="run it from the start")

    def refuse() -> None:
        more = study.history.state == ev.COMPLETE and len(study.variants) > len(study.history.members)
        if not (resume or again or more or epochs is not None):
            raise _there_already(study)

    if study.store.has_events:
        refuse()
    with study.store.claimed():  # first: a run that goes on may be about to end, and another may have just begun
        if not study.store.has_events:
            study.epochs = wanted
            searching.first(study)
            definition_files.write(study)
            yield None
            return
        refuse()
        searching.adopt(study)
        _check_same(study)
        adding.restore(study)
        state = study.store.go_back()
        if study.history.state == ev.COMPLETE:
            _check_more(study, state, wanted)
        if wanted != study.epochs:
            study.epochs = wanted
            study.store.write_study(definition_files.describe(study))
        yield state


def _check_same(study: StudyState) -> None:
    """Whether the grid in the directory is this study's: a checkpoint counts its members by their places. What is not
    saved, as a loss of the user's, has to be given again."""
    kept, mine = study.store.read_study(), json.loads(json.dumps(definition_files.describe(study)))
    for part in ("grid", "variants"):
        if kept.get(part) != mine.get(part):
            remedy = "choose another directory, or take the study that is there: Study.load(directory)"
            raise StudyError("another study is there, of another grid", where=str(study.directory), got=mine.get(part),
                             accepted=str(kept.get(part)), remedy=remedy)  # fmt: skip
    usual = family(study.family.name) if study.family.name in families() else None
    lost = [part for part in kept.get("own", ()) if part not in study.family.own
            and getattr(study.family, part) in (None, getattr(usual, part, None))]  # fmt: skip
    if lost:
        given = ", ".join(f"{part}=..." for part in lost)
        raise StudyError(f"the run that is there had {' and '.join(lost)} of its own, which are not saved",
                         where=str(study.directory), accepted="the same as at first",
                         remedy=f"define the study as at first: Study(..., {given}, directory=...); or "
                         f"Study.load(path, family=dataclasses.replace(hfta_nb.family(...), {given}))")  # fmt: skip


def _there_already(study: StudyState) -> StudyError:
    where, state = str(study.directory), study.history.state
    if state == ev.COMPLETE:
        remedy = f"train on with run(epochs=...) (it has trained {study.epochs}){_command('--epochs N')}, "
        remedy += "or choose another directory"
        return StudyError("a run is already there, and complete", where=where, remedy=remedy)
    remedy = f"resume it with run(resume=True){_command()}, or choose another directory"
    return StudyError("a run is already there", where=where, remedy=remedy)


def _command(more: str = "") -> str:
    """The same on a command line."""
    return f" or 'hfta-nb run --resume DIR {more}".rstrip() + "'"


def _check_more(study: StudyState, state: Any, epochs: int) -> None:
    """Raise unless a complete run has more to train."""
    where, ends = str(study.directory), () if state is None else state.get("ends", ())
    if len(study.variants) > len(study.history.members) and epochs >= study.epochs and state is not None:
        return  # some were added since
    if searching.more(study):
        study.store.write_study(definition_files.describe(study))
        return
    if epochs == study.epochs:
        remedy = f"train on with run(epochs={2 * epochs}){_command(f'--epochs {2 * epochs}')}, for example"
        raise StudyError("the run is complete", where=where, remedy=remedy)
    if epochs < study.epochs:
        more = f"more than {study.epochs}, which it has trained"
        raise StudyError("not more epochs than before", where="epochs", got=epochs, accepted=more)
    if not ends:
        remedy = "start a new study"
        raise StudyError("no member is left to train: all ended early", where=where, remedy=remedy)


def begun(
    study: StudyState,
    control: Control,
    resume: bool = False,
    epochs: int | None = None,
    executor: Any = "inline",
    workers: int | None = None,
    address: str | None = None,
    again: bool = False,
) -> Iterator[Event]:
    """`Study.run`, whose executor is found at once.

    Args:
        again: from the start where a run has ended before its first checkpoint; its events are added to those.
    """
    devices = 1 if study.serial else study.devices
    if study.layout == "mesh" and executor != "inline":
        raise StudyError("blocks of matrices train in the process of the run", where='executor, layout="mesh"',
                         got=executor, accepted="inline")  # fmt: skip
    where = reached(executor, workers, address, devices, study.device.type == "cpu")
    return loop.iterate(study.directory, lambda: run(study, control, resume, epochs, where, again), control)


def events(study: StudyState, trainer: Trainer | WorkerPool, resumed: bool) -> Iterator[Event]:
    """The events of a run, from the first to the one with its final state."""
    noting.variants(study)
    yield started(study, resumed)
    yield ev.PlanMade(time.time(), trainer.records())
    for variant in [v for pending in trainer.waiting if pending.end for v in pending.end.members]:
        yield ev.MemberChanged(time.time(), variant, ev.WAITING, f"to train on to epoch {study.epochs}")
    waiting = {id for pending in trainer.waiting for id in pending.group.ids}
    for variant in [v for end in trainer.ended.values() for v in end.members if v not in waiting]:
        if study.run_state.history.members[variant].state == ev.WAITING:  # for more epochs than are wanted now
            yield ev.MemberChanged(time.time(), variant, ev.COMPLETE)
    for event in trainer:
        if study.run_state.extended:  # by whoever got the last event, or a request; this one may tell of the new ones
            yield from _announced(study, trainer)
        yield event
        if isinstance(event, ev.MemberEdited) and _brings_axis(study, event):
            yield from _announced(study, trainer)
    study.run_state.trainer = None  # what is added from here on is for another run
    if trainer.stopped:
        for member in list(study.history.members.values()):
            if member.state == ev.WAITING:
                yield ev.MemberChanged(time.time(), member.id, ev.STOPPED, ev.WITH_RUN)
        yield ev.RunChanged(time.time(), ev.STOPPED, "stopped by request")
    elif study.history.fruitless:
        if trainer.error is not None:
            raise trainer.error
        counts = ((study.history.count(state), state.lower()) for state in (ev.DIVERGED, ev.FAILED))
        words = ", ".join(f"{count} {state}" for count, state in counts if count)
        yield ev.RunChanged(time.time(), ev.FAILED, f"no member succeeded: {words}")
    else:
        yield ev.RunChanged(time.time(), ev.COMPLETE)


def _brings_axis(study: StudyState, event: ev.MemberEdited) -> bool:
    """Whether a member now differs from the others in an axis of which all had one value."""
    run = study.run_state.history.run
    return run is not None and event.how in ("set", "copied") and not event.changes.keys() <= run.axes.keys()


def _announced(study: StudyState, trainer: Trainer | WorkerPool) -> Iterator[Event]:
    """What the run is now, in the middle of it."""
    study.run_state.extended, paused = False, study.run_state.history.state == ev.PAUSED
    noting.variants(study)
    yield started(study, True)
    yield ev.PlanMade(time.time(), trainer.records())
    if paused:
        yield ev.RunChanged(time.time(), ev.PAUSED)


def started(study: StudyState, resumed: bool) -> ev.RunStarted:
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
        axes=adding.axes(study),
        variants=tuple(adding.records(study)),
        metrics=study.metrics,
        monitor=study.monitor,
        direction="maximize" if study.maximize else "minimize",
        resumed=resumed,
        precision=study.precision,
    )
