"""Arrays that several devices of one worker train together."""

from __future__ import annotations

from pathlib import Path

import pytest

from hfta_nb import events as ev
from hfta_nb.workers.pools import Processes, Terms
from tests.fleet.test_devices_of_a_study import equal, followers, study
from tests.fleet.test_devices_of_a_study import one as one
from tests.forked import forked as forked

pytestmark = pytest.mark.usefixtures("forked")
WIDE = Terms(rates={"array 0": [10.0, 19.0]}, paradigm="global", most=2, checkpoint_every_s=0.0)


def starts(events: list[ev.Event]) -> list[str]:
    return [e.detail for e in events if isinstance(e, ev.PhaseChanged) and e.phase == "starting"]


@pytest.mark.long
def test_a_group_to_which_the_plan_gives_two_devices(tmp_path: Path, one: object) -> None:
    made, events, seen = study(tmp_path, 1), [], []
    for event in made.run(executor=Processes(2, threads=1, terms=WIDE)):
        events.append(event)
        if isinstance(event, ev.EpochDone):
            seen.append(len(followers()))
    assert seen[0] == 1
    assert followers() == []
    [text] = starts(events)
    assert text.startswith("on 2 devices of process ")
    equal(made, one)


@pytest.mark.long
def test_a_device_that_is_lost_changes_nothing(tmp_path: Path, one: object) -> None:
    made, events = study(tmp_path, 1), []
    for event in made.run(executor=Processes(2, threads=1, terms=WIDE)):
        if isinstance(event, ev.EpochDone) and not any(isinstance(e, ev.EpochDone) for e in events):
            followers()[0].kill()
        events.append(event)
    again = [e.detail for e in events if isinstance(e, ev.PhaseChanged) and e.phase == "starting again"]
    assert len(again) == 1
    assert "lost one of its devices (rank 1 was killed (SIGKILL)" in again[0]
    equal(made, one)


@pytest.mark.long
def test_a_study_of_two_devices_has_two_in_each_worker(tmp_path: Path, one: object) -> None:
    made = study(tmp_path, 2)
    events = list(made.run(executor=Processes(1, threads=1)))
    assert starts(events)[0].startswith("on 2 devices of process ")
    equal(made, one)
