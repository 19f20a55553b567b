"""Folds on the screen: a field, the mean of a configuration beside each fold, and an ensemble of the members."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import pytest
from sklearn.model_selection import KFold

import hfta_nb as hfta
from hfta_nb.errors import StudyError
from hfta_nb.ui import Workbench
from hfta_nb.ui.figure_box import KINDS, draw
from hfta_nb.ui.leaderboard import table_of


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> hfta.Study:
    study = hfta.Study("mlp", {"lr": [3e-3, 3e-2]}, "iris", folds=3, epochs=3, device="cpu",
                       directory=tmp_path_factory.mktemp("folds"), verify="never")  # fmt: skip
    study.fit(progress=False)
    return study


def test_the_leaderboard_has_mean_and_deviation_over_folds(ran: hfta.Study) -> None:
    table = table_of(ran.history)
    place = [column["key"] for column in table["columns"]].index("folds")
    for row in table["rows"]:
        lr = ran.history.members[row["id"]].config["lr"]
        values = [m.best_value for m in ran.history.members.values() if m.config["lr"] == lr]
        assert row["keys"][place] == pytest.approx(statistics.fmean(values))
        assert row["cells"][place] == f"{statistics.fmean(values):.4f} ± {statistics.stdev(values):.2g}"


def test_without_folds_there_is_no_such_column(tmp_path: Path) -> None:
    study = hfta.Study("mlp", {"lr": [3e-3]}, "iris", epochs=1, device="cpu", directory=tmp_path)
    study.fit(progress=False)
    assert "folds" not in [column["key"] for column in table_of(study.history)["columns"]]


def test_the_list_of_figures_has_an_ensemble(ran: hfta.Study, tmp_path: Path) -> None:
    assert KINDS["ensemble"] == "ensemble of the members"
    assert draw(ran, "ensemble", "", "")[:4] == b"\x89PNG"
    assert draw(ran, "curves", "", "")[:4] == b"\x89PNG"
    with pytest.raises(StudyError, match="no member has weights"):
        draw(hfta.Study("mlp", {"lr": [3e-3]}, "iris", directory=tmp_path), "ensemble", "", "")


@pytest.mark.parametrize("splits", [3, pytest.param(KFold(4), marks=pytest.mark.long)], ids=["number", "splitter"])
def test_a_run_that_is_shown_again_has_its_folds_and_no_row_for_them(splits: Any, tmp_path: Path) -> None:
    study = hfta.Study("mlp", [{"lr": 3e-3}, {"lr": 3e-2, "width": 8}], "iris", folds=splits, epochs=1, device="cpu",
                       directory=tmp_path / "run", verify="never")  # fmt: skip
    study.fit(progress=False)
    bench = Workbench.reattach(tmp_path / "run")
    assert bench.define.definition().listed == ({"lr": 3e-3}, {"lr": 3e-2, "width": 8})
    assert len(bench.study.variants) == len(study.variants) == 2 * len(study.data.folds)


def test_the_number_of_folds_is_a_field() -> None:
    bench = Workbench("mlp", "iris", {"lr": [3e-3, 3e-2]}, epochs=2, folds=3)
    assert len(bench.study.variants) == 6
    form = bench.define
    assert form.fields["folds"].value == "3"
    assert form.definition().size == "2 lr x 3 folds"
    form.fields["folds"].value = ""
    assert form.definition().size == "2 lr"
