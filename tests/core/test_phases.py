"""Families with several networks: their phases, rejected ones, and members equal to training alone."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb import events as ev
from hfta_nb.errors import FamilyError, GridError, StudyError
from hfta_nb.train.step import ArrayStep
from tests.core.stores import last_checkpoint
from tests.frames import steady


class Pair(nn.Module):
    """An encoder, and a critic of what it encodes."""

    def __init__(self, width: int, lazy: bool = False) -> None:
        super().__init__()
        first: nn.Module = nn.LazyLinear(width, bias=False) if lazy else nn.Linear(3, width, bias=False)
        self.encoder = nn.Sequential(first, nn.BatchNorm1d(width), nn.Dropout(0.2), nn.Linear(width, 1))
        self.critic = nn.Sequential(nn.Linear(1, width), nn.Tanh(), nn.Linear(width, 1))

    def forward(self, x: Tensor, phase: str = "") -> Tensor:
        made: Tensor = self.encoder(x)
        if phase == "criticise":
            made = made.detach() + 0.1 * torch.randn_like(made)
        return made if not phase else self.critic(made)


def low(output: Tensor, target: Tensor) -> Tensor:
    return F.mse_loss(output, target)


def high(output: Tensor, target: Tensor) -> Tensor:
    return -F.mse_loss(output, target).clamp(max=10)


PHASES = (hfta.Phase("criticise", "critic", low), hfta.Phase("deceive", ["encoder"], high, every=2))


def _pair(**options: Any) -> hfta.Family:
    def pair(width: int = 4, lazy: bool = False) -> nn.Module:
        """Two networks."""
        return Pair(width, lazy)

    return hfta.family(**{"phases": PHASES, "metrics": {}, **options})(pair)


def _numbers(count: int = 50) -> hfta.Data:
    torch.manual_seed(0)
    x = torch.randn(count, 3)
    return hfta.data.from_tensors(x, x.sum(1, keepdim=True), name="numbers")


def _study(directory: Path, **options: Any) -> hfta.Study:
    given: dict[str, Any] = {"epochs": 4, "batch_size": 8, "dtype": "float64", "device": "cpu", "directory": directory}
    grid = options.pop("grid", {"lr": [1e-2, 3e-2], "deceive_lr": [1e-3, 2e-2]})
    return hfta.Study(options.pop("family", None) or _pair(), grid, options.pop("data", _numbers()), **given | options)


def _run(study: hfta.Study, **options: Any) -> list[ev.Event]:
    return list(study.run(**options))


def test_steps_are_those_of_a_loop_written_by_hand(device: torch.device) -> None:
    family = _pair()
    data = _numbers().to(device, torch.float64)
    seeds = [3, 4, 5]
    changed = [{"lr": 0.1}, {"lr": 0.1, "deceive_lr": 0.01, "momentum": 0.5}, {"criticise_weight_decay": 0.2}]
    rows = [{k: s.default for k, s in family.training.items()} | {"optimizer": "sgd"} | c for c in changed]
    modules = []
    for seed in seeds:
        torch.manual_seed(seed)
        modules.append(family.build().to(device, torch.float64))
    array = hfta.fuse(copy.deepcopy(modules), seeds)
    step = ArrayStep(array, rows, family.objective_for(data), {}, epochs=1)
    told = [step.train(data.x, data.y) for _ in range(7)]
    assert [list(scores) for scores in told] == [["loss", "criticise_loss", "deceive_loss"]] * 7
    for i, module in enumerate(modules):
        torch.manual_seed(seeds[i])
        row = rows[i]

        def optimizer(net: nn.Module, phase: str, row: dict[str, Any] = row) -> torch.optim.Optimizer:
            lr, decay = (row[f"{phase}_{k}"] for k in ("lr", "weight_decay"))
            own = {"lr": row["lr"] if lr is None else lr, "weight_decay": decay or 0.0, "momentum": row["momentum"]}
            return torch.optim.SGD(net.parameters(), **own)

        critic, encoder = optimizer(module.critic, "criticise"), optimizer(module.encoder, "deceive")
        last = math.nan
        for number, scores in enumerate(told):
            critic.zero_grad()
            first = low(module(data.x, phase="criticise"), data.y)
            first.backward()
            critic.step()
            if number % 2 == 0:
                encoder.zero_grad()
                second = high(module(data.x, phase="deceive"), data.y)
                second.backward()
                encoder.step()
                last = second.item()
            assert scores["criticise_loss"][i].item() == pytest.approx(first.item(), abs=1e-10)
            assert scores["deceive_loss"][i].item() == pytest.approx(last, abs=1e-10)
            assert scores["loss"][i].item() == pytest.approx(first.item() + last, abs=1e-10)
        for name, value in module.state_dict().items():
            torch.testing.assert_close(step.weights()[name][i], value, atol=1e-10, rtol=0)


@pytest.mark.parametrize("options", [{"lr_scheduler": "cosine"}, {"lazy": True, "deceive_beta1": 0.3}, {"width": 6}])
def test_a_study_of_two_networks(options: dict[str, Any], tmp_path: Path) -> None:
    study = _study(tmp_path, **options)
    events = _run(study)
    assert list(study.plan()["members"]) == [4]
    assert any(isinstance(e, ev.SpeedMeasured) for e in events)
    assert study.metrics == (
        *("train_loss", "val_loss", "train_criticise_loss", "val_criticise_loss"),
        *("train_deceive_loss", "val_deceive_loss"),
    )
    table = study.results()
    assert table[list(study.metrics)].notna().all(axis=None)
    parts = table["val_criticise_loss"] + table["val_deceive_loss"]
    pd.testing.assert_series_equal(table["val_loss"], parts, check_names=False)
    check = study.check(range(4))
    assert check["equal"].all()
    assert check[list(study.metrics)].max(axis=None) <= 1e-10
    curves = [tuple(m.curves["train_deceive_loss"].values) for m in study.history.members.values()]
    assert len(set(curves)) == 4  # each axis does something
    module = study.best().module()
    assert module(torch.zeros(2, 3, dtype=torch.float64)).shape == (2, 1)


def test_two_networks_of_different_widths_share_an_array(tmp_path: Path) -> None:
    study = _study(tmp_path, grid={"width": [3, 4, 5], "lr": [1e-2, 3e-2]}, padding=0.6)
    _run(study)
    assert list(study.plan()["members"]) == [6]
    assert study.plan()["architectures"][0] == 3
    assert study.check(range(6))["equal"].all()


def test_members_that_leave_take_nothing_along(tmp_path: Path) -> None:
    study = _study(tmp_path, grid={"deceive_lr": [1e-3, 1e300, 1e-2]}, epochs=3, optimizer="sgd")
    _run(study)
    states = [m.state for m in study.history.members.values()]
    assert states == [ev.COMPLETE, ev.DIVERGED, ev.COMPLETE]
    assert study.check([0, 2])["equal"].all()


@pytest.mark.only(serial=False)
@pytest.mark.parametrize("serial", [False, True])
def test_stopped_in_the_middle_of_an_epoch_and_resumed(serial: bool, tmp_path: Path) -> None:
    options: dict[str, Any] = {"serial": serial, "epochs": 3, "batch_size": 2, "lr_scheduler": "cosine"}
    whole, parts = _study(tmp_path / "whole", **options), _study(tmp_path / "parts", **options)
    _run(whole)
    control = hfta.Control()
    steps = 0

    def requests() -> list[Any]:
        nonlocal steps
        steps += 1
        if steps == 28:  # 20 steps are an epoch: within the second, after a step that left a phase out
            control.stop()
        return type(control).poll(control)

    spied = copy.copy(control)
    spied.poll = requests
    _run(parts, control=spied)
    assert parts.history.state == ev.STOPPED
    checkpoint = last_checkpoint(parts.store)
    assert 0 < checkpoint["todo"][0]["run"]["batch"] < 20
    rest = hfta.Study.load(parts.directory, family=whole.family)
    _run(rest, resume=True)
    assert rest.history.state == ev.COMPLETE
    pd.testing.assert_frame_equal(steady(rest.results()), steady(whole.results()), atol=1e-10, rtol=0)
    for i in range(4):
        ours, theirs = rest.store.read_weights(i), whole.store.read_weights(i)
        for name, value in theirs.items():
            torch.testing.assert_close(ours[name], value, atol=1e-10, rtol=0)


def test_a_metric_sees_the_output_without_a_phase(tmp_path: Path) -> None:
    mean = hfta.Metric(lambda output, target: output.mean(), maximize=True)
    study = _study(tmp_path, family=_pair(metrics={"mean": mean}), monitor="val_mean", epochs=1)
    _run(study)
    assert study.maximize
    assert "train_mean" not in study.metrics
    best = study.best()
    x = study.data.x_validation.double()
    assert best.metrics["val_mean"] == pytest.approx(best.module()(x).mean().item(), abs=1e-9)
    assert study.check()["val_mean"].max() <= 1e-10


def test_defaults_and_monitor_of_a_family(tmp_path: Path) -> None:
    family = _pair(defaults={"lr": 0.25, "optimizer": "sgd", "batch_size": 16}, monitor="val_deceive_loss")
    study = _study(tmp_path, family=family, grid={"seed": [0, 1]}, batch_size=None)
    row = study.plan_groups[0].rows[0]
    assert (row["lr"], row["optimizer"], row["batch_size"], row["deceive_lr"]) == (0.25, "sgd", 16, None)
    assert study.monitor == "val_deceive_loss"
    assert not study.maximize
    assert family.specs["lr"].default == 0.25
    assert next(iter(family.specs)) == "lr"
    assert hfta.family("mlp").specs["lr"].default == 1e-3
    with pytest.raises(GridError, match="changes nothing with optimizer=sgd"):
        _study(tmp_path, family=family, grid={"deceive_beta1": [0.1, 0.2]})
    with pytest.raises(StudyError, match="monitor"):
        _study(tmp_path, family=family, monitor="val_nothing")


def test_an_axis_of_a_phase_may_be_left_to_the_common_one(tmp_path: Path) -> None:
    study = _study(tmp_path, grid={"deceive_lr": [None, 1e-3]}, lr=1e-3, epochs=2)
    _run(study)
    assert list(study.plan()["members"]) == [2]
    first, second = (m.curves["val_loss"].values for m in study.history.members.values())
    assert first == pytest.approx(second, abs=1e-12)


class _Phased(nn.Module):
    """Ignores what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.free = nn.Linear(3, 1), nn.Linear(1, 1), nn.Linear(1, 1)
        self.free.requires_grad_(False)

    def forward(self, x: Tensor, phase: str = "") -> Tensor:
        return self.free(self.b(self.a(x)))


@pytest.mark.parametrize(
    ("phases", "said"),
    [
        ([hfta.Phase("one", ["a"], low)], r"no phase trains this parameter; got 'b.weight'; accepted: a"),
        (
            [hfta.Phase("one", ["a", "b"], low), hfta.Phase("two", ["b.bias"], low)],
            "two phases train this parameter, one and two; got 'b.bias'",
        ),
        (
            [hfta.Phase("one", ["a", "b"], low), hfta.Phase("two", ["c"], low)],
            r"the phase two trains no parameter; got \['c'\]; accepted: a, b, free",
        ),
        ([hfta.Phase("one", ["a", "b"], low), hfta.Phase("two", ["free"], low)], "the phase two trains no parameter"),
    ],
)
def test_each_parameter_is_trained_once(phases: list[hfta.Phase], said: str, tmp_path: Path) -> None:
    family = hfta.family(name="phased", phases=phases, metrics={})(lambda: _Phased())
    with pytest.raises(FamilyError, match=said):
        hfta.Study(family, {"lr": [1e-3, 1e-2]}, _numbers(), directory=tmp_path)


def test_a_parameter_may_be_named_as_well_as_a_submodule(tmp_path: Path) -> None:
    phases = [hfta.Phase("one", ["a", "b.weight"], low), hfta.Phase("two", ["b.bias"], low, every=3)]
    family = hfta.family(name="phased", phases=phases, metrics={})(lambda: _Phased())
    study = hfta.Study(family, {"lr": [1e-3, 1e-2]}, _numbers(), epochs=2, dtype="float64", directory=tmp_path)
    _run(study)
    assert study.check([0, 1])["equal"].all()


def _build() -> nn.Module:
    return _Phased()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"phases": ["generator"]}, "not a phase; got 'generator'"),
        ({"phases": [PHASES[0], PHASES[0]]}, "two phases of one name; got 'criticise'"),
        ({"phases": PHASES, "loss": low}, "has a loss and phases"),
        ({"phases": PHASES, "metrics": {"deceive_loss": low}}, "a metric has the name of a phase's loss"),
        ({"defaults": {"depth": 3}}, "not a training axis; got 'depth'"),
        ({"defaults": {"lr": -1.0}}, "default of lr: out of bounds; got -1.0; accepted: at least 0"),
        ({"defaults": {"optimizer": "lion"}}, "default of optimizer: not a choice"),
    ],
)
def test_what_a_family_refuses(options: dict[str, Any], said: str) -> None:
    with pytest.raises(FamilyError, match=said):
        hfta.family(name="refused", **options)(_build)
    assert "refused" not in hfta.families()


def test_a_parameter_may_not_have_the_name_of_a_phases_axis() -> None:
    def build(critic_lr: float = 0.1) -> nn.Module:
        return _Phased()

    with pytest.raises(FamilyError, match=r"build\(critic_lr\): is the name of a training axis"):
        hfta.family(phases=[hfta.Phase("critic", ["a"], low)])(build)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("a b", ["a"], low), "not a name for a phase; got 'a b'"),
        (("a", [], low), "trains nothing"),
        (("a", [3], low), "trains nothing"),
        (("a", ["a"], "low"), "not a loss; got 'low'"),
        (("a", ["a"], low, 0), "not a number of steps; got 0"),
        (("a", ["a"], low, True), "not a number of steps; got True"),
    ],
)
def test_what_a_phase_refuses(given: tuple[Any, ...], said: str) -> None:
    with pytest.raises(FamilyError, match=said):
        hfta.Phase(*given)


def test_a_model_that_takes_no_phase_is_told_so(tmp_path: Path) -> None:
    family = hfta.family(name="deaf", phases=[hfta.Phase("all", ["0"], low)], metrics={})(
        lambda: nn.Sequential(nn.Linear(3, 1))
    )
    study = hfta.Study(family, {"lr": [1e-3, 1e-2]}, _numbers(), epochs=1, directory=tmp_path)
    with pytest.raises(hfta.HftaError, match="unexpected keyword argument 'phase'"):
        _run(study)
