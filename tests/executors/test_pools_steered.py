"""Requests to a pool of workers: stop, pause, add, extend; a run goes on anywhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hfta_nb as hfta
from hfta_nb import events as ev
from hfta_nb.workers.pools import Terms
from hfta_nb.workers.pools.reports import Report, Told
from tests.executors.baton import Baton, Runner
from tests.executors.test_pools import OFTEN, make, same


def asked(study: hfta.Study, ask: Callable[[hfta.Control, ev.Event], None], **options: Any) -> list[ev.Event]:
    """The events of a run in which something is asked for."""
    control, found = hfta.Control(), []
    for event in study.run(control, **{"executor": Baton(terms=OFTEN), **options}):
        found.append(event)
        ask(control, event)
    return found


def at_epoch(epoch: int, ask: Callable[[hfta.Control], None]) -> Callable[[hfta.Control, ev.Event], None]:
    """Ask once, when the first group is so far."""
    done: list[int] = []

    def heard(control: hfta.Control, event: ev.Event) -> None:
        if isinstance(event, ev.EpochDone) and event.epoch == epoch and not done:
            done.append(epoch)
            ask(control)

    return heard


@pytest.mark.parametrize("then", ["inline", "pool"])
def test_a_run_that_is_stopped_goes_on_anywhere(tmp_path: Path, inline: hfta.Study, then: str) -> None:
    study = make(tmp_path)
    asked(study, at_epoch(2, hfta.Control.stop))
    assert study.history.state == ev.STOPPED
    assert study.history.count(ev.STOPPED) >= 4  # one group may have been done
    assert study.store.has_checkpoint
    again = hfta.Study.load(tmp_path)
    list(again.run(resume=True, **({"executor": Baton()} if then == "pool" else {})))
    same(again, inline)


def test_a_run_of_one_process_goes_on_with_a_crew(tmp_path: Path, inline: hfta.Study) -> None:
    study = make(tmp_path)
    asked(study, at_epoch(2, hfta.Control.stop), executor="inline")
    list(study.run(resume=True, executor=Baton()))
    same(study, inline)


def test_a_member_is_stopped_by_the_worker_that_has_it(tmp_path: Path) -> None:
    study = make(tmp_path, 4)
    first: list[int] = []

    def stop(control: hfta.Control) -> None:
        first.append(next(m.id for m in study.history.members.values() if m.epoch))
        control.stop(first[0])
        control.stop(0)  # of the narrowest, which waits

    asked(study, at_epoch(1, stop))
    states = {m.id: (m.state, m.epoch, m.reason) for m in study.history.members.values()}
    assert states.pop(first[0])[0] == ev.STOPPED
    assert states.pop(0) == (ev.STOPPED, 0, "stopped before it started")
    assert {(state, epoch) for state, epoch, _ in states.values()} == {(ev.COMPLETE, 4)}


def test_a_member_that_was_stopped_stays_so_when_its_worker_dies(tmp_path: Path) -> None:
    stopped: list[int] = []

    def dies(worker: Runner, report: Report) -> bool:
        told = isinstance(report, Told) and isinstance(report.event, ev.MemberChanged)
        if not told or report.event.state != ev.STOPPED or stopped:  # type: ignore[union-attr]
            return False
        stopped.append(report.event.variant)  # type: ignore[union-attr]
        return True

    study = make(tmp_path)
    asked(study, at_epoch(1, lambda control: control.stop(5)), executor=Baton(dies=dies))
    assert stopped == [5]
    assert study.history.members[5].state == ev.STOPPED
    assert study.history.count(ev.COMPLETE) == 5


def test_a_pause_holds_all_workers(tmp_path: Path, inline: hfta.Study) -> None:
    study = make(tmp_path)
    paused: list[ev.Event] = []

    def ask(control: hfta.Control, event: ev.Event) -> None:
        if isinstance(event, ev.RunChanged) and event.state == ev.PAUSED:
            paused.append(event)
            assert study.store.has_checkpoint
        if paused and isinstance(event, ev.Heartbeat) and len(paused) == 1:
            paused.append(event)
            control.resume()

    wanted = at_epoch(1, hfta.Control.pause)

    def both(control: hfta.Control, event: ev.Event) -> None:
        wanted(control, event)
        ask(control, event)

    events = asked(study, both)
    states = [e.state for e in events if isinstance(e, ev.RunChanged)]
    assert states == [ev.PAUSED, ev.RUNNING, ev.COMPLETE]
    begin = next(i for i, e in enumerate(events) if isinstance(e, ev.RunChanged))
    end = next(i for i, e in enumerate(events) if isinstance(e, ev.RunChanged) and e.state == ev.RUNNING)
    assert {type(e) for e in events[begin + 1 : end]} <= {ev.Heartbeat, ev.DeviceSampled}
    same(study, inline)


def test_a_paused_run_can_be_stopped(tmp_path: Path) -> None:
    study = make(tmp_path)
    wanted = at_epoch(1, hfta.Control.pause)

    def ask(control: hfta.Control, event: ev.Event) -> None:
        wanted(control, event)
        if isinstance(event, ev.RunChanged) and event.state == ev.PAUSED:
            control.stop()

    asked(study, ask)
    assert study.history.state == ev.STOPPED


def test_variants_that_are_added_train_as_well(tmp_path: Path) -> None:
    study = make(tmp_path, 2)
    asked(study, at_epoch(1, lambda control: control.add([{"lr": 1e-3, "width": 12}, {"lr": 1e-3, "width": 4}])))
    alone = make(tmp_path.parent / f"{tmp_path.name}_alone", 2, {"lr": [1e-3], "width": [12, 4]})
    list(alone.run())
    added = [study.history.members[id] for id in (6, 7)]
    assert [m.state for m in added] == [ev.COMPLETE] * 2
    for one, other in zip(added, alone.history.members.values(), strict=True):
        assert one.curves["val_loss"].values == other.curves["val_loss"].values
    numbers = [g.index for g in study.groups()]
    assert len(set(numbers)) == len(numbers)


def test_more_epochs_after_the_end(tmp_path: Path, inline: hfta.Study) -> None:
    study = make(tmp_path, 2)
    list(study.run(executor=Baton()))
    list(study.run(epochs=3, executor=Baton(3)))
    same(study, inline)


# Flotillas.


def test_a_flotilla_that_has_shrunk_is_planned_anew(tmp_path: Path, inline: hfta.Study) -> None:
    """Three groups on two workers; when the first is done, the other is checkpointed and starts anew with the third."""
    study = make(tmp_path)
    # The reports of one worker come first, so that its group ends while the other is on its way.
    slow = [False]
    step = Runner.step

    def stepped(self: Runner) -> list[Report]:
        return [] if self.name == "runner 1" and slow[0] and not self.requests else step(self)

    def ask(control: hfta.Control, event: ev.Event) -> None:
        slow[0] = slow[0] or (isinstance(event, ev.EpochDone) and event.epoch == 2)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Runner, "step", stepped)
        events = asked(study, ask, executor=Baton(terms=Terms(paradigm="global", alpha=0.8)))
    waiting = [e for e in events if isinstance(e, ev.MemberChanged) and "next round" in e.reason]
    assert len(waiting) == 2  # both members of a group
    started = [e.group for e in events if isinstance(e, ev.PhaseChanged) and e.phase == "starting"]
    assert len(started) == 4
    assert len(set(started)) == 3
    same(study, inline)
