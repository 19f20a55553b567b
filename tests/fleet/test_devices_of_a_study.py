"""Studies whose arrays train on several devices: processes of this machine's CPU."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb import events as ev
from hfta_nb.errors import DistributedError, StudyError
from hfta_nb.study import Study
from hfta_nb.workers.distributed import followers as processes
from tests.polling import descendants


class Net(nn.Module):
    """With a batch norm."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.Tanh(), nn.Linear(width, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)  # type: ignore[no-any-return]


def data() -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(5)
    x = torch.randn(120, 4, generator=draw)
    return x, (x @ torch.randn(4, 3, generator=draw)).argmax(1)


def study(place: Path, devices: int, **given: Any) -> Study:
    grid = {"lr": [0.1, 0.3, 1.7e308], "optimizer": ["sgd"]}
    how = {"epochs": 3, "batch_size": 22, "dtype": "float64", "device": "cpu", "patience": 50, **given}
    return Study(Net, grid, data(), devices=devices, directory=place, **how)


def run(made: Study, at_epoch: Callable[[], Any] = lambda: None, **given: Any) -> None:
    """Run to the end, and do something after each epoch."""
    for event in made.run(**given):
        if isinstance(event, ev.EpochDone):
            at_epoch()


def followers() -> list[psutil.Process]:
    """The processes of the other ranks."""
    return descendants("hfta_nb.workers.processes.child_main")


def equal(made: Study, other: Study) -> None:
    assert len(made.history.members) == len(other.history.members) == 3
    for mine, theirs in zip(made.history.members.values(), other.history.members.values(), strict=True):
        assert (mine.state, mine.best_epoch) == (theirs.state, theirs.best_epoch)
        assert mine.curves.keys() == theirs.curves.keys()
        for name in ("train_loss", "train_accuracy", "val_loss", "val_accuracy"):
            if mine.state == ev.COMPLETE:
                values, others = torch.tensor(mine.curves[name].values), torch.tensor(theirs.curves[name].values)
                assert len(values) == made.epochs
                torch.testing.assert_close(values, others, rtol=1e-10, atol=1e-10)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """The study on one device."""
    made = study(tmp_path_factory.mktemp("one") / "run", 1)
    run(made)
    assert [m.state for m in made.history.members.values()] == [ev.COMPLETE, ev.COMPLETE, ev.DIVERGED]
    return made


def test_two_devices_come_to_what_one_comes_to(tmp_path: Path, one: Study) -> None:
    """With a member that leaves, shares that differ, and a last mini-batch of fewer samples."""
    made = study(tmp_path / "two", 2)
    seen = [len(followers()) for event in made.run() if isinstance(event, ev.EpochDone)]
    assert seen == [1, 1, 1]
    assert followers() == []
    equal(made, one)
    state, other = (s.best().module().state_dict() for s in (made, one))
    for name, value in state.items():
        torch.testing.assert_close(value, other[name], rtol=1e-10, atol=1e-10)
    again = Study.load(made.directory, family=made.family)
    assert (again.devices, again.devices_batch_norm) == (2, "sync")


@pytest.mark.long
def test_a_rank_that_is_killed_fails_the_run_which_goes_on_from_its_checkpoint(tmp_path: Path, one: Study) -> None:
    made = study(tmp_path / "killed", 2)
    with pytest.raises(DistributedError, match=r"rank 1 was killed \(SIGKILL\)"):
        run(made, lambda: followers()[0].kill())
    assert made.history.state == ev.FAILED
    assert "SIGKILL" in made.history.reason
    assert followers() == []
    run(made, resume=True)
    equal(made, one)


@pytest.mark.long
def test_a_run_is_taken_up_by_another_number_of_devices(tmp_path: Path, one: Study) -> None:
    made = study(tmp_path / "left", 2)
    for event in made.run():
        if isinstance(event, ev.EpochDone):
            break
    assert followers() == []
    made.devices = 3
    run(made, resume=True)
    equal(made, one)


class Two(nn.Module):
    """Two networks, of which a phase of a step trains one."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.Linear(width, 3))
        self.second = nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, 3))

    def forward(self, x: Tensor, phase: str = "") -> Tensor:
        made = self.first(x)
        return made if not phase else self.second(made)  # type: ignore[no-any-return]


@pytest.mark.long
def test_two_networks_of_members_of_unlike_width(tmp_path: Path) -> None:
    phases = tuple(hfta.Phase(name, part, F.cross_entropy) for name, part in (("a", "first"), ("b", "second")))
    family = hfta.family(phases=phases)(Two)
    how = {"epochs": 2, "batch_size": 22, "dtype": "float64", "device": "cpu", "padding": 0.9}
    grid = {"width": [4, 6], "a_lr": [0.01, 0.02]}
    one, two = (Study(family, grid, data(), devices=n, directory=tmp_path / str(n), **how) for n in (1, 2))
    for made in (one, two):
        run(made)
    assert len(two.plan_groups) == 1
    for mine, theirs in zip(one.history.members.values(), two.history.members.values(), strict=True):
        assert {"train_a_loss", "val_b_loss", "val_accuracy"} <= mine.curves.keys()
        for name, curve in mine.curves.items():
            values = torch.tensor(theirs.curves[name].values)
            torch.testing.assert_close(values, torch.tensor(curve.values), rtol=1e-9, atol=1e-9)


class Unlucky(Net):
    """Raises in every process but the one that has built it."""

    def __init__(self) -> None:
        super().__init__()
        self.home = os.getpid()

    def forward(self, x: Tensor) -> Tensor:
        if os.getpid() != self.home:
            raise ValueError("no luck on this rank")
        return super().forward(x)


@pytest.mark.long
def test_an_error_of_one_rank_ends_all(tmp_path: Path) -> None:
    made = Study(Unlucky, {"lr": [0.1, 0.2]}, data(), devices=2, epochs=1, device="cpu", directory=tmp_path / "run")
    with pytest.raises(DistributedError, match=r"rank 1 MemberError: .*no luck on this rank"):
        run(made)
    assert followers() == []


@pytest.mark.long
def test_a_rank_that_is_stuck_is_not_waited_for_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "TIMEOUT_S", 3.0)
    monkeypatch.setattr(processes, "_END_S", 0.1)
    made = study(tmp_path / "stuck", 2)
    with pytest.raises(DistributedError, match="rank 0 of 2"):
        run(made, lambda: followers()[0].suspend())
    assert followers() == []


class Dropping(Net):
    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(super().forward(x), 0.3, self.training)


@pytest.mark.long
def test_dropout_and_autocast_train_on_three_devices(tmp_path: Path) -> None:
    how = {"precision": "bf16", "devices_batch_norm": "local", "batch_size": 24, "epochs": 8}
    made = Study(Dropping, {"lr": [0.03, 0.05]}, data(), devices=3, device="cpu", directory=tmp_path / "run", **how)
    results = made.fit(progress=False)
    assert list(results["state"]) == [ev.COMPLETE] * 2
    assert results["val_accuracy"].min() > 0.6


def test_wrong_devices_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="devices: not a positive whole number"):
        study(tmp_path, 0)
    with pytest.raises(StudyError, match="devices_batch_norm"):
        study(tmp_path, 2, devices_batch_norm="global")
