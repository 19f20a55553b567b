"""`hfta-nb runs`, `attach` and `stop`, and `hfta_nb.runs`."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import hfta_nb as hfta
from hfta_nb import events as ev
from hfta_nb.cli import attach, main
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
    assert list(table.index) == ["cut", "first"]
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
    cut, first = capsys.readouterr().out.splitlines()[-2:]
    assert cut.startswith("cut")
    assert ev.INTERRUPTED in cut
    assert "COMPLETE" in first
    assert first.rstrip().endswith("mlp on iris (lr)")
    assert main(["runs", str(folder / "other")]) == 0
    assert capsys.readouterr().out == "no runs\n"
    assert main(["runs", str(folder / "nowhere")]) == 2
    assert "can't be read" in capsys.readouterr().err


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
    study = hfta.Study("mlp", {"lr": [1e-2]}, "iris", epochs=100_000, device="cpu", directory=tmp_path / "run")
    begun = threading.Event()

    def run() -> None:
        for event in study.run():
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
    assert hfta.runs(tmp_path).loc["run", "state"] == ev.RUNNING
    assert main(["stop", str(tmp_path / "run")]) == 0
    assert "to resume: hfta-nb run --resume" in capsys.readouterr().out
    thread.join(60)
    assert study.history.state == ev.STOPPED
