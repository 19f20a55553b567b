"""10,000 members: tables, progress and pictures take time in proportion, and draw no more than can be seen."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import hfta_nb as hfta
from hfta_nb import events as ev
from hfta_nb import figures
from hfta_nb.cli.displays import Lines, LiveDisplay
from hfta_nb.cli.progress import RunProgress
from hfta_nb.figures import colors
from hfta_nb.records.history import History
from hfta_nb.records.pace import SHARE, Pace
from hfta_nb.study import fitting, running
from hfta_nb.ui import static
from hfta_nb.ui.leaderboard import MOST_ROWS, table_of
from hfta_nb.ui.live_state import LiveState

MANY = 10_000


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Quadratic work takes a minute or more."""
    begin = time.process_time()
    yield
    assert time.process_time() - begin < seconds


def played(study: hfta.Study) -> Iterator[ev.Event]:
    """A run of three epochs, without the training."""
    yield running.started(study, False)
    yield ev.PlanMade(0.0, tuple(group.record() for group in study.plan_groups))
    for group in study.plan_groups:
        ids = tuple(group.ids)
        yield from (ev.MemberChanged(0.0, i, ev.RUNNING) for i in ids)
        for epoch in (1, 2, 3):
            losses = tuple(1.0 / (1 + i % 7) for i in ids)
            yield ev.StepsDone(1.0, group.index, epoch * 9, 27, float(epoch), 1e5, epoch * 1.0, 5.0, ids, losses)
            yield ev.EpochDone(1.0, group.index, epoch, epoch * 9, ids, dict.fromkeys(study.metrics, losses))
            yield from (ev.MemberImproved(1.0, i, epoch, study.monitor, i / MANY) for i in ids)


@pytest.fixture(
    scope="module", params=[pytest.param(1, marks=pytest.mark.long), MANY // 4], ids=["one array", "2,500 arrays"]
)
def study(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> hfta.Study:
    grid: dict[str, Any] = {"lr": [1e-4 * (1 + i) for i in range(MANY // 4)], "weight_decay": [0.0, 0.1, 0.2, 0.3]}
    made = hfta.Study("mlp", grid, "iris", epochs=3, device="cpu", directory=tmp_path_factory.mktemp("scale") / "run",
                      capacity=MANY // request.param)  # fmt: skip
    for event in played(made):
        made.run_state.history.add(event)
    return made


@pytest.fixture
def history(study: hfta.Study) -> History:
    return study.run_state.history


def test_results_and_progress_take_time_in_proportion(study: hfta.Study, history: History, tmp_path: Path) -> None:
    with within(10.0):
        table = study.results()
        assert len(table) == MANY
        assert len(repr(table)) < 20_000
        assert len(table._repr_html_()) < 50_000
        assert len(study._repr_html_()) < 5_000
        study.export(tmp_path / "all.csv")
        assert study.best().variant.id == history.leaderboard()[0].id
        for _ in range(20):
            assert len(fitting.words_of(history)) < 200
            fitting.share(history)


def test_the_terminals_display_does_too(study: hfta.Study, history: History) -> None:
    for kind in (LiveDisplay, Lines):
        out = io.StringIO()
        shown: Any = kind(Console(file=out, width=120, force_terminal=kind is LiveDisplay), lambda: history)
        with within(20.0), shown:
            for event in played(study):
                shown.add(event)
            for variant in range(MANY):
                history.members[variant].state, history.members[variant].reason = ev.DIVERGED, "loss is not finite"
                shown.add(ev.MemberChanged(2.0, variant, ev.DIVERGED))
        assert out.getvalue().count("loss is not finite") <= 40
        assert out.getvalue().count("only counted") == 1
        assert len(out.getvalue().splitlines()) < 1_000
    for event in played(study):
        history.add(event)
    for member in history.members.values():
        member.reason = ""


def test_the_live_view_draws_some_and_says_so(study: hfta.Study, history: History) -> None:
    state = LiveState()
    state.choose([77])
    with within(30.0):
        state.seed(history)
        header, buffers = state.take(full=True)  # type: ignore[misc]
        drawn = [m["id"] for m in header["layout"]["members"]]
        best = [m.id for m in history.leaderboard()[:20]]
        assert len(drawn) <= 1.5 * colors.MOST_DRAWN + 1
        assert {77, *best} <= set(drawn)
        assert header["layout"]["of"] == MANY
        assert len(json.dumps(header)) + sum(map(len, buffers)) < 2_000_000
        assert not state.choose([77, best[0]])
        group = study.plan_groups[0]
        losses = tuple(0.5 for _ in group.ids)
        state.add(ev.EpochDone(2.0, group.index, 4, 36, tuple(group.ids), dict.fromkeys(study.metrics, losses)))
        header, _ = state.take()  # type: ignore[misc]
        assert not header["full"]
        assert {owner for owner, *_ in header["curves"]} <= set(drawn)
        other = next(i for i in range(MANY) if i not in drawn)
        assert state.choose([other])
        header, _ = state.take()  # type: ignore[misc]
        assert other in [m["id"] for m in header["layout"]["members"]]


def test_tables_and_pictures_are_bounded(history: History) -> None:
    with within(20.0):
        table = table_of(history)
        assert (len(table["rows"]), table["of"]) == (MOST_ROWS, MANY)
        assert "9950 more members" in static.table_bundle(history)["text/plain"].replace(",", "")
        figure = figures.curves(history, history.metrics[0])
        assert len(figure.axes[0].lines) < 4 * colors.MOST_DRAWN
        assert f"of {MANY} members" in figure.axes[0].get_ylabel() + figure.axes[0].get_title()


def test_all_are_drawn_where_they_are_few(history: History) -> None:
    few = History()
    few.members = {i: history.members[i] for i in range(colors.MOST_DRAWN)}
    assert [m.id for m in colors.drawn(few)] == list(range(colors.MOST_DRAWN))


def test_a_slow_view_is_drawn_seldom() -> None:
    now = [0.0]
    clock: Callable[[], float] = lambda: now[0]  # noqa: E731
    pace, drawn = Pace(0.2, clock), 0
    while now[0] < 100.0:
        if pace.due:
            drawn += 1
            with pace.drawing():
                now[0] += 0.5
        now[0] += 0.1
    assert drawn * 0.5 <= 100.0 * SHARE + 1.0
    quick = Pace(0.2, clock)
    with quick.drawing():
        now[0] += 0.001
    now[0] += 0.1
    assert not quick.due
    now[0] += 0.1
    assert quick.due


def test_progress_knows_what_is_done(study: hfta.Study, history: History) -> None:
    progress = RunProgress(lambda: history)
    for event in played(study):
        progress.add(event)
    assert {group.state for group in progress.groups.values()} == {"active"}
    last = study.plan_groups[-1]
    for variant in reversed(last.ids):
        history.members[variant].state = ev.COMPLETE
        progress.add(ev.MemberChanged(2.0, variant, ev.COMPLETE))
    assert progress.groups[last.index].state == "done"
    for variant in last.ids:
        history.members[variant].state = ev.RUNNING
