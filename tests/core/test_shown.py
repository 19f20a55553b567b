"""Representations of studies, plans, results, arrays and families in notebooks and by `print`."""

from __future__ import annotations

import math
import pickle
from pathlib import Path
from statistics import fmean, stdev

import pandas as pd
import pytest
from torch import nn

import hfta_nb as hfta
from hfta_nb import events as ev
from hfta_nb import figures
from hfta_nb.errors import HftaError, StudyError
from hfta_nb.records.history import History
from hfta_nb.search.averages import averages
from tests.run_events import epoch_done, run_started


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> hfta.Study:
    grid = {"lr": [1e-3, 1e-2], "seed": [0, 1, 2]}
    place = tmp_path_factory.mktemp("runs") / "seeds"
    study = hfta.Study("mlp", grid, "digits", epochs=2, width=8, device="cpu", directory=place)
    study.fit(progress=False)
    return study


def test_results_show_what_people_look_at_and_hold_everything(finished: hfta.Study) -> None:
    found = finished.results()
    shown = repr(found).splitlines()
    assert shown[0].split() == ["rank", "lr", "seed", "val_accuracy", "state", "best_epoch"]
    assert [line.split()[1] for line in shown[2:8]] == list("123456")
    assert shown[-1].startswith("more columns: epochs, train_loss, val_loss, train_accuracy, reason, last_train_loss, ")
    assert shown[-1].endswith(", time_s, time_share, memory_bytes, memory_share")
    assert {"val_loss", "reason", "epochs"} <= set(found.columns)
    html = found._repr_html_()
    assert "<th>rank</th>" in html
    assert "<th>train_loss</th>" not in html
    assert "more columns: epochs, train_loss" in html


def test_what_is_made_of_results_is_a_plain_table(finished: hfta.Study) -> None:
    found = finished.results()
    for made in (found[["val_loss"]], found.sort_values("lr"), found[found["lr"] > 0.005], found.copy()):
        assert type(made) is pd.DataFrame
    found["twice"] = 2 * found["val_loss"]
    assert "twice" in repr(found).splitlines()[0]
    assert repr(pickle.loads(pickle.dumps(found))) == repr(found)  # noqa: S301 - made here
    assert repr(found.drop(columns="rank")).splitlines()[0].split()[0] == "state"


def test_a_plan_is_short_and_sizes_have_units(finished: hfta.Study) -> None:
    shown = repr(finished.plan()).splitlines()
    assert shown[0].split()[:4] == ["members", "differing_in", "split_because", "parameters"]
    assert "KiB" in shown[2] or "MiB" in shown[2]
    assert finished.plan()["memory_bytes"].dtype.kind == "i"


def test_means_over_seeds_are_those_of_the_members(finished: hfta.Study) -> None:
    every, found = finished.results(), finished.results(over="seed")
    assert list(found.index) == [1, 2]
    for _, row in found.iterrows():
        mine = every[every["lr"] == row["lr"]]
        assert row["val_accuracy"] == pytest.approx(fmean(mine["val_accuracy"]))
        assert row["val_accuracy_std"] == pytest.approx(stdev(mine["val_accuracy"]))
        assert sorted(row["members"]) == sorted(mine.index)
        assert (row["count"], row["lost"]) == (3, 0)
    assert list(found["val_accuracy"]) == sorted(found["val_accuracy"], reverse=True)
    best = finished.best(over="seed")
    assert best.config["lr"] == found.iloc[0]["lr"]
    assert best.metrics["val_accuracy"] == every[every["lr"] == found.iloc[0]["lr"]]["val_accuracy"].max()
    assert finished.results(over=["lr", "seed"]).iloc[0]["count"] == 6


def test_over_what_is_no_axis_is_told(finished: hfta.Study) -> None:
    with pytest.raises(StudyError, match=r"over: not an axis of the grid; got 'width'; accepted: lr, seed"):
        finished.results(over="width")


def _lucky() -> History:
    """Two learning rates, two seeds: one member of the first diverges, and the other is the best of all."""
    losses = [0.01, math.nan, 0.3, 0.2]
    history = History()
    history.add(run_started({"lr": (0.1, 0.2), "seed": (0, 1)}, epochs=1))
    history.add(epoch_done(1, 4, lambda epoch, member: losses[member]))
    for member, loss in enumerate(losses):
        if math.isfinite(loss):
            history.add(ev.MemberImproved(0.0, member, 1, "val_loss", loss))
    return history


def test_a_configuration_that_lost_a_member_comes_last() -> None:
    first, last = averages(_lucky(), "seed")
    assert (first.config, first.lost, first.mean("val_loss")) == ({"lr": 0.2}, 0, pytest.approx(0.25))
    assert (last.config, last.lost, last.mean("val_loss")) == ({"lr": 0.1}, 1, pytest.approx(0.01))
    assert math.isnan(last.std("val_loss"))


def test_bands_are_drawn_around_means(finished: hfta.Study) -> None:
    [axes] = figures.curves(finished.history, "val_loss", over="seed").axes
    lines = axes.get_lines()
    assert [t.get_text() for t in axes.get_legend().get_texts()] == ["lr=0.001 (of 3)", "lr=0.01 (of 3)"]
    mine = [m.curves["val_loss"].values for m in finished.history.members.values() if m.config["lr"] == 1e-3]
    expected = [fmean(v) for v in zip(*mine, strict=True)]
    assert list(lines[0].get_ydata()) == pytest.approx(expected)
    low, high = axes.collections[0].get_paths()[0].get_extents().intervaly
    spread = [stdev(v) for v in zip(*mine, strict=True)]
    assert low == pytest.approx(min(m - s for m, s in zip(expected, spread, strict=True)))
    assert high == pytest.approx(max(m + s for m, s in zip(expected, spread, strict=True)))
    with pytest.raises(HftaError, match="accepted: epoch, step"):
        figures.curves(finished.history, "val_loss", over="seed", x_axis="time")


def test_speedup_is_what_was_measured(finished: hfta.Study) -> None:
    [measured] = [e for e, _ in finished.store.events() if isinstance(e, ev.SpeedMeasured)]
    found = finished.speedup()
    assert list(found.index) == ["0", "all"]
    assert found.loc["0", "step_speedup"] == measured.speedup
    assert found.loc["all", "step_speedup"] == pytest.approx(measured.serial_step_s / measured.step_s)


def test_without_a_measurement_there_is_no_speedup(tmp_path: Path) -> None:
    study = hfta.Study("mlp", {"lr": [1e-3]}, "digits", epochs=1, device="cpu", directory=tmp_path)
    with pytest.raises(StudyError, match="run the study first"):
        study.speedup()
    with pytest.raises(StudyError, match="not run yet"):
        study.results()


def test_studies_results_arrays_and_families_are_tables(finished: hfta.Study) -> None:
    shown = finished._repr_html_()
    assert "<td" in shown
    assert "lr: 0.001, 0.01; seed: 0, 1, 2" in shown
    assert "6 in 1 array<" in shown
    assert ">complete<" in shown
    assert f"Member #{finished.best().variant.id}" in finished.best()._repr_html_()
    array = hfta.fuse([nn.Linear(3, 2) for _ in range(4)])
    assert ">8<" in array._repr_html_()
    assert "FusedArray of Linear" in array._repr_html_()
    family = hfta.family("mlp")
    assert "<b>Family mlp</b>" in family._repr_html_()
    assert ">width</td>" in family._repr_html_()


def test_markup_in_names_is_text(tmp_path: Path) -> None:
    study = hfta.Study("mlp", {"lr": [1e-3]}, "digits", name="<b>bold</b>", device="cpu", directory=tmp_path)
    assert "&lt;b&gt;bold" in study._repr_html_()
