"""Reopening a saved run: which one is offered, how it is shown, and that it restores its definition."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn
from ui.bench import Make, Runs, press

import hfta_nb as hfta
from hfta_nb.errors import FamilyError, StudyError
from hfta_nb.records.store import Store
from hfta_nb.search.grid import Grid
from hfta_nb.study import Study, saved_runs
from hfta_nb.ui import Workbench, saved_run, static
from hfta_nb.ui.offer import described
from hfta_nb.ui.reopen import loaded
from hfta_nb.ui.saved_run import arguments_of

LISTED = [{"lr": 1e-3, "width": 8}, {"lr": 1e-2, "width": 16}, {"lr": 1e-1}]


def trained(place: Path, grid: Any = None, family: Any = "mlp", **more: Any) -> Study:
    """A study that has run."""
    options = {"epochs": 1, "device": "cpu", "directory": place, **more}
    study = Study(family, grid or {"lr": [1e-3, 1e-2], "width": [4]}, "iris", **options)
    study.fit(progress=False)
    return study


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run."""
    return trained(tmp_path_factory.mktemp("runs") / "first").directory


@pytest.fixture
def folder(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the runs of a notebook, in which there is one."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(run, tmp_path / "hfta_runs" / "first")
    return tmp_path / "hfta_runs"


@pytest.mark.parametrize(
    "grid",
    [
        LISTED,
        {"lr": [1e-3, 1e-2], "width": [8, 16]},
        Grid({"lr": [1e-3, 1e-2]}).plus([{"lr": 0.5, "width": 4}]),
        Grid({}).plus([{"width": 4}]),
    ],
)
def test_a_reattached_workbench_defines_the_study_that_it_shows(make: Make, grid: Any, tmp_path: Path) -> None:
    """A list of configurations became the product of all their values."""
    study = Study("mlp", grid, "digits", epochs=3, device="cpu", name="mine", directory=tmp_path / "run")
    study.add({"lr": 0.2, "width": 12})
    bench = Workbench(executor="inline", **arguments_of(study))
    again = bench.study
    assert [v.config for v in again.variants] == [v.config for v in study.variants]
    assert (again.epochs, again.name) == (3, "mine")
    bench.close()


def test_a_reattached_workbench_names_what_was_given_in_code(tmp_path: Path) -> None:
    """Defaults are not named."""

    def named(**given: Any) -> str:
        study = Study("mlp", {"lr": [1e-3]}, "digits", directory=tmp_path / "run", **given)
        bench = Workbench(executor="inline", **arguments_of(study))
        found = [w.value for line in bench.define.children[:2] for w in line.children if "hfta-fixed" in w._dom_classes]
        bench.close()
        return "".join(found)

    assert named() == ""
    assert named(monitor="val_loss", verify="never", padding="never", width=8) == (
        "also given in code: monitor=val_loss, verify=never, width=8"
    )


def test_a_reattached_search_keeps_the_padding_that_a_search_allows(tmp_path: Path) -> None:
    """A grid allows less by default."""
    space = {"lr": hfta.uniform(1e-3, 1e-1), "width": [8, 64]}
    study = Study("mlp", space, "digits", trials=4, device="cpu", directory=tmp_path / "run")
    bench = Workbench(executor="inline", **arguments_of(study))
    assert bench.study.padding == study.padding == 0.75
    bench.close()


def test_listed_configurations_are_shown_and_can_be_taken_out(make: Make) -> None:
    bench = make(grid=LISTED)
    assert bench.define.listed.text.value == "3 configurations of lr and width, listed one by one in code"
    assert repr(bench) == "Workbench(mlp on digits, 4 epochs; 3 listed = 3 variants)"
    bench.define.add_axis("weight_decay", (0.0, 0.1))
    assert len(bench.study.variants) == 5
    assert "2 weight_decay + 3 listed = 5 variants" in repr(bench)
    bench.define.listed.remove_button.click()
    assert bench.define.listed.layout.display == "none"
    assert [v.config for v in bench.study.variants] == [{"weight_decay": 0.0}, {"weight_decay": 0.1}]
    bench.define.rows[0].remove_button.click()
    assert len(bench.study.variants) == 1


def test_the_latest_saved_run_of_what_is_defined_is_offered(folder: Path, make: Make, runs: Runs) -> None:
    shutil.copytree(folder / "first", folder / "second")
    os.utime(folder / "first" / "study.sqlite", (1e9, 1e9))
    other = make(data="digits")
    assert other.offer.layout.display == "none"
    other.define.data_field.value = "iris"
    assert other.offer.layout.display == ""
    bench = make(data="iris")
    assert bench.offer.text.value.startswith("There is a saved run of mlp on iris: 2 variants, 1 epoch, today ")
    assert bench.offer.text.value.endswith(", in second.")
    assert "2001-09-0" in described(list(saved_runs(folder))[1])
    press(bench, "train")  # a run of its own: nothing is offered any more
    assert bench.offer.layout.display == "none"


def test_folders_that_are_no_runs_are_passed_over(folder: Path, tmp_path: Path) -> None:
    (folder / "empty").mkdir()
    (folder / "file").write_text("")
    for name, text in [("damaged", "{"), ("alien", "SQLite format 3")]:
        (folder / name).mkdir()
        (folder / name / "study.sqlite").write_text(text)
    assert [run.directory.name for run in saved_runs(folder)] == ["first"]
    assert list(saved_runs(tmp_path / "nowhere")) == []


def test_reattach_brings_the_run_back_in_place(folder: Path, make: Make) -> None:
    bench = make(data="iris", grid={"lr": [0.5]}, executor="inline")
    before = bench.define
    bench.offer.button.click()
    assert bench.state == "finished"
    assert bench.offer.layout.display == "none"
    assert bench.define is not before
    assert bench.define in bench.sections["Define"].children[1].children
    assert list(bench.children) == [bench.bar, bench.offer, *bench.sections.values(), bench.runs.section]
    assert bench.define.definition().axes == {"lr": (1e-3, 1e-2), "width": (4,)}
    assert bench.study.directory == folder / "first"
    assert len(bench.leaderboard.table["rows"]) == 2
    assert isinstance(bench.take(0), nn.Module)
    bench.define.row("lr").text_field.value = "0.1, 0.2, 0.3"  # and can be changed
    assert bench.plan_view.sentence.value.startswith("3 variants")
    assert bench.bar.reveal


def test_what_can_not_be_brought_back_is_said(folder: Path, make: Make, runs: Runs) -> None:
    bench = make(data="iris", detach=False)
    shutil.rmtree(folder / "first")
    bench.offer.button.click()
    assert "no saved run here" in bench.bar.status
    press(bench, "train")
    with pytest.raises(StudyError, match="a run is in progress"):
        bench.restore(folder / "first")


def test_a_family_of_a_cell_that_was_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = sys.modules["hfta_nb.models.model_zoo.registry"]
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))

    def build(width: int = 4, in_features: int = 4, num_classes: int = 3) -> nn.Module:
        return nn.Sequential(nn.Linear(in_features, width), nn.Linear(width, num_classes))

    family = hfta.family(build, name="of_a_cell_once")
    trained(tmp_path / "run", {"lr": [1e-2]}, family)
    store = Store(tmp_path / "run")
    store.write_study({**store.read_study(), "family": "of_another_kernel"})
    with pytest.raises(FamilyError) as found:
        loaded(tmp_path / "run")
    assert "run the cell that defines it first, or pass it: Workbench.reattach(" in found.value.message
    assert "got 'of_another_kernel'" in found.value.message
    assert loaded(tmp_path / "run", family).history.run is not None


def test_a_saved_notebook_says_how_to_come_back(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run.parent)
    study = Study.load(run)
    bundle = static.table_bundle(study.history, "bench")
    call = "Workbench.reattach('first')"
    assert bundle["text/plain"].splitlines()[1] == f"to bring the Workbench back: {call}"
    markup = bundle["text/html"]
    assert call in unescape(markup)
    command, arguments = re.findall(r'data-commandlinker-command="([^"]*)" data-commandlinker-args="([^"]*)"', markup)[
        0
    ]
    told = json.loads(unescape(arguments))
    assert command == "apputils:run-all-enabled"
    assert told["commands"][-1] == "notebook:run-cell"
    # The cell that the button makes, as a kernel runs it.
    names: dict[str, Any] = {}
    exec(compile(told["args"]["text"], "cell", "exec"), names)  # noqa: S102
    assert names["bench"].state == "finished"
    names["bench"].close()
    assert "Reattach" not in static.table_bundle(study.history)["text/html"]


def test_where_the_system_knows_no_locks_a_run_counts_as_dead(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = Study.load(run)
    history = study.history
    history.state = "RUNNING"
    stub: Any = SimpleNamespace(history=history, store=SimpleNamespace(running=None), directory=run)
    assert saved_run.as_interrupted(stub).history.state == "INTERRUPTED"
    history.state = "RUNNING"
    stub.store.running = True
    assert saved_run.as_interrupted(stub).history.state == "RUNNING"
