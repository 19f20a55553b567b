"""`hfta-nb runs`, `attach` and `stop`, and `hfta_nb.runs` with what labels, compares and deletes them."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from pathlib import Path

import pytest

import hfta_nb as hfta
from hfta_nb import errors, study
from hfta_nb import events as ev
from hfta_nb.cli import attach, main
from hfta_nb.errors import StoreError, StudyError
from hfta_nb.figures import png
from hfta_nb.records.store import Store
from tests.cli.fake import whole_run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three runs: the first complete, then one that nobody is at any more, and a folder that is none."""
    whole = hfta.Study("mlp", {"lr": [1e-2, 1e-3]}, "iris", epochs=2, device="cpu", directory=tmp_path / "first")
    for _ in whole.run():
        pass
    cut = Store(tmp_path / "cut")
    for event in list(whole_run())[:-1]:
        cut.append(event)
    (tmp_path / "other").mkdir()
    return tmp_path


def test_runs_of_a_folder_are_a_table(folder: Path) -> None:
    table = hfta.runs(folder)
    assert list(table.index) == ["first", "cut"]  # the last one to begin comes first
    first = table.loc["first"]
    assert (first["state"], first["members"], first["epochs"], first["axes"]) == (ev.COMPLETE, 2, 2, "lr")
    best = hfta.Study.load(folder / "first").history.leader
    assert best is not None
    assert first["best"] == best.at_best(first["monitor"])
    assert table.loc["cut", "state"] == ev.INTERRUPTED
    assert hfta.Study.load(table.loc["first", "directory"]).history.state == ev.COMPLETE
    assert list(hfta.runs(folder / "other").columns) == list(table.columns)
    with pytest.raises(hfta.HftaError, match=r"nowhere.*can.t be read.*give the folder in which runs are"):
        hfta.runs(folder / "nowhere")


def test_they_are_listed_in_a_terminal(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", str(folder)]) == 0
    first, cut = capsys.readouterr().out.splitlines()[-2:]
    assert cut.startswith("cut")
    assert ev.INTERRUPTED in cut
    assert "COMPLETE" in first
    assert first.rstrip().endswith("mlp on iris (lr)")
    assert main(["runs", str(folder / "other")]) == 0
    assert capsys.readouterr().out == "no runs\n"
    assert main(["runs", str(folder / "nowhere")]) == 2
    assert "can't be read" in capsys.readouterr().err


def test_a_run_has_tags_and_a_note(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hfta.annotate(folder / "first", ["baseline", " to do ", "baseline"], note="before")
    hfta.annotate(folder / "first", note="after")  # leaves the tags
    table = hfta.runs(folder)
    assert table.loc["first", ["tags", "note"]].tolist() == ["baseline, to do", "after"]
    assert table.loc["cut", ["tags", "note"]].tolist() == ["", ""]
    hfta.annotate(folder / "first", tags=[])
    assert hfta.runs(folder).loc["first", ["tags", "note"]].tolist() == ["", "after"]
    copy = hfta.Study.load(folder / "first").save(folder / "copy")
    assert hfta.runs(folder).loc[copy.name, "note"] == "after"
    main(["runs", str(folder)])
    assert "after" in capsys.readouterr().out
    for wrong in ("baseline", ["a, b"], [""], [3]):
        with pytest.raises(StudyError, match="tags: can't be tags"):
            hfta.annotate(folder / "first", wrong)  # type: ignore[arg-type]
    with pytest.raises(StoreError, match="no saved run here"):
        hfta.annotate(folder / "other", ["x"])


def test_what_can_be_read_of_a_damaged_run_is_listed(folder: Path) -> None:
    hfta.annotate(folder / "first", ["mine"])
    with contextlib.closing(sqlite3.connect(folder / "first" / "study.sqlite")) as connection, connection:
        connection.execute("UPDATE events SET sum = 'x' WHERE number = 1")
    (folder / "none").mkdir()
    (folder / "none" / "study.sqlite").write_bytes(b"SQLite format 3\0" + bytes(9000))
    with pytest.warns(errors.StoreWarning, match="can't be read"):
        table = hfta.runs(folder)
    assert table.loc["first", ["state", "family", "tags"]].tolist() == ["UNREADABLE", "mlp", "mine"]
    assert table.loc["none", ["state", "family", "tags"]].tolist() == ["UNREADABLE", "", ""]
    hfta.delete_run(folder / "none")
    assert not (folder / "none").exists()


def test_runs_are_compared_by_what_differs_and_their_best(folder: Path) -> None:
    second = hfta.Study("mlp", {"lr": [0.1], "width": [4]}, "iris", epochs=1, device="cpu", directory=folder / "2")
    for _ in second.run():
        pass
    table = hfta.compare([folder / "first", folder / "2"])
    assert list(table.columns) == ["first", "2"]
    assert table.loc["best val_accuracy"].tolist() == hfta.runs(folder).loc[["first", "2"], "best"].tolist()
    assert table.loc["axis lr"].tolist() == ["0.01, 0.001", "0.1"]
    assert table.loc["axis width"].tolist() == ["default", "4"]
    assert table.loc["epochs"].tolist() == [2, 1]
    assert not {"family", "data", "dtype", "axis seed"} & set(table.index)
    merged = study.together([folder / "first", folder / "2"])
    assert [m.config["run"] for m in merged.members.values()] == ["first", "first", "2"]
    starts = [m.curves["val_loss"].times[0] - merged.begin_s for m in merged.members.values()]
    assert all(0 <= start < 60 for start in starts)
    assert png(hfta.overlay([folder / "first", folder / "2"], "val_loss")).startswith(b"\x89PNG")
    with pytest.raises(StudyError, match="not enough runs"):
        hfta.compare([folder / "first"])
    with pytest.raises(StoreError, match="no saved run here"):
        hfta.compare([folder / "first", folder / "other"])


def test_a_run_is_deleted_and_nothing_else(folder: Path) -> None:
    place = folder / "first"
    (place / "leaderboard.csv").write_text("member")
    (place / "notes.md").write_text("mine")
    (place / "weights" / "mine.pt").write_text("mine")
    (folder / "link").symlink_to(place)
    before = sorted(place.rglob("*"))
    with pytest.raises(StoreError, match=r"has other files in it.*got.*notes.md, weights/mine.pt.*move them"):
        hfta.delete_run(place)
    assert sorted(place.rglob("*")) == before
    (place / "notes.md").unlink()
    (place / "weights" / "mine.pt").unlink()
    with pytest.raises(StoreError, match="is a link"):
        hfta.delete_run(folder / "link")
    for other in (folder / "other", folder, folder / "nowhere"):
        with pytest.raises(StoreError, match="no saved run here"):
            hfta.delete_run(other)
    hfta.delete_run(place)
    assert sorted(path.name for path in folder.iterdir()) == ["cut", "link", "other"]


@pytest.mark.parametrize("command", ["attach", "stop"])
def test_what_nobody_runs_is_neither_watched_nor_stopped(
    command: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, str(folder / "first")]) == 2
    assert "nobody runs this study now; hfta-nb results" in capsys.readouterr().err.replace("\n", " ")
    assert main([command, str(folder / "nowhere")]) == 2


def test_a_run_is_watched_left_and_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    endless = hfta.Study("mlp", {"lr": [1e-2]}, "iris", epochs=100_000, device="cpu", directory=tmp_path / "run")
    begun = threading.Event()

    def run() -> None:
        for event in endless.run():
            if isinstance(event, ev.EpochDone):
                begun.set()

    thread = threading.Thread(target=run)
    thread.start()
    assert begun.wait(60)
    with monkeypatch.context() as patched:

        def interrupted(*_: object) -> None:
            raise KeyboardInterrupt

        patched.setattr(attach.results, "follow", interrupted)
        assert main(["attach", str(tmp_path / "run")]) == 0
    assert "the run goes on; to stop it: hfta-nb stop" in capsys.readouterr().out
    hfta.annotate(tmp_path / "run", ["now"])
    assert hfta.runs(tmp_path).loc["run", ["state", "tags"]].tolist() == [ev.RUNNING, "now"]
    with pytest.raises(StoreError, match=r"the run is in progress.*stop it first"):
        hfta.delete_run(tmp_path / "run")
    assert main(["stop", str(tmp_path / "run")]) == 0
    assert "to resume: hfta-nb run --resume" in capsys.readouterr().out
    thread.join(60)
    assert endless.history.state == ev.STOPPED
