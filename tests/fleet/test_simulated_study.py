"""A study on devices that one does not have: its arrays, epochs and rates reach the simulation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import hfta_nb as hfta
from hfta_nb import events as ev
from hfta_nb.errors import FleetError, StudyError
from hfta_nb.study import executors
from hfta_nb.workers.fleet import Measured, Profile

GRID = {"width": [8, 64], "lr": [1e-3, 1e-2]}


def study(tmp_path: Path, **options: Any) -> hfta.Study:
    given = {"grid": GRID, "data": "iris", "epochs": 3, "padding": "never", "directory": tmp_path / "run"} | options
    return hfta.Study("mlp", **given)


def measured(*rates: tuple[float, ...], members: int = 2) -> Profile:
    return Profile({f"array {i}": Measured(members, one, (1,) * len(one)) for i, one in enumerate(rates)})


def test_measured_rates_give_seconds(tmp_path: Path) -> None:
    made = study(tmp_path)
    samples = len(made.data)  # type: ignore[arg-type]
    found = made.simulate(2, measured((100.0,), (10.0,)), price_per_device_h=3600.0)
    alone = found.plans["one per device"]
    assert alone.makespan_s == pytest.approx(3 * samples / 10)
    assert alone.flotillas[0].devices == {"array 1": (0,)}  # the longest is first
    assert found.table()["cost"]["one per device"] == pytest.approx(2 * alone.makespan_s)
    one = made.simulate(1, measured((100.0,), (10.0,))).plans["one per device"]
    assert one.makespan_s == pytest.approx(3 * samples * (1 / 10 + 1 / 100))


def test_an_array_of_which_half_fits_takes_twice_as_long(tmp_path: Path) -> None:
    whole = study(tmp_path).simulate(1, measured((100.0,), (10.0,)))
    half = study(tmp_path).simulate(1, measured((100.0,), (10.0,), members=1))
    assert half.plans["one per device"].makespan_s == pytest.approx(2 * whole.plans["one per device"].makespan_s)


def test_assumed_rates_go_by_parameters(tmp_path: Path) -> None:
    made = study(tmp_path)
    small, large = (group.parameters for group in made.groups())
    ends = made.simulate(2).plans["one per device"].flotillas
    assert ends[0].ends_s["array 1"] / ends[1].ends_s["array 0"] == pytest.approx(large / small)


def test_arrays_have_their_own_batches_and_epochs_their_own_steps(tmp_path: Path) -> None:
    made = study(tmp_path, grid={"batch_size": [5, 20], "lr": [1e-3]}, steps_per_epoch=4)
    found = made.simulate(2, measured((10.0,), (10.0,), members=1)).plans["one per device"]
    assert sorted(f.end_s for f in found.flotillas) == [pytest.approx(3 * 4 * 5 / 10), pytest.approx(3 * 4 * 20 / 10)]


def test_what_cannot_be_simulated_is_told(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="not measured") as found:
        study(tmp_path).simulate(2, measured((100.0,)))
    assert "array 1" in found.value.got
    with pytest.raises(FleetError, match="number of devices"):
        study(tmp_path).simulate(0)

    def batches(epoch: int) -> Any:
        yield torch.zeros(4, 4), torch.zeros(4, dtype=torch.long)

    stream = hfta.data.from_batches(batches, batches, task="classification", num_classes=2)
    with pytest.raises(StudyError, match="how many batches an epoch has") as unknown:
        study(tmp_path, data=stream).simulate(2)
    assert unknown.value.where == "steps_per_epoch"


def test_rates_are_measured_array_by_array_as_a_job(tmp_path: Path) -> None:
    made = study(tmp_path, grid={"width": [2, 4]}, data="iris")
    handle = executors.start(made, kind="inline", job="profile")
    assert handle.wait(60) == ev.COMPLETE
    rates = handle.history.rates
    assert [(one.group, one.members, len(one.samples_per_s)) for one in rates.values()] == [(0, 1, 1), (1, 1, 1)]
    assert all(one.samples_per_s[0] > 0 and one.memory_bytes[0] > 0 for one in rates.values())
    assert not (tmp_path / "run").exists()
