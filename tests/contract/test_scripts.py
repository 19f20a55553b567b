"""The plain script of a member, in a process that can't import this package, gives the member's curves."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import types
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.errors import StudyError
from tests.contract.test_families import ROWS, FamilyRow, _data

RUN = """
import runpy, sys
sys.modules["hfta_nb"] = None  # to import it is an error from here on
for script in sys.argv[1:]:
    print("script")
    runpy.run_path(script, run_name="__main__")
"""
WITHIN = 1e-10
SLOPE = {"relu": 0.0, "leaky": 0.1}


def outputs(scripts: Sequence[Path]) -> list[list[dict[str, Any]]]:
    """What the scripts print, line by line, in one process without this package."""
    command = [sys.executable, "-P", "-W", "error", "-c", RUN, *map(str, scripts)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=scripts[0].parent)
    assert not ran.stderr
    assert ran.returncode == 0
    return [[json.loads(line) for line in part.splitlines()] for part in ran.stdout.split("script\n")[1:]]


def trained(folder: Path, family: Any, grid: Any, data: Any, **more: Any) -> hfta.Study:
    study = hfta.Study(family, grid, data, dtype="float64", directory=folder / "run", **{"epochs": 3, **more})
    list(study.run())
    return study


def assert_same(study: hfta.Study, member: int, printed: list[dict[str, Any]]) -> None:
    curves = study.history.members[member].curves
    names = {name for line in printed for name in line} - {"epoch"}
    losses = {name for name in curves if name.endswith("_loss")}
    assert losses <= names <= set(curves)
    assert [line["epoch"] for line in printed] == list(range(1, study.history.members[member].epoch + 1))
    for name in names:
        values = [line[name] for line in printed if name in line]
        assert values == pytest.approx(list(curves[name].values), abs=WITHIN, rel=WITHIN), name


def of_family(row: FamilyRow, folder: Path) -> tuple[hfta.Study, Path]:
    # Batch norm over the two samples of the last mini-batch makes last bits a hundred times as large in each epoch, and
    # Adam makes more of them.
    optimizer, epochs = ("sgd", 1) if row.name == "mobilenet_v2" else ("adam", 3)
    grid = {"lr": [3e-3, 1e-3], "seed": [3, 4]}
    study = trained(
        folder, row.name, grid, _data(row), batch_size=4, optimizer=optimizer, **{"epochs": epochs, **row.axes}
    )
    return study, study.member(3).script(folder / "train.py")


@pytest.mark.long
@pytest.mark.parametrize("row", ROWS, ids=str)
def test_a_family(row: FamilyRow, tmp_path: Path) -> None:
    study, script = of_family(row, tmp_path)
    [printed] = outputs([script])
    assert_same(study, 3, printed)


@dataclass(frozen=True)
class Settings:
    """Of `Net`, to be found among the globals of its module."""

    width: int
    scale: float = 1.0


WIDE = Settings(12)


class Block(nn.Module):
    def __init__(self, width: int, slope: float) -> None:
        super().__init__()
        self.linear, self.drop, self.slope = nn.Linear(width, width), nn.Dropout(0.2), slope

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = x + self.drop(F.leaky_relu(self.linear(x), self.slope))
        return found


@hfta.family(data="iris")
def net(kind: str = "relu", wide: bool = False, in_features: int = 4, num_classes: int = 3) -> nn.Module:
    """A family of one's own, which refers to much of its module."""
    width = WIDE.width if wide else 6
    blocks = [Block(width, SLOPE[kind]) for _ in range(2)]
    return nn.Sequential(nn.Linear(in_features, width), *blocks, nn.Linear(width, num_classes))


def smooth(output: Tensor, target: Tensor, *, by: float) -> Tensor:
    found: Tensor = F.cross_entropy(output, target, label_smoothing=by) * WIDE.scale
    return found


def loss(output: Tensor, target: Tensor) -> Tensor:
    """Of a name that the script's loop has for something else."""
    found: Tensor = nn.MSELoss()(output.squeeze(1), target)
    return found


class Two(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, width), nn.Linear(2, width)
        self.out = nn.Linear(width, 1)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        found: Tensor = self.out(torch.tanh(self.a(first) + self.b(second)))
        return found


def bytes_of_images() -> hfta.Data:
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (10, 3, 8, 8), dtype=torch.uint8, generator=draw)
    y, standard = torch.arange(10) % 3, (torch.tensor([0.4, 0.5, 0.6]), torch.tensor([0.2, 0.3, 0.2]))
    return hfta.Data("bytes", "classification", x, y, x[:5], y[:5], {"in_channels": 3, "num_classes": 3}, standard)


def parts() -> Any:
    draw = torch.Generator().manual_seed(0)
    x = {"first": torch.randn(12, 3, generator=draw), "second": torch.randn(12, 2, generator=draw)}
    return x, torch.randn(12, generator=draw), x, torch.randn(12, generator=draw)


Found = list[tuple[hfta.Study, Path, int]]


def assert_all_same(found: Found) -> None:
    for (study, script, number), printed in zip(found, outputs([f[1] for f in found]), strict=True):
        assert "hfta_nb" not in script.read_text().split('"""', 2)[2]
        assert_same(study, number, printed)


def of_net(folder: Path, optimizers: list[str], schedules: list[str]) -> Found:
    grid = {"kind": ["leaky"], "wide": [True], "optimizer": optimizers, "lr_scheduler": schedules}
    more = {"loss": functools.partial(smooth, by=0.1), "max_norm": 1.0, "decay_on": "weights", "weight_decay": 0.01}
    loops = {"accumulate_grad_batches": 2, "ema_decay": 0.9, "batch_size": 16, "plateau_patience": 0, "momentum": 0.5}
    study = trained(folder / "net", net, grid, "iris", validate_every=2, steps_per_epoch=5, **more, **loops)
    return [(study, study.member(i).script(folder / f"{i}.py"), i) for i in range(len(study.variants))]


@pytest.mark.long
def test_optimizers_and_schedules(tmp_path: Path) -> None:
    schedules = ["plateau", "onecycle", "cosine", "sequential", "cyclic", "multistep", "none"]
    assert_all_same(of_net(tmp_path, ["sgd", "muon", "rmsprop"], schedules))


def test_families_and_losses_of_ones_own(tmp_path: Path) -> None:
    found = of_net(tmp_path, ["muon"], ["plateau"])
    more = {"batch_size": 4, "drop_last": True, "loss": "cross_entropy", "epochs": 2}
    study = trained(tmp_path / "bytes", "cnn", {"width": [2]}, bytes_of_images(), **more)
    found.append((study, study.member(0).script(tmp_path / "bytes.py"), 0))
    study = trained(tmp_path / "two", Two, {"width": [2, 3]}, parts(), loss=loss, batch_size=5, lr_scheduler="step")
    found.append((study, study.best().script(tmp_path / "two.py"), study.best().variant.id))
    study = trained(tmp_path / "linear", "torch.nn.Linear", {"bias": [False]}, "iris", epochs=1)
    found.append((study, study.member(0).script(tmp_path / "linear.py"), 0))
    assert_all_same(found)


_CODE = (lambda output, target: (output**2).mean()).__code__
typed = types.FunctionType(_CODE.replace(co_filename="<gone>", co_name="typed", co_qualname="typed"), globals())

HELD = nn.Linear(3, 3)
PAIR = torch.zeros(2, 4), torch.zeros(2).long()


def holding(width: int = 4) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), HELD)


REFUSED: dict[str, dict[str, Any]] = {
    "loss of mlp: .*<lambda>.* write a function with def": {"loss": lambda output, target: (output**2).mean()},
    "typed: has no source": {"loss": typed},
    "horizontal_flip: trains in a way that has no plain script; got 0.5": {
        "family": "cnn", "data": "digits", "horizontal_flip": 0.5},
    "class_weight: trains": {"class_weight": "balanced"},
    "sampling: trains.*balanced": {"sampling": "balanced"},
    "folds: trains in a way": {"folds": 2},
    "precision: .*bf16": {"precision": "bf16"},
    "population: .*Leader": {"population": hfta.Leader(), "lr": None, "grid": {"lr": [1e-3, 1e-2]}},
    "optimizer: lbfgs evaluates": {"optimizer": "lbfgs"},
    "data: is read batch by batch": {"data": (lambda: iter([PAIR]), PAIR), "steps_per_epoch": 2},
    "HELD: can't be written": {"family": holding},
    "has not trained yet": {},
    "plateau: its lr follows a metric .* got .val_recall": {
        "lr_scheduler": "plateau", "metrics": {"recall": "recall_0"}, "monitor": "val_recall"},
}  # fmt: skip


@pytest.mark.parametrize("message", REFUSED)
def test_what_has_no_plain_script_is_named(message: str, tmp_path: Path) -> None:
    given: dict[str, Any] = {"family": "mlp", "data": "iris", "grid": {"width": [4]}, "directory": tmp_path}
    given |= REFUSED[message]
    given = {name: value for name, value in given.items() if value is not None}
    study = hfta.Study(**given)
    with pytest.raises(StudyError, match=f"script of #0.*{message}"):
        study.member(0).script(tmp_path / "train.py")
    assert not (tmp_path / "train.py").exists()


def test_a_member_that_was_changed_while_it_trained_is_refused(tmp_path: Path) -> None:
    study = hfta.Study("mlp", {"lr": [1e-3, 1e-2]}, "iris", epochs=3, directory=tmp_path)
    control = hfta.Control()
    for event in study.run(control):
        if isinstance(event, hfta.events.EpochDone) and event.epoch == 1:
            control.set(0, lr=0.5)
    with pytest.raises(StudyError, match=r"script of #0: set after epoch \d: was changed while it trained.*lr"):
        study.member(0).script(tmp_path / "train.py")
    assert study.member(1).script(tmp_path / "other.py").exists()
    with pytest.raises(StudyError, match=r"ends in \.py"):
        study.member(1).script(tmp_path / "train.txt")
