"""Optimizers, warm-up, parameter groups: common recipes as axes of a study."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.errors import DataError, GridError, StudyError
from hfta_nb.models import imbalance
from hfta_nb.models.study_config import OTHER_NAMES
from hfta_nb.models.training_axes import ALIASES, NOT_AXES, TRAINING_AXES

x = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
y = x[:, :3].argmax(1)


def net(hidden: int = 6) -> nn.Module:
    return nn.Sequential(nn.Linear(4, hidden), nn.LayerNorm(hidden), nn.Tanh(), nn.Linear(hidden, 3))


def study_of(place: Path, grid: dict[str, Any], **options: Any) -> hfta.Study:
    settings: dict[str, Any] = {"epochs": 2, "batch_size": 12, "device": "cpu", "dtype": "float64", **options}
    return hfta.Study(net, grid, data=(x, y), directory=place, **settings)


def by_hand(module: nn.Module, groups: list[dict[str, Any]], schedule: Any, steps: int, batches: Any) -> None:
    """What one writes in torch: AdamW, a schedule that steps with every batch."""
    optimizer = torch.optim.AdamW(groups)
    scheduler = schedule(optimizer)
    for inputs, target in batches[:steps]:
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(inputs), target).backward()
        optimizer.step()
        scheduler.step()


def test_warm_up_and_cosine_by_steps_with_no_decay_on_norms_and_biases(tmp_path: Path) -> None:
    """The recipe of every transformer, against the loop that one would write."""
    grid = {"lr": [1e-2, 3e-2], "warmup_steps": [0, 3], "decay_on": ["all", "weights"]}
    study = study_of(tmp_path, grid, optimizer="AdamW", lr_scheduler="CosineAnnealingLR", min_lr=1e-4,
                     weight_decay=0.3, max_norm=None)  # fmt: skip
    list(study.run())
    assert len(study.groups()) == 2  # decay_on parts them, warm-ups fuse
    data, lrs = study.data, torch.optim.lr_scheduler
    order = hfta.data.order(len(data), 0, 0), hfta.data.order(len(data), 0, 1)
    batches = [(data.x[i].double(), data.y[i]) for o in order for i in o.split(12)]
    for variant in study.variants:
        lr, warmup = variant.config["lr"], variant.config["warmup_steps"]
        torch.manual_seed(0)
        module = net().double()
        few = [p for p in module.parameters() if p.ndim < 2]
        many = [p for p in module.parameters() if p.ndim >= 2]
        spared = 0.0 if variant.config["decay_on"] == "weights" else 0.3
        groups = [{"params": many, "lr": lr, "weight_decay": 0.3}, {"params": few, "lr": lr, "weight_decay": spared}]
        for group in groups:
            group["eps"] = 1e-8

        def schedule(optimizer: Any, lr: float = lr, warmup: int = warmup) -> Any:
            rest = lrs.CosineAnnealingLR(optimizer, T_max=len(batches) - warmup, eta_min=1e-4)
            if not warmup:
                return rest
            rising = lrs.LinearLR(optimizer, 1 / (warmup + 1), 1.0, total_iters=warmup)
            return lrs.SequentialLR(optimizer, [rising, rest], [warmup])

        by_hand(module, groups, schedule, len(batches), batches)
        with torch.no_grad():
            loss = nn.functional.cross_entropy(module(data.x_validation.double()), data.y_validation)
        recorded = study.history.members[variant.id].curves["val_loss"].values[-1]
        assert recorded == pytest.approx(float(loss), rel=0, abs=1e-9)


def test_parameter_groups_by_a_function_of_name_and_parameter(tmp_path: Path) -> None:
    seen: dict[str, tuple[int, ...]] = {}

    def groups(name: str, parameter: Tensor) -> dict[str, float]:
        seen[name] = tuple(parameter.shape)
        return {"lr_scale": 0.1} if name.startswith("0.") else {"weight_decay": 0.0} if parameter.dim() < 2 else {}

    study = study_of(tmp_path / "a", {"lr": [1e-2, 3e-2]}, optimizer="sgd", weight_decay=0.1, param_groups=groups)
    list(study.run())
    assert seen == {name: tuple(p.shape) for name, p in net().named_parameters()}
    assert study.check()["equal"].all()
    without = study_of(tmp_path / "b", {"lr": [1e-2, 3e-2]}, optimizer="sgd", weight_decay=0.1)
    list(without.run())
    assert without.results()["val_loss"].tolist() != study.results()["val_loss"].tolist()


def test_a_group_with_what_the_optimizer_has_not(tmp_path: Path) -> None:
    study = study_of(tmp_path, {"lr": [1e-2, 3e-2]}, param_groups=lambda name, p: {"nesterov": True})
    with pytest.raises(Exception, match="param_groups: not a hyperparameter of this optimizer; got 'nesterov'"):
        list(study.run())


@pytest.mark.parametrize("name", ["Adafactor", "ASGD", "Rprop", "SparseAdam", "Muon", "LBFGS"])
@pytest.mark.each
def test_every_optimizer_by_torch_s_name(name: str, tmp_path: Path) -> None:
    # Clipped gradients are not those of the losses from which LBFGS reckons: rounding grows without bound then.
    clipping = {} if name == "LBFGS" else {"max_norm": 1.0}
    study = study_of(tmp_path, {"lr": [1e-2, 3e-2]}, optimizer=name, epochs=1, **clipping)
    list(study.run())
    assert study.check()["equal"].all()


def test_axes_that_change_nothing_with_an_optimizer_are_refused(tmp_path: Path) -> None:
    with pytest.raises(GridError, match="changes nothing with optimizer=lbfgs"):
        study_of(tmp_path, {"weight_decay": [0.0, 0.1]}, optimizer="LBFGS")


# Names that people use.


@pytest.mark.parametrize(
    ("given", "meant"),
    [("learning_rate", "lr"), ("grad_clip", "max_norm"), ("wd", "weight_decay"), ("max_grad_norm", "max_norm"),
     ("gradient_clip_val", "max_norm"), ("bs", "batch_size"), ("warmup", "warmup_steps"),
     ("scheduler", "lr_scheduler")],
)  # fmt: skip
@pytest.mark.parametrize("where", ["grid", "argument"])
def test_common_names_are_suggested(given: str, meant: str, where: str, tmp_path: Path) -> None:
    grid, fixed = ({given: [1, 2]}, {}) if where == "grid" else ({}, {given: 1})
    with pytest.raises(GridError, match=f"unknown axis; got '{given}'.*did you mean {meant}?"):
        study_of(tmp_path, grid, **fixed)


def test_no_scheduler_may_be_none(tmp_path: Path) -> None:
    study = study_of(tmp_path / "a", {"lr_scheduler": [None, "cosine"]})
    named = study_of(tmp_path / "b", {"lr_scheduler": ["none", "cosine"]})
    curves = [[s.fit(progress=False), s.results().sort_index()["val_loss"].tolist()][1] for s in (study, named)]
    assert curves[0] == curves[1]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"grid": {"optimizer": [torch.optim.SGD]}}, r'optimizer: not a plain value; .*; give its name: "sgd"'),
        ({"grid": {"lr": [0.1]}, "fixed": {"width": 8}}, "unknown axis; got 'fixed'; .*; give constants by keyword"),
        ({"grid": {"lr": [0.1]}, "max_epochs": 5}, r"unknown axis; got 'max_epochs'; .*; give Study\(..., epochs=20\)"),
        ({"grid": {"lr": [0.1]}, "early_stopping": 5}, r"unknown axis; .*; Study\(..., patience=5\) ends a member"),
        ({"grid": {"shuffle": [True, False]}}, "unknown axis; got 'shuffle'; .*; give the data as a DataLoader"),
        ({"grid": {"lr": [0.1]}, "direction": "maximize"}, r"unknown axis; .*; give Study\(..., monitor="),
        ({"grid": {"lr": [0.1]}, "n_jobs": 2}, "unknown axis; .*; leave it out: variants train together"),
        ({"grid": {"lr": [0.1]}, "param_grid": {}}, "unknown axis; .*; the grid is the second argument"),
        ({"grid": {"lr": [0.1]}, "per_device_train_batch_size": 8}, r"unknown axis; .*; did you mean batch_size\?"),
        (
            {"grid": {"lr": [0.1]}, "entirely_unknown": 8},
            "check the spelling; axes of the model are parameters of what",
        ),
        ({"grid": {"lr": [0.1]}, "val_split": 0.2}, "unknown axis; .*; hfta_nb.data.from_tensors"),
    ],
)
def test_other_ways_to_say_it_get_an_answer(given: dict[str, Any], message: str) -> None:
    with pytest.raises(GridError, match=message):
        hfta.Study("mlp", data="digits", **given)


def test_grid_and_data_that_have_changed_places() -> None:
    data = torch.randn(20, 4), torch.randint(0, 2, (20,))
    with pytest.raises(DataError, match=r"axes come before the data: Study\(family, grid, data\)"):
        hfta.Study("mlp", data, {"lr": [0.1]})


def test_names_that_mean_something_else_are_no_axes_and_no_arguments() -> None:
    arguments = inspect.signature(hfta.Study).parameters
    assert not NOT_AXES.keys() & OTHER_NAMES.keys()
    assert not {*NOT_AXES, *OTHER_NAMES} & (set(TRAINING_AXES) | set(ALIASES) | set(arguments) - {"fixed", "timeout"})


def test_aliases_are_no_axes_and_mean_some() -> None:
    assert not set(ALIASES) & set(TRAINING_AXES)
    assert set(ALIASES.values()) <= {*TRAINING_AXES, *imbalance.AXES}


# Schedules that do not fit.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"warmup_steps": 8}, "fewer than the 8 optimizer steps of the run"),
        ({"warmup_steps": 2, "lr_scheduler": "onecycle"}, "it has a warm-up of its own"),
        ({"warmup_steps": 2, "lr_scheduler": "plateau"}, "plateau takes none"),
    ],
)
def test_a_warm_up_that_can_t_be(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=message):
        study_of(tmp_path, {"lr": [0.1]}, **options)


def test_steps_of_a_stream_of_unknown_length_must_be_told(tmp_path: Path) -> None:
    def batches() -> Any:
        for _ in range(4):
            yield x[:12], y[:12]

    data = hfta.data.from_batches(batches, batches, num_classes=3)
    with pytest.raises(StudyError, match=r"say it: Study\(steps_per_epoch=...\)"):
        hfta.Study(net, {"lr": [0.1]}, data=data, lr_scheduler="onecycle", directory=tmp_path)
