"""The list of runs in a Workbench: read in slices, chosen, compared, labelled, opened, deleted."""

from __future__ import annotations

import dataclasses
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from ui.bench import Make, Runs, improved, steps

import hfta_nb as hfta
from hfta_nb import events as ev
from hfta_nb.errors import StudyError
from hfta_nb.records import summaries
from hfta_nb.records.store import Store
from hfta_nb.ui import Workbench, run_list
from tests.cli.fake import whole_run


def written(folder: Path, *names: str, best: float = 0.875) -> None:
    """Runs that have ended, each begun a minute after the one before."""
    for place, name in enumerate(names):
        store = Store(folder / name)
        for event in whole_run():
            changed = dataclasses.replace(event, time_s=60.0 * place)
            if isinstance(changed, ev.MemberImproved):
                changed = dataclasses.replace(changed, value=best + place / 100)
            elif isinstance(changed, ev.EpochDone):
                reached = dict.fromkeys(changed.metrics, (best + place / 100,) * len(changed.variants))
                changed = dataclasses.replace(changed, metrics=reached)
            store.append(changed)


def cells(bench: Workbench, key: str) -> list[str]:
    table = bench.runs.table.table
    at = [column["key"] for column in table["columns"]].index(key)
    return [row["cells"][at] for row in table["rows"]]


def chosen(bench: Workbench, *names: str) -> None:
    rows = bench.runs.table.table["rows"]
    bench.runs.table.selected = [row["id"] for name in names for row in rows if Path(row["id"]).name == name]


@pytest.fixture
def bench(make: Make, tmp_path: Path) -> Workbench:
    """A Workbench whose folder has two runs, which it has read."""
    written(tmp_path / "hfta_runs", "first", "second")
    made = make()
    assert made.runs.section.head.summary == "2 runs"  # nothing is read before anybody looks
    assert made.runs.table.table["rows"] == []
    made.runs.section.head.unfolded = True
    return made


def test_the_line_says_what_is_there(make: Make, tmp_path: Path, runs: Runs) -> None:
    bench = make()
    line = bench.runs.section.head
    assert line.summary == "no runs yet"
    bench.train()
    written(tmp_path / "hfta_runs", "first", "second")
    runs.begins(bench)
    assert line.summary == "2 runs"
    runs.happens(steps(1.0), *improved(0.5, 0.75))
    runs.ends()
    assert line.summary == "2 runs, best val accuracy 0.8850 on digits in second"


def test_runs_in_the_list_are_those_of_the_folder(bench: Workbench, tmp_path: Path) -> None:
    assert cells(bench, "run") == ["second", "first"]
    assert cells(bench, "best") == ["val accuracy 0.8850", "val accuracy 0.8750"]
    assert cells(bench, "of") == ["cnn on digits"] * 2
    assert [row["open"] for row in bench.runs.table.table["rows"]] == ["Open", "Open"]
    shutil.rmtree(tmp_path / "hfta_runs" / "second")
    bench.runs.table._handle_custom_msg({"kind": "refresh"}, [])
    assert cells(bench, "run") == ["first"]


def test_runs_that_have_ended_are_read_once(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(_: Store) -> Any:
        raise AssertionError("read again")

    monkeypatch.setattr(summaries, "_outline_of", never)
    bench.runs.refresh()
    assert cells(bench, "run") == ["second", "first"]


def test_many_runs_are_read_in_slices(bench: Workbench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    waiting: list[Any] = []
    monkeypatch.setattr(type(bench._later), "has_loop", True)
    monkeypatch.setattr(bench._later, "after", lambda _, work: waiting.append(work))
    monkeypatch.setattr(run_list, "SLICE_S", 0.0)
    monkeypatch.setattr(run_list, "_DRAWN_EVERY_S", -1.0)
    written(tmp_path / "hfta_runs", "third")
    bench.runs.refresh()
    assert sorted(cells(bench, "run")) == ["first", "second", "third"]  # the latest is read first
    assert bench.runs.table.table["reading"] == 2
    bench.runs.refresh()  # takes the place of the pass before
    while waiting:
        waiting.pop(0)()
    assert (sorted(cells(bench, "run")), bench.runs.table.table["reading"]) == (["first", "second", "third"], 0)


def test_chosen_runs_are_drawn_and_compared(bench: Workbench) -> None:
    assert bench.runs.live is None
    chosen(bench, "second")
    assert bench.runs.live is None
    assert "Choose two or more runs" in bench.runs.note.value
    chosen(bench, "second", "first")
    live: Any = bench.runs.live
    assert (live.color_by, live.metric, len(live._state.history.members)) == ("run", "accuracy", 6)
    assert '<th scope="col">second</th><th scope="col">first</th>' in bench.runs.comparison.value
    assert "<td>best val accuracy</td><td>0.885</td><td>0.875</td>" in bench.runs.comparison.value
    swatches = [row["swatch"]["light"] for row in bench.runs.table.table["rows"]]
    layout = live._state.take(full=True)[0]["layout"]["axes"]
    assert swatches == next(axis["light"] for axis in layout if axis["name"] == "run")
    bench.runs.table.selected = []
    assert bench.runs._plot.layout.display == "none"
    assert bench.runs.comparison.value == ""


def test_tags_are_added_to_all_chosen_runs_and_a_note_to_one(bench: Workbench, tmp_path: Path) -> None:
    parts = bench.runs
    assert parts.tags.disabled
    assert parts.text.disabled
    chosen(bench, "first")
    parts.tags.value, parts.text.value = "mine, <b>", "a note"
    chosen(bench, "first", "second")
    assert (parts.tags.value, parts.text.value, parts.text.disabled) == ("", "", True)
    parts.tags.value = "both"
    assert cells(bench, "tags") == ["both", "mine, <b>, both"]
    assert cells(bench, "note") == ["", "a note"]
    assert parts.tags.value == "both"
    parts.tags.value = ""
    assert hfta.runs(tmp_path / "hfta_runs")["tags"].tolist() == ["", "mine, <b>"]
    assert "<b>" not in parts.note.value


def test_deleting_asks_and_leaves_no_choice(bench: Workbench, tmp_path: Path) -> None:
    parts, folder = bench.runs, tmp_path / "hfta_runs"
    (folder / "second" / "mine.txt").write_text("mine")
    chosen(bench, "first", "second")
    parts.delete.click()
    assert "Delete first and second?" in parts.question.value
    parts.confirm_box.children[2].click()
    assert parts.confirm_box.layout.display == "none"
    assert cells(bench, "run") == ["second", "first"]
    parts.delete.click()
    parts.confirm_box.children[1].click()
    assert cells(bench, "run") == ["second"]
    assert [Path(place).name for place in parts.table.selected] == ["second"]
    assert "deleted 1 run; " in parts.note.value
    assert "has other files in it" in parts.note.value
    assert sorted(path.name for path in folder.iterdir()) == ["second"]


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """A real run in the folder of a Workbench."""
    study = hfta.Study("mlp", {"lr": [1e-3]}, "iris", epochs=1, device="cpu", directory=tmp_path / "hfta_runs" / "real")
    for _ in study.run():
        pass
    return Path(study.directory)


def test_a_run_is_opened_and_the_list_stays(trained: Path, make: Make) -> None:
    bench = make()
    bench.runs.section.head.unfolded = True
    assert [row["open"] for row in bench.runs.table.table["rows"]] == ["Open"]
    bench.runs.table._handle_custom_msg({"kind": "open", "id": str(trained)}, [])
    assert bench.study.directory == trained
    assert bench.children[-1] is bench.runs.section
    assert bench.runs.section.head.unfolded
    assert [row["open"] for row in bench.runs.table.table["rows"]] == ["shown"]
    bench.runs.table._handle_custom_msg({"kind": "open", "id": "/nowhere"}, [])
    assert "no saved run here" in bench.runs.note.value


def test_a_run_in_progress_is_left_only_where_it_goes_on(trained: Path, make: Make, runs: Runs) -> None:
    bench = make(executor="inline")
    bench.train()
    runs.begins(bench)
    with pytest.raises(StudyError, match="a run is in progress; stop it first"):
        bench.restore(trained)
    runs.ends()
    goes_on = make()  # in a process of its own
    goes_on.train()
    runs.begins(goes_on)
    goes_on.restore(trained)
    assert goes_on.state == "finished"
    assert goes_on.study.directory == trained
    runs.happens(steps(1.0))  # of the run that goes on
    assert (goes_on.state, goes_on.history.progress == steps(1.0)) == ("finished", False)


def test_what_is_read_last_is_drawn_from_one_thread(bench: Workbench) -> None:
    thread = threading.Thread(target=bench.ended)
    thread.start()
    thread.join()
    assert cells(bench, "run") == ["second", "first"]
