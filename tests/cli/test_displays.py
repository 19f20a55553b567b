"""Displays during a run."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from hfta_nb import events as ev
from hfta_nb.cli.displays import MOST_GROUPS, REDRAWS_PER_S, Lines, LiveDisplay, Silent, halving, headline
from hfta_nb.cli.progress import RunProgress
from hfta_nb.records.events import Event
from hfta_nb.records.history import History
from tests.cli.fake import console, epoch, planned, started, steps, whole_run


def lines(events: Iterable[Event], step_s: float = 10.0) -> list[str]:
    """What `Lines` prints, with a clock that moves on by `step_s` at each look."""
    out, file = console(width=10_000)
    history = History()
    clock = itertools.count(0.0, step_s)
    with Lines(out, lambda: history, clock=lambda: next(clock)) as display:
        for event in events:
            history.add(event)
            display.add(event)
    return file.getvalue().splitlines()


def screen(events: Iterable[Event], width: int = 100) -> str:
    """What `LiveDisplay` shows after the events."""
    out, file = console(terminal=True, width=width)
    history = History()
    display = LiveDisplay(out, lambda: history)
    for event in events:
        history.add(event)
        display._progress.add(event)
    out.print(display.picture())
    return file.getvalue()


def test_the_time_left_is_no_guess() -> None:
    early = replace(steps(0, 0.1, 2.0, (0, 1)), remaining_s=math.nan)
    begin = [started(), planned((0, 1), (2,)), ev.PhaseChanged(0.0, 0, "training")]
    assert "; 0:02, estimating; " in lines([*begin, early, *epoch(0, 1, {0: 0.5, 1: 0.5}), ev.Heartbeat(1.0)])[-1]
    assert screen([*begin, early]).count("estimating") == 2  # of the array, and of all
    assert "-" not in screen([*begin, early]).split("all ")[1].splitlines()[0]


def test_the_rate_tells_of_waiting_where_it_is_much() -> None:
    history = History()
    for event in whole_run():
        history.add(event)
    progress = RunProgress(lambda: history)
    for share, words in [(0.02, ""), (0.43, " (43% waiting for data)")]:
        history.add(replace(steps(0, 1.0, 2.0, [0, 1]), waiting_share=share))
        assert progress.rate() == f"1,234 samples/s{words}"


def test_lines_tell_the_whole_run() -> None:
    best = "best #1 val_accuracy 0.875 at epoch 4 (lr=0.01)"
    assert lines(whole_run()) == [
        "cnn on digits: 3 variants, 4 epochs, float32, cpu (Some CPU, 1 thread)",
        "array 0: 2 members (#0, 1), 1,442 parameters each",
        "array 1: 1 member (#2), 1,442 parameters each; width differs",
        "array 0: 3.1x as fast as one after another (measured on 20 steps): all members at once",
        f"array 0: epoch 4/4; 0:02, 0:09 left; 1,234 samples/s; 2 running, 1 waiting; {best}",
        "#2 DIVERGED: loss is nan in epoch 1",
    ]


def test_lines_of_quick_epochs_are_left_out_but_for_the_last() -> None:
    run: list[Event] = [started(), planned((0, 1, 2))]
    for number in range(1, 5):
        run += epoch(0, number, {0: 0.5, 1: 0.5, 2: 0.5})
    found = [line.partition(";")[0] for line in lines(run, step_s=0.001) if "epoch" in line]
    assert found[1:] == ["array 0: epoch 1/4", "array 0: epoch 4/4"]


def test_the_last_epoch_gets_its_line_when_nothing_follows_it() -> None:
    assert any("epoch 4/4" in line for line in lines([started(), planned((0, 1, 2)), *epoch(0, 4, {0: 1, 1: 1, 2: 1})]))


def test_markup_and_control_characters_are_text() -> None:
    name = "[red]<script>\x1b[31m\nx"
    run = [started({name: ("[/bold]",)}, count=1, family=name), planned((0,)), *epoch(0, 4, {0: 0.5})]
    run.append(ev.MemberChanged(0.0, 0, ev.FAILED, "[link=x]\x1b]8;;"))
    shown = "\n".join([*lines(run), screen(run, width=300)])
    assert "\x1b" not in "\n".join(lines(run))
    assert "[red]<script>\\x1b[31m\\nx on digits" in shown
    assert "[/bold]" in shown
    assert "[link=x]\\x1b]8;;" in shown


def test_the_screen_shows_groups_members_best_and_device() -> None:
    shown = screen(whole_run()[:-3])
    assert "array 0  2 members" in shown
    assert "done" in shown
    assert "epoch 0.0/4" not in shown
    assert "1 waiting, 2 complete" in shown
    assert "#1 val_accuracy 0.875 at epoch 4 (lr=0.01)" in shown
    assert "cores 50% 25%, memory 2.0 GiB" in shown


def test_the_screen_shows_rate_and_speed_of_the_array_in_training() -> None:
    shown = screen(whole_run()[:8])
    assert "training, 1,234 samples/s, 3.1x as fast as one after another (measured on 20 steps)" in shown
    assert "epoch 2.0/4" in shown


def test_the_screen_fits_a_narrow_terminal() -> None:
    assert max(map(len, screen(whole_run(), width=60).splitlines())) <= 60


def test_many_groups_are_counted_and_the_one_in_training_is_shown() -> None:
    count = 50
    run: list[Event] = [started(count=count), planned(*((i,) for i in range(count)))]
    run += [ev.MemberChanged(0.0, i, ev.COMPLETE) for i in range(30)]
    shown = screen([*run, steps(30, 1.0, 5.0, (30,))])
    assert "30 of 50 arrays done" in shown
    assert "array 30" in shown
    assert shown.count("array ") <= MOST_GROUPS


def test_a_pause_is_shown() -> None:
    run: list[Event] = [
        started(),
        planned((0, 1, 2)),
        ev.PhaseChanged(0.0, 0, "training"),
        ev.RunChanged(0.0, ev.PAUSED),
    ]
    assert "paused" in screen(run)
    assert lines(run)[-1] == "paused"


def test_the_screen_is_not_redrawn_for_every_event(monkeypatch: pytest.MonkeyPatch) -> None:
    out, _ = console(terminal=True)
    history, now = History(), 0.0
    display = LiveDisplay(out, lambda: history, clock=lambda: now)
    drawn = []
    monkeypatch.setattr(display._live, "update", lambda *args, **rest: drawn.append(now))
    begin: list[Event] = [started(), planned((0, 1, 2))]
    many: list[Event] = [steps(0, i / 100, i / 100, (0, 1, 2)) for i in range(1, 101)]
    for event in [*begin, *many]:
        history.add(event)
        display.add(event)
        now += 0.01
    assert 2 <= len(drawn) <= 1.02 * REDRAWS_PER_S + 1


def test_the_screen_is_gone_when_the_run_ends_and_what_matters_stays() -> None:
    out, file = console(terminal=True)
    history = History()
    with LiveDisplay(out, lambda: history, clock=itertools.count().__next__) as display:
        for event in whole_run():
            history.add(event)
            display.add(event)
    shown = file.getvalue()
    assert "cnn on digits" in shown
    assert "#2 DIVERGED: loss is nan in epoch 1" in shown
    assert shown.endswith("\x1b[2K")  # the picture's last line is erased


def test_quiet_shows_notes_alone() -> None:
    out, file = console()
    with Silent(out) as display:
        for event in whole_run():
            display.add(event)
        display.note("stopping [red]")
    assert file.getvalue() == "stopping [red]\n"


@pytest.mark.parametrize(
    ("changes", "device"),
    [
        ({"device": "cuda:0", "device_name": "NVIDIA H200"}, "cuda:0 (NVIDIA H200)"),
        ({"device_name": "", "threads": 4}, "cpu (4 threads)"),
        ({"device": "cuda:0", "device_name": ""}, "cuda:0"),
    ],
)
def test_the_headline_names_the_device(changes: dict[str, object], device: str) -> None:
    assert headline(started(**changes)).endswith(device)


@pytest.mark.parametrize("display", [Lines, LiveDisplay])
def test_variants_that_a_search_adds_are_not_announced_as_a_resumed_run(display: type[Any]) -> None:
    out, file = console()
    first, history = started(), History()
    with display(out, lambda: history) as shown:
        for event in (first, replace(first, variants=(*first.variants, ev.VariantRecord(99, {}, 0)), resumed=True)):
            history.add(event)
            shown.add(event)
    lines = file.getvalue().splitlines()
    assert headline(first) in lines
    assert f"now {len(first.variants) + 1} variants, {first.epochs} epochs" in lines


def test_an_array_that_is_halved() -> None:
    event = ev.ArrayHalved(0.0, 1, "training", 8, (4, 4), (1, 2), 3 << 30, 2 << 30, "no memory")
    wanted = "array 1: out of memory while training: 8 members continue as 4 and then 4"
    assert halving(event) == f"{wanted} (they need 3.0 GiB, 2.0 GiB are free)"


def test_a_plan_that_is_made_again_is_told_where_it_is_new() -> None:
    out, file = console()
    history = History()
    lines = Lines(out, lambda: history)
    first = ev.GroupRecord(0, (0, 1), "", 10, 2000)
    plans = [(first,), (replace(first, memory_bytes=3000),), (replace(first, variants=(0,)), replace(first, index=1))]
    for event in [started(), *(ev.PlanMade(1.0, groups) for groups in plans)]:
        history.add(event)
        lines.add(event)
    told = [line for line in file.getvalue().splitlines() if line.startswith("array")]
    assert [line.partition(" member")[0] for line in told] == ["array 0: 2", "array 0: 1", "array 1: 2"]


def test_where_an_array_trains_is_told_when_it_begins_there() -> None:
    placed = ev.ArrayPlaced(0.0, 0, "process 123", (1,), 2)
    moved = [placed, replace(placed, slots=(), complete=False), replace(placed, worker="process 124")]
    found = [line for line in lines([started(), planned((0, 1, 2)), *moved]) if " on process" in line]
    assert found == ["array 0: on process 123", "array 0: on process 124"]
