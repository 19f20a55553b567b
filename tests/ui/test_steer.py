"""What steers the selected members."""

from __future__ import annotations

from dataclasses import replace

import pytest
from run_events import folded, run_started
from ui.bench import Make, Runs

from hfta_nb import events as ev
from hfta_nb.errors import StudyError
from hfta_nb.ui import Workbench
from hfta_nb.ui.edits import marks
from hfta_nb.ui.leaderboard import table_of
from hfta_nb.ui.live_state import LiveState
from hfta_nb.ui.steer import NAMES, changes_of


def enabled(bench: Workbench, member: int) -> set[str]:
    """The buttons that can be pressed with a member selected, as the front end has it."""
    table = bench.leaderboard.table
    now = {row["id"]: row["now"] for row in table["rows"]}[member]
    return {action["name"] for action in table["actions"] if now in action["states"]}


def click(bench: Workbench, name: str, *members: int, text: str = "") -> None:
    """What the front end sends when a button is pressed."""
    message = {"kind": "steer", "name": name, "members": list(members), "text": text}
    bench.leaderboard._handle_custom_msg(message, [])


def asked(runs: Runs) -> list[tuple[str, object]]:
    return [(type(r).__name__, getattr(r, "variant", None)) for r in runs.requests]


def test_members_can_be_steered_while_a_run_is_on(make: Make, runs: Runs) -> None:
    bench = make()
    assert bench.leaderboard.table.get("actions", []) == []
    bench.train()
    runs.begins(bench)
    assert enabled(bench, 1) == NAMES - {"resume"}
    runs.ends()
    assert bench.leaderboard.table["actions"] == []
    click(bench, "stop", 1)
    assert "nothing is training" in bench.results.note.value


def test_each_button_asks_for_the_selected_members(make: Make, runs: Runs) -> None:
    bench = make()
    bench.train()
    runs.begins(bench)
    for name in ("pause", "stop", "pin", "unpin", "delete"):
        click(bench, name, 0, 1)
    kinds = ["Pause", "Stop", "Pin", "Pin", "Delete"]
    assert asked(runs) == [(kind, member) for kind in kinds for member in (0, 1)]
    assert [r.pinned for r in runs.requests if isinstance(r, ev.Pin)] == [True, True, False, False]
    assert "asked: delete #0, #1" in bench.results.note.value
    click(bench, "explode", 0)
    assert len(runs.requests) == 10


def test_values_are_set_and_cloned(make: Make, runs: Runs) -> None:
    bench = make()
    bench.train()
    runs.begins(bench)
    for name in ("set", "warm", "cold"):
        click(bench, name, 1, text="lr=3e-4, weight_decay=0.01")
    first, warm, cold = runs.requests
    assert isinstance(first, ev.Set)
    assert first.changes == {"lr": 3e-4, "weight_decay": 0.01}
    assert isinstance(warm, ev.Clone)
    assert isinstance(cold, ev.Clone)
    assert (warm.warm, cold.warm) == (True, False)
    assert cold.changes == first.changes
    click(bench, "set", 1, text="lr")
    assert len(runs.requests) == 3
    assert "lr=3e-4" in bench.results.note.value
    assert "hfta-error" in bench.results.note.value


def test_members_train_longer(make: Make, runs: Runs) -> None:
    bench = make()
    bench.train()
    runs.begins(bench)
    click(bench, "extend", 0, 1, text="5")
    assert [(r.epochs, r.variant) for r in runs.requests if isinstance(r, ev.Extend)] == [(5, 0), (5, 1)]
    click(bench, "extend", 0, text="0")
    assert "out of bounds" in bench.results.note.value


def test_a_paused_member_can_be_resumed_and_one_that_has_ended_only_cloned_from_the_start_or_deleted(
    make: Make, runs: Runs
) -> None:
    bench = make()
    bench.train()
    runs.begins(bench)
    runs.happens(ev.MemberChanged(3.0, 1, ev.PAUSED, "paused by request"))
    bench.refresh()
    assert "resume" in enabled(bench, 1)
    assert "pause" not in enabled(bench, 1)
    runs.happens(ev.MemberChanged(4.0, 1, ev.COMPLETE))
    bench.refresh()
    assert enabled(bench, 1) == {"delete", "cold", "extend"}
    click(bench, "cold", 1)
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


def test_a_deleted_member_leaves_table_curves_and_selection(make: Make, runs: Runs) -> None:
    """One that stayed selected would grey all curves, and have no row where it could be deselected."""
    bench = make()
    bench.train()
    runs.begins(bench)
    bench.leaderboard.selected = bench.live.selected = [1, 0]
    runs.happens(ev.MemberChanged(3.0, 1, ev.DELETED, "deleted by request"))
    bench.refresh()
    assert [row["id"] for row in bench.leaderboard.table["rows"]] == [0]
    assert bench.leaderboard.selected == bench.live.selected == [0]
    live = LiveState()
    live.seed(bench.history)
    message = live.take()
    assert message is not None
    assert [member["id"] for member in message[0]["layout"]["members"]] == [0]
    live.add(ev.MemberChanged(4.0, 0, ev.DELETED, "deleted by request"))
    message = live.take()
    assert message is not None
    assert message[0]["layout"]["members"] == []


def test_only_delete_asks(make: Make, runs: Runs) -> None:
    bench = make()
    bench.train()
    runs.begins(bench)
    asks = {action["name"]: action["question"] for action in bench.leaderboard.table["actions"] if action["question"]}
    assert list(asks) == ["delete"]
    assert "{members}" in asks["delete"]  # which the front end fills in


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
    assert "3 variants in 1 array of 3: differing in lr" in bench.plan_view.sentence.value
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


def test_table_and_curves_say_when_a_value_was_set_and_what_it_was() -> None:
    history = folded([run_started({"lr": [1e-3, 1e-2], "width": [8]})])
    assert "changed" not in [c["label"] for c in table_of(history)["columns"]]
    history.add(ev.MemberEdited(3.0, 1, "set", None, True, 2, 46, {"lr": 5e-3}, "by request"))
    history.add(ev.MemberEdited(4.0, 1, "set", None, True, 3, 69, {"lr": 1e-3, "weight_decay": 0.1}, "by request"))
    history.add(ev.MemberEdited(5.0, 0, "copied", 1, True, 4, 92, {"lr": 2e-3}))
    assert marks(history) == {
        0: [(4, "copy of #1, lr 0.001 \N{RIGHTWARDS ARROW} 0.002")],
        1: [
            (2, "lr 0.01 \N{RIGHTWARDS ARROW} 0.005"),
            (3, "lr 0.005 \N{RIGHTWARDS ARROW} 0.001, weight_decay 0.1"),
        ],
    }
    table = table_of(history)
    place = [c["label"] for c in table["columns"]].index("changed")
    cells = {row["id"]: row["cells"][place] for row in table["rows"]}
    assert cells == {0: "", 1: "lr 0.005 \N{RIGHTWARDS ARROW} 0.001, weight_decay 0.1 at ep 3"}
