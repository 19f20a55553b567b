"""`hfta-nb tune`: a study in a file is run, stopped, gone on with, and said no to."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import hfta_nb as hfta
from hfta_nb import events as ev
from hfta_nb.cli import main, run
from hfta_nb.cli.study_file import StudyFile, line_of
from hfta_nb.errors import HftaError
from hfta_nb.study import kept
from tests.pages.blocks import DOCS, blocks

FILE = """\
family = "mlp"
data = "iris"
epochs = 2
trials = 4
slots = 2
sampler = "random"
directory = "run"
device = "cpu"
strategy = "fixed"

[space]
lr = { low = 1e-3, high = 1e-1, log = true }
width = [8, 16]

[fixed]
optimizer = "sgd"
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(text: str = FILE, **changes: str) -> Path:
    for key, value in changes.items():
        text = re.sub(rf"^{key} = .*$", f"{key} = {value}", text, flags=re.M)
    path = Path("study.toml")
    path.write_text(text, encoding="utf-8")
    return path


def tune(*options: str) -> int:
    return main(["tune", "study.toml", "--threads", "1", *options])


def test_the_example_of_the_page_is_run(capsys: pytest.CaptureFixture[str]) -> None:
    [block] = [b for b in blocks(DOCS / "how_to/command_line.md") if b.language == "toml"]
    write(block.code)
    assert tune("--csv", "all.csv") == 0
    told = capsys.readouterr()
    assert told.err == ""
    assert "Workbench.reattach('hfta_runs/first')" in told.out
    assert "epoch 3/3" in told.out
    assert len(re.findall(r"^ *#\d +[A-Z]+ +[\d-]+ ", told.out, re.M)) == 6
    study = hfta.Study.load("hfta_runs/first")
    assert len(study.optuna.trials) == 6
    assert study.fixed == {"optimizer": "adam"}
    assert len(Path("all.csv").read_text().splitlines()) == 7
    # Again: there is nothing left to do.
    assert tune() == 0
    told = capsys.readouterr()
    assert "COMPLETE" in told.out
    assert "epoch 3/3" not in told.out


def test_the_same_command_goes_on(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    write(directory='"whole"')
    assert tune("--quiet") == 0
    path = write()
    study = StudyFile(str(path)).study()
    for event in study.run():
        if isinstance(event, ev.EpochDone):
            break
    capsys.readouterr()
    assert tune("--quiet") == 0
    whole, cut = hfta.Study.load("whole"), hfta.Study.load("run")
    assert [t.params for t in cut.optuna.trials] == [t.params for t in whole.optuna.trials]
    assert [t.value for t in cut.optuna.trials] == pytest.approx([t.value for t in whole.optuna.trials])


def test_a_run_that_is_stopped_names_the_command_that_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Stopped(run.Interrupts):
        def __enter__(self) -> run.Interrupts:
            self._control.stop()
            return super().__enter__()

    monkeypatch.setattr(run, "Interrupts", Stopped)
    write()
    assert tune() == 130
    assert "stopped; to resume: hfta-nb tune study.toml" in capsys.readouterr().out


def test_more_epochs_and_more_trials_are_trained_as_well() -> None:
    write()
    assert tune("--quiet") == 0
    write(epochs="3", trials="6")
    assert tune("--quiet") == 0
    study = hfta.Study.load("run")
    assert [t.state.name for t in study.optuna.trials] == ["COMPLETE"] * 6
    assert {m.epoch for m in study.history.members.values()} == {3}
    write(epochs="3", trials="7")
    assert tune("--quiet") == 0
    study = hfta.Study.load("run")
    assert len(study.optuna.trials) == len(study.history.members) == 7
    assert kept(StudyFile("study.toml").study()).done


def test_a_member_has_the_budget_that_the_file_gives_it() -> None:
    write("member_steps = 1\nmember_seconds = 600.0\nkeep_checkpoints = ['best', 'last']\n" + FILE)
    assert tune("--quiet") == 0
    study = hfta.Study.load("run")
    assert (study.member_steps, study.member_seconds) == (1, 600.0)
    assert study.member(0).checkpoints == ["best", "last"]
    assert {m.epoch for m in study.history.members.values()} == {1}


def test_a_trial_that_can_not_be_trained_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    space = "dropout = { low = 0.0, high = 1.5 }\n"
    write(re.sub(r"lr = .*\nwidth = .*\n", space, FILE), trials="5\nseed = 1", epochs="1")
    assert tune("--quiet") == 0
    told = capsys.readouterr().out
    [refused] = [line for line in told.splitlines() if "was not trained" in line]
    assert re.match(r"trial \d was not trained: mlp, #\d+ .*dropout probability has to be between 0 and 1", refused)
    assert len(hfta.Study.load("run").results()) == 4


def test_without_trials_it_is_a_grid() -> None:
    lines = [line for line in FILE.splitlines() if not line.startswith(("trials", "slots", "sampler", "directory"))]
    write("\n".join(lines).replace("{ low = 1e-3, high = 1e-1, log = true }", "[1e-3, 1e-2]"))
    assert tune("--quiet") == 0
    study = hfta.Study.load("hfta_runs/study")
    assert study.searcher is None
    assert len(study.results()) == 4


def test_axes_are_what_their_family_says() -> None:
    axes = ["width = { low = 8, high = 32, log = true }", "dropout = { low = 0, high = 1 }"]
    axes += ["depth = { low = 1, high = 3 }", "activation = ['relu', 'gelu']"]
    text = FILE.replace("width = [8, 16]", "\n".join(axes))
    study = StudyFile(str(write(text))).study()
    assert study.searcher is not None
    space: Any = study.searcher.space
    assert space["dropout"] == hfta.uniform(0, 1)
    assert space["width"].log
    assert list(space["depth"]) == [1, 2, 3]
    assert space["activation"] == ["relu", "gelu"]


WRONG = [
    ({}, "family", "study.toml: family: is missing"),
    ({"epochs": "0"}, "", r"study.toml: epochs \(line 3\): not a positive whole number; got 0"),
    ({"epochs": "'x'"}, "", r"study.toml: epochs \(line 3\): "),
    ({"family": "'mlpp'"}, "", r"study.toml: family \(line 1\): "),
    ({"family": "3"}, "", r"study.toml: family \(line 1\): not a name; got 3"),
    ({"data": "'irs'"}, "", r"study.toml: data \(line 2\): "),
    ({"sampler": "'tpee'"}, "", r"study.toml: sampler \(line 6\): unknown sampler; got 'tpee'"),
    ({"slots": "2\npruner = 'ashaa'"}, "", r"study.toml: pruner \(line 6\): unknown pruner"),
    ({"slots": "2\ntrails = 9"}, "", r"study.toml: trails \(line 6\): unknown key; .*did you mean trials\?"),
    ({"slots": "2\nmonitor = ['val_loss', 'size']"}, "", r"monitor \(line 6\): unknown metric; got 'size'"),
    ({"directory": "3"}, "", r"study.toml: directory \(line 7\): not the name of a directory; got 3"),
    ({"trials": "4\nspace = 3"}, "space", r"space \(line 5\): not a table; got 3"),
    ({"width": "8"}, "", r"study.toml: space.width \(line 13\): not an axis; got 8; .*belongs to \[fixed\]"),
    ({"width": "{ low = 8 }"}, "", r"study.toml: space.width.high \(line 13\): is missing"),
    ({"width": "{ min = 8 }"}, "", r"study.toml: space.width.min \(line 13\): unknown key; accepted: low, high"),
    ({"width": "{ low = 9, high = 8, log = true }"}, "", r"space.width \(line 13\): not an interval of whole numb"),
    ({"lr": "{ low = 1.0, high = 0.1 }"}, "", r"space.lr \(line 12\): the ends are not in order"),
    ({"lr": "{ low = 0.1, high = 1, log = 1 }"}, "", r"space.lr.log \(line 12\): not true or false; got 1"),
    ({"width": "[8]\nwidht = [8, 16]"}, "", r"study.toml: space.widht \(line 14\): .*did you mean width\?"),
    ({"optimizer": "'sgdd'"}, "", r"study.toml: fixed.optimizer \(line 16\): "),
    ({"optimizer": "'sgd'\nlr = 0.1"}, "", r"study.toml: fixed.lr \(line 17\): is given twice"),
    ({"epochs": "= 3"}, "", r"study.toml: not valid TOML: .*line 3"),
    ({"epochs": "[" * 50_000}, "", r"study.toml: not valid TOML: nested too deeply"),
    ({"epochs": "9" * 5_000}, "", r"study.toml: not valid TOML: Exceeds the limit"),
    ({"data": "1"}, "", r"study.toml: data \(line \d+\): not a name; got 1; accepted: a text"),
]


@pytest.mark.parametrize(("changes", "without", "message"), WRONG, ids=[row[2][:40] for row in WRONG])
def test_what_is_wrong_is_told_at_its_place(changes: dict[str, str], without: str, message: str) -> None:
    text = FILE
    if without == "family":
        text = text.replace('family = "mlp"\n', "")
    if without == "space":
        text = text[: text.index("[space]")]
    with pytest.raises(HftaError, match=message):
        StudyFile(str(write(text, **changes))).study()
    assert not Path("run").exists()


def test_a_file_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert tune() == 2
    assert "hfta-nb: error: study.toml: can't be read (No such file or directory)" in capsys.readouterr().err


def test_another_study_in_the_directory_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    write()
    assert tune("--quiet") == 0
    changed: list[tuple[dict[str, str], str]] = [
        ({"lr": "{ low = 1e-3, high = 1e-2, log = true }"}, "space.lr (line 12): was otherwise"),
        ({"optimizer": "'adam'"}, "fixed.optimizer (line 16): was otherwise when the study began; got 'adam'"),
        ({"sampler": "'tpe'"}, "sampler (line 6): was otherwise when the study began; got 'tpe'; accepted: 'random'"),
        ({"trials": "3"}, "trials (line 4): was otherwise when the study began; got 3; accepted: 4"),
        ({"epochs": "1"}, "epochs (line 3): fewer epochs than before; got 1; accepted: 2 or more"),
        ({"data": "'digits'"}, "data (line 2): was otherwise"),
    ]
    for changes, message in changed:
        write(**changes)
        capsys.readouterr()
        assert tune() == 2
        assert message in capsys.readouterr().err


def test_lines_are_found() -> None:
    text = "a = 1\n# b = 2\n[t]\nb.c = 2\n'd e' = { f = 1 }\n[t.u]\ng = 1\n"
    found = {keys: line_of(text, keys.split("/")) for keys in ("a", "b", "t/b/c", "t/d e/f", "t/u/g", "t/u", "x")}
    assert found == {"a": 1, "b": None, "t/b/c": 4, "t/d e/f": 5, "t/u/g": 7, "t/u": 6, "x": None}
