"""The Workbench with real runs in this process: train, wait, inspect, export, check, take home, come back."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from ui.bench import Make

import hfta_nb as hfta
from hfta_nb import events as ev
from hfta_nb.errors import HftaError, StoreError, StudyError
from hfta_nb.study import Study, saved_runs
from hfta_nb.study.executors import attaching
from hfta_nb.ui import Workbench, static
from tests.executors.watching import DEADLINE_S
from tests.polling import eventually


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> list[tuple[dict[str, Any], str | None, bool]]:
    """What is displayed in cells: bundle, display id, whether it replaces what was there."""
    found: list[tuple[dict[str, Any], str | None, bool]] = []
    monkeypatch.setattr(static, "_publish", lambda bundle, identity, update: found.append((bundle, identity, update)))
    return found


@pytest.fixture
def ran(make: Make, published: Any) -> Workbench:
    """A Workbench after a run of two members."""
    bench = make(executor="inline", epochs=2)
    bench.run()
    return bench


def test_run_waits_and_shows_picture_and_table(ran: Workbench, published: list[Any]) -> None:
    assert ran.state == "finished"
    assert ran.bar.status.startswith("finished; best #1 lr=0.01, width=8: val accuracy 0.")
    assert [(sorted(bundle), identity) for bundle, identity, _ in published] == [
        (["image/png", "text/plain"], None),
        (["text/html", "text/plain"], None),
    ]
    assert published[0][0]["image/png"].startswith(b"\x89PNG")
    assert 'class="hfta-static"' in published[1][0]["text/html"]
    assert "mlp on digits, 2 members, complete; saved in " in published[1][0]["text/plain"]
    assert [row["id"] for row in ran.leaderboard.table["rows"]] == list(ran.study.results().index)
    assert ran.live._state.history.state == ev.COMPLETE


def test_a_run_too_short_to_have_measured_its_speed_measures_on_request(make: Make, published: Any) -> None:
    bench = make(executor="inline", data="iris", grid={"lr": [1e-3, 1e-2]}, epochs=1)
    bench.run()
    view = bench.train_view
    assert view.measure_box.layout.display == ""
    with pytest.raises(StudyError, match="no array's speed was measured"):
        bench.study.speedup()
    before = {m.id: m.curves["val_loss"].values for m in bench.history.members.values()}
    view.measure_button.click()
    eventually(lambda: view.measure_box.layout.display == "none", "the speed to be measured", DEADLINE_S)
    assert any("as fast as one after another" in text for text in view.progress.facts["details"])
    bench.study.reload()
    assert bench.study.speedup()["members"]["all"] == 2
    assert {m.id: m.curves["val_loss"].values for m in bench.history.members.values()} == before
    assert bench.state == "finished"


def test_exports_lie_in_the_run_s_directory(ran: Workbench) -> None:
    path = ran.export_csv()
    assert path.parent == ran.study.directory
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert [int(row["member"]) for row in rows] == list(ran.study.results().index)
    assert 'download="leaderboard.csv" href="data:text/csv;base64,' in ran.results.note.value
    picture = ran.export_png()
    assert picture.parent == ran.study.directory
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_code_cell_reproduces_the_run(ran: Workbench) -> None:
    source = ran.code()
    assert ran.results.code_box.code == source
    names: dict[str, Any] = {}
    exec(compile(source, "cell", "exec"), names)  # noqa: S102 (it is what a person would run)
    again = names["study"].results()
    mine = ran.study.results()
    assert again["val_loss"].to_list() == pytest.approx(mine["val_loss"].to_list(), abs=1e-6)


def test_a_member_is_taken_home(ran: Workbench) -> None:
    ran.leaderboard._handle_custom_msg({"kind": "take", "id": 1}, [])
    assert isinstance(ran.taken, nn.Module)
    assert "member_1.safetensors" in ran.results.code_box.code
    data = hfta.data.load("digits")
    with torch.no_grad():
        right = (ran.taken(data.x_validation).argmax(1) == data.y_validation).double().mean().item()
    assert right == pytest.approx(ran.study.member(1).metrics["val_accuracy"], abs=1e-6)


def test_the_check_against_serial_comes_to_the_leaderboard(ran: Workbench) -> None:
    ran.leaderboard.selected = [0, 1]
    handle = ran.check()
    assert handle.wait(DEADLINE_S) == ev.COMPLETE
    assert "#0: equal to training alone; largest difference " in ran.results.note.value
    assert "#1: equal" in ran.results.note.value
    assert ran.leaderboard.table["columns"][-1]["key"] == "check"
    assert all(row["cells"][-1].startswith("equal, ") for row in ran.leaderboard.table["rows"])
    assert ran.state == "finished"
    ran.check([99]).wait(DEADLINE_S)
    assert "The check failed. " in ran.results.note.value
    assert ran.state == "finished"  # the run itself is as it was


def test_outputs_of_a_displayed_workbench_are_filled_when_a_run_ends(make: Make, published: list[Any]) -> None:
    bench = make(executor="inline", epochs=1)
    bench._persistence.displayed()
    places = [identity for _, identity, _ in published]
    assert len(set(places)) == 2
    assert "Run this cell again to have it back." in published[1][0]["text/html"]
    assert published[1][0]["text/plain"] == ""
    bench.train()
    bench.handle.wait(DEADLINE_S)
    updates = [(sorted(bundle), identity) for bundle, identity, update in published if update]
    begun = [(["text/plain"], places[0]), (["text/html", "text/plain"], places[1])]
    assert updates == [*begun, (["image/png", "text/plain"], places[0]), (["text/html", "text/plain"], places[1])]
    before = len(published)
    bench._persistence.displayed()  # once more
    assert [sorted(b) for b, _, _ in published[before:]] == [["image/png", "text/plain"], ["text/html", "text/plain"]]


def test_a_run_that_was_waited_for_is_in_both_cells(make: Make, published: list[Any], monkeypatch: Any) -> None:
    bench = make(executor="inline", epochs=1)
    bench._persistence.displayed()
    place = published[-1][1]
    monkeypatch.setattr(static, "_cell", lambda: "another one")
    bench.run()
    assert bench.bar.reveal  # the page scrolls from the last cell to where the run is to be watched
    shown = [
        (identity, "Reattach" in bundle["text/html"]) for bundle, identity, _ in published[2:] if "text/html" in bundle
    ]
    assert shown == [(place, True), (None, False), (place, True)]


def test_where_it_is_displayed_in_the_cell_that_waits_the_run_is_shown_once(
    make: Make, published: list[Any], monkeypatch: Any
) -> None:
    monkeypatch.setattr(static, "_cell", lambda: 3)
    bench = make(executor="inline", epochs=1)
    bench._persistence.displayed()
    bench.run()
    assert [identity for bundle, identity, _ in published if "image/png" in bundle] == [published[0][1]]


def test_reattach_to_a_finished_run(ran: Workbench) -> None:
    back = Workbench.reattach(ran.study.directory, executor="inline")
    assert back.state == "finished"
    assert back.define.definition().grid == ran.define.definition().grid
    assert back.leaderboard.table == ran.leaderboard.table
    assert back.live._state.history.members[1].epoch == 2
    assert back.bar.directory == str(ran.study.directory)
    assert isinstance(back.take(0), nn.Module)
    back.close()


def test_stop_reattach_and_resume(make: Make, published: list[Any]) -> None:
    bench = make(executor="inline", epochs=2000)
    bench.train()
    eventually(lambda: bench.history.members and bench.history.members[0].epoch >= 1)
    bench.stop()
    eventually(lambda: bench.train_view.progress.facts["state"] == "stopped")
    reached = bench.history.members[0].epoch
    assert 0 < bench.train_view.progress.facts["fraction"] < 1
    back = Workbench.reattach(bench.study.directory, executor="inline")
    assert back.state == "stopped"
    assert not back.train_view.buttons["resume"].disabled
    back.train_view.buttons["resume"].click()
    eventually(lambda: back.history.members[0].epoch > reached)
    assert back.state == "running"
    assert back.live.running
    back.stop()
    eventually(lambda: back.state == "stopped")
    back.close()


def test_reattach_to_a_run_that_is_on_follows_and_controls_it(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attaching, "LOOK_INTERVAL_S", 0.05)
    bench = make(executor="inline", epochs=20_000)
    bench.train()
    eventually(lambda: bench.history.members and bench.history.members[0].epoch > 2)
    back = Workbench.reattach(bench.study.directory, executor="inline")
    eventually(lambda: back.state == "running")
    assert back.live.running
    back.train_view.buttons["pause"].click()
    eventually(lambda: bench.state == back.state == "paused")
    last = Workbench.reattach(bench.study.directory, executor="inline")
    assert last.state == "paused"
    last.train_view.buttons["resume"].click()
    eventually(lambda: bench.state == back.state == last.state == "running")
    back.stop(1)
    eventually(lambda: bench.history.members[1].state == "STOPPED")
    back.train_view.buttons["stop"].click()
    eventually(lambda: bench.state == back.state == last.state == "stopped")
    for one in (back, last):
        one.close()


def test_figures_are_drawn_as_they_are_chosen(ran: Workbench) -> None:
    box = ran.results.figures
    assert not box.kind.disabled
    assert box.image.layout.display == "none"
    for kind in ("slices", "pareto"):
        box.kind.value = kind
        assert box.note.value == ""
        assert bytes(box.image.value).startswith(b"\x89PNG")
    assert box.second.options == ("parameters", "time_s", "memory_bytes")
    before = bytes(box.image.value)
    box.second.value = "time_s"
    assert bytes(box.image.value) != before
    box.kind.value = "contour"  # of one axis
    assert "only one axis varies" in box.note.value
    assert box.image.layout.display == "none"
    box.kind.value = "none"
    assert (box.note.value, box.again.layout.display) == ("", "none")


def test_reattach_to_a_run_whose_process_died(make: Make, published: Any, tmp_path: Path) -> None:
    bench = make(executor="inline", epochs=2000)
    bench.train()
    eventually(
        lambda: bench.study.store.has_checkpoint or (bench.history.members and bench.history.members[0].epoch > 2)
    )
    bench.pause()  # leaves a checkpoint
    eventually(lambda: bench.state == "paused")
    assert [run.running for run in saved_runs(bench.study.directory.parent)] == [True]
    left = shutil.copytree(bench.study.directory, tmp_path / "left")  # whose lock nobody holds
    assert [run.directory for run in saved_runs(tmp_path)] == [left]
    back = Workbench.reattach(left, executor="inline")
    assert back.state == "interrupted"
    assert "the process that trained it ended before the run did" in back.train_view.failure.value
    assert back.train_view.carry_on.layout.display == ""
    back.close()
    bench.stop()
    eventually(lambda: bench.state == "stopped")


def test_a_run_is_deleted_with_all_that_the_workbench_has_written(ran: Workbench) -> None:
    directory = ran.study.directory
    ran.export_csv()
    ran.export_png()
    ran.take(1)
    box = ran.results.figures
    for kind in ("slices", "pareto"):
        box.kind.value = kind
        assert box.save() is not None
    ran.leaderboard.arranged = {"order": ["axis:lr"], "hidden": {}, "widths": {}}
    written = {path.name for path in directory.iterdir()}
    assert {"leaderboard.csv", "curves.png", "member_1.safetensors", "columns.json", "figure_slices.png"} <= written
    ran.close()
    hfta.delete_run(directory)
    assert not directory.exists()


def test_reattach_where_there_is_nothing(tmp_path: Path) -> None:
    with pytest.raises(StoreError):
        Workbench.reattach(tmp_path)


def test_a_failing_run_raises_where_it_is_waited_for(
    make: Make, published: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make(executor="inline")

    def boom(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(Study, "run", boom)
    with pytest.raises(HftaError, match="no such kernel"):
        bench.run()
    assert bench.state == "failed"
    assert "no such kernel" in bench.train_view.failure.value


def test_a_second_run_in_a_given_directory_gets_its_own(make: Make, published: Any, tmp_path: Path) -> None:
    bench = make(executor="inline", epochs=1, directory=str(tmp_path / "first"))
    bench.run()
    bench.run()
    assert bench.study.directory == tmp_path / "first-2"
    assert (tmp_path / "first" / "study.sqlite").exists()


def test_static_table_is_text(ran: Workbench) -> None:
    run = ran.history.run
    assert run is not None
    evil = "<script>alert(1)</script>"
    ran.history.add(ev.RunChanged(9e9, ev.STOPPED, evil))
    bundle = static.table_bundle(ran.history)
    assert evil not in bundle["text/html"]
    assert evil in bundle["text/plain"]
