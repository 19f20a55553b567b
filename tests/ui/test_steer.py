"""The row above the leaderboard that steers the selected members."""

from __future__ import annotations

from dataclasses import replace

import pytest
from run_events import run_started
from ui.bench import Make, Runs

from hfta_nb import events as ev
from hfta_nb.errors import StudyError
from hfta_nb.ui.live_state import LiveState
from hfta_nb.ui.steer import changes_of


def enabled(bench: object) -> set[str]:
    return {name for name, b in bench.results.steer.buttons.items() if not b.disabled}  # type: ignore[attr-defined]


def asked(runs: Runs) -> list[tuple[str, object]]:
    return [(type(r).__name__, getattr(r, "variant", None)) for r in runs.requests]


def test_the_row_is_there_while_a_run_is_on(make: Make, runs: Runs) -> None:
    bench = make()
    steer = bench.results.steer
    assert steer.layout.display == "none"
    bench.train()
    runs.begins(bench)
    assert steer.layout.display == ""
    assert enabled(bench) == {"extend"}
    assert steer.buttons["pause"].tooltip == "Not now: no member is selected"
    bench.leaderboard.selected = [1]
    assert steer.chosen.value == "with #1:"
    assert enabled(bench) == set(steer.buttons) - {"resume"}
    assert steer.buttons["resume"].tooltip == "Not now: the selected are running"
    runs.ends()
    assert steer.layout.display == "none"


def test_each_button_asks_for_the_selected_members(make: Make, runs: Runs) -> None:
    bench = make()
    bench.train()
    runs.begins(bench)
    bench.leaderboard.selected = [0, 1]
    steer = bench.results.steer
    for name in ("pause", "stop", "pin", "unpin", "delete"):
        steer.buttons[name].click()
    kinds = ["Pause", "Stop", "Pin", "Pin", "Delete"]
    assert asked(runs) == [(kind, member) for kind in kinds for member in (0, 1)]
    assert [r.pinned for r in runs.requests if isinstance(r, ev.Pin)] == [True, True, False, False]
    assert "asked: delete #0, #1" in bench.results.note.value


def test_values_are_set_and_cloned(make: Make, runs: Runs) -> None:
    bench = make()
    bench.train()
    runs.begins(bench)
    bench.leaderboard.selected = [1]
    steer = bench.results.steer
    steer.changes.value = "lr=3e-4, weight_decay=0.01"
    for name in ("set", "warm", "cold"):
        steer.buttons[name].click()
    first, warm, cold = runs.requests
    assert isinstance(first, ev.Set)
    assert first.changes == {"lr": 3e-4, "weight_decay": 0.01}
    assert isinstance(warm, ev.Clone)
    assert isinstance(cold, ev.Clone)
    assert (warm.warm, cold.warm) == (True, False)
    assert cold.changes == first.changes
    steer.changes.value = "lr"
    steer.buttons["set"].click()
    assert len(runs.requests) == 3
    assert "lr=3e-4" in steer.wrong.value


def test_one_or_all_train_longer(make: Make, runs: Runs) -> None:
    bench = make()
    bench.train()
    runs.begins(bench)
    steer = bench.results.steer
    steer.epochs.value = "5"
    steer.buttons["extend"].click()
    bench.leaderboard.selected = [1]
    steer.buttons["extend"].click()
    assert [(r.epochs, r.variant) for r in runs.requests if isinstance(r, ev.Extend)] == [(5, None), (5, 1)]


def test_a_paused_member_can_be_resumed_and_one_that_has_ended_only_cloned_cold_or_deleted(
    make: Make, runs: Runs
) -> None:
    bench = make()
    bench.train()
    runs.begins(bench)
    runs.happens(ev.MemberChanged(3.0, 1, ev.PAUSED, "paused by request"))
    bench.leaderboard.selected = [1]
    assert "resume" in enabled(bench)
    assert "pause" not in enabled(bench)
    runs.happens(ev.MemberChanged(4.0, 1, ev.COMPLETE))
    bench.refresh()
    assert enabled(bench) == {"delete", "cold", "extend"}
    bench.results.steer.buttons["cold"].click()
    assert asked(runs) == [("Clone", 1)]


def test_what_was_refused_is_shown(make: Make, runs: Runs) -> None:
    bench = make()
    bench.train()
    runs.begins(bench)
    runs.happens(ev.RequestRefused(3.0, "Clone", 1, "weights of another shape"))
    assert "hfta-error" in bench.results.note.value
    assert ">clone #1: weights of another shape<" in bench.results.note.value
    assert bench.bar.level != "bad"  # the run goes on
    runs.happens(ev.RequestRefused(3.0, "Clone", 1, "clone #1: has ended"))
    assert ">clone #1: has ended<" in bench.results.note.value


def test_another_run_begins_with_nobody_selected_and_no_figure(make: Make, runs: Runs) -> None:
    bench = make()
    bench.train()
    runs.begins(bench)
    bench.leaderboard.selected = bench.live.selected = bench.results.figures.linked.selected = [1]
    bench.results.figures.kind.value = "placements"
    assert bench.results.figures.note.value != ""
    runs.ends()
    bench.train()
    assert (bench.leaderboard.selected, bench.live.selected, bench.results.figures.linked.selected) == ([], [], [])
    assert bench.results.figures.kind.value == "none"
    assert bench.results.figures.note.value == ""


def test_a_deleted_member_leaves_the_table(make: Make, runs: Runs) -> None:
    bench = make()
    bench.train()
    runs.begins(bench)
    runs.happens(ev.MemberChanged(3.0, 1, ev.DELETED, "deleted by request"))
    bench.refresh()
    assert [row["id"] for row in bench.leaderboard.table["rows"]] == [0]


def test_nothing_is_asked_of_a_run_that_is_over(make: Make, runs: Runs) -> None:
    bench = make()
    with pytest.raises(StudyError, match="nothing is training"):
        bench.steer("pause", {"members": [0]})


def test_typed_values() -> None:
    assert changes_of("lr=3e-4; nesterov=true, width=8") == {"lr": 3e-4, "nesterov": True, "width": 8}
    assert changes_of("") == {}
    with pytest.raises(StudyError, match="for example lr=3e-4"):
        changes_of("fast")


def test_a_clone_is_counted_and_shown_everywhere(make: Make, runs: Runs) -> None:
    """The study in the notebook does not know of it: its worker has made it."""
    bench = make()
    bench.train()
    runs.begins(bench)
    run = bench.history.run
    assert run is not None
    clone = ev.VariantRecord(2, {"lr": 2e-3, "width": 8}, 0)
    [group] = bench.study.groups()
    runs.happens(
        ev.MemberEdited(3.0, 2, "cloned", 1, True, 1, 23, {"lr": 2e-3}, "in the same array"),
        replace(run, variants=(*run.variants, clone), resumed=True),
        ev.PlanMade(3.0, (replace(group, variants=(0, 1, 2)),)),
        ev.MemberChanged(3.0, 2, ev.RUNNING),
    )
    bench.refresh()
    assert bench.bar.status == "training 3 variants"
    assert "3 variants in 1 array of 3: fused over lr" in bench.plan_view.sentence.value
    assert [row["id"] for row in bench.leaderboard.table["rows"]] == [0, 1, 2]


def test_curves_are_named_by_the_values_that_members_have_now() -> None:
    live = LiveState()
    live.add(run_started({"lr": [1e-3, 1e-2]}))
    live.take()
    live.add(ev.MemberEdited(3.0, 1, "set", None, True, 1, 23, {"lr": 5e-3}, "by request"))
    message = live.take()
    assert message is not None
    assert not message[0]["full"]
    assert [member["label"] for member in message[0]["layout"]["members"]] == ["#0 lr=0.001", "#1 lr=0.005"]
    assert live.take() is None
