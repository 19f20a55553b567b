"""The progress of a run, computed from its events."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from hfta_nb import events as ev
from hfta_nb.cli.progress import ACTIVE, DONE, WAITING, RunProgress, device
from hfta_nb.records.events import Event
from hfta_nb.records.history import History
from tests.cli.fake import epoch, planned, started, steps, whole_run


def feed(events: list[Event]) -> RunProgress:
    history = History()
    progress = RunProgress(lambda: history)
    for event in events:
        history.add(event)
        progress.add(event)
    return progress


def test_groups_wait_until_their_turn() -> None:
    progress = feed([started(), planned((0, 1), (2,)), ev.PhaseChanged(0.0, 0, "building")])
    assert [g.state for g in progress.groups.values()] == [ACTIVE, WAITING]


def test_a_group_is_done_when_all_its_members_are() -> None:
    begin: list[Event] = [started(), planned((0, 1), (2,)), steps(0, 1.0, 1.0, (0, 1))]
    one = [*begin, ev.MemberChanged(0.0, 0, ev.COMPLETE)]
    assert feed(one).groups[0].state == ACTIVE
    assert feed([*one, ev.MemberChanged(0.0, 1, ev.DIVERGED)]).groups[0].state == DONE


def test_time_left_follows_the_measured_rate() -> None:
    group = feed(
        [started(), planned((0, 1, 2)), steps(0, 0.5, 10.0, (0, 1, 2)), steps(0, 1.5, 14.0, (0, 1, 2))]
    ).groups[0]
    assert group.elapsed_s == 4.0
    assert group.remaining_s == pytest.approx(4.0 * 2.5)


def test_time_left_of_a_resumed_run_counts_what_was_done_since() -> None:
    group = feed([started(), planned((0, 1, 2)), steps(0, 3.0, 60.0, (0,)), steps(0, 3.5, 61.0, (0,))]).groups[0]
    assert group.remaining_s == pytest.approx(1.0)


def test_time_left_is_unknown_before_a_rate_is() -> None:
    assert math.isnan(feed([started(), planned((0, 1, 2)), steps(0, 0.5, 3.0, (0, 1, 2))]).groups[0].remaining_s)


def test_time_left_follows_the_rate_since_the_run_has_one() -> None:
    """The first steps of an array try what is fastest: a rate of theirs would tell of hours."""
    tuning = [replace(steps(0, 0.1 * i, 60.0 * i, (0, 1, 2)), remaining_s=math.nan) for i in (1, 2)]
    settled = [steps(0, 0.5, 121.0, (0, 1, 2)), steps(0, 1.5, 125.0, (0, 1, 2))]
    assert math.isnan(feed([started(), planned((0, 1, 2)), *tuning]).groups[0].remaining_s)
    group = feed([started(), planned((0, 1, 2)), *tuning, *settled]).groups[0]
    assert group.elapsed_s == 65.0
    assert group.remaining_s == pytest.approx(4.0 * 2.5)


def test_states_are_counted() -> None:
    assert feed(whole_run()).states() == "2 complete, 1 diverged"


def test_the_best_so_far_has_its_values() -> None:
    assert feed(whole_run()).best() == "#1 val_accuracy 0.875 at epoch 4 (lr=0.01)"


def test_there_is_no_best_before_an_epoch_is_over() -> None:
    assert feed([started(), planned((0, 1, 2))]).best() == ""


def test_names_in_the_best_are_text() -> None:
    run = started({"kind": ("[red]\x1b[0m",)}, count=1)
    assert "[red]\\x1b[0m" in feed([run, planned((0,)), *epoch(0, 1, {0: 0.5})]).best()


def test_the_speed_says_how_it_was_measured() -> None:
    assert feed(whole_run()).speed(0) == "3.1x as fast as one after another (measured on 20 steps)"
    assert feed(whole_run()).speed(1) == ""


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ({"core0": 0.5, "core1": 1.0}, "cores 50% 100%"),
        ({f"core{i}": 0.5 for i in range(64)}, "64 cores at 50%"),
        ({"memory_bytes": 2.0**30, "memory_total_bytes": 2.0**34}, "memory 1.0 GiB of 16.0 GiB"),
        ({"sm_active": 0.92, "tensor_active": 0.18, "power_w": 410.4}, "SM active 92%, tensor 18%, 410 W"),
        ({"gpu_utilization": math.nan}, "utilization -"),
        ({}, ""),
    ],
)
def test_a_sample_of_the_device(values: dict[str, float], shown: str) -> None:
    assert device(values) == shown
