"""`Study.check` compares with the user's own loop: a fault planted anywhere between what is handed over and a member is
found."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import hfta_nb as hfta
from hfta_nb import data
from tests.contract.handed_over import Regressor, numbers

X, Y = numbers(20, 4), numbers(20, seed=1)
LABELS = torch.arange(24) % 3
IMAGES, CLOUDS = numbers(24, 3, 6, 6), numbers(24, 5, 6)
MASKS = (numbers(24, 6, 6, seed=1) > 0).long()


class Pictures(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(64, 3))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layers(x)
        return found


class Masks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layer(x)
        return found


class Cloud(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layers(x).amax(1)
        return found


def squeezed(o: Tensor, y: Tensor) -> Tensor:
    return F.mse_loss(o.squeeze(-1), y)


def furthest(o: Tensor, y: Tensor) -> Tensor:
    return (o.squeeze(-1) - y).abs().max()


def in_single(o: Tensor, y: Tensor) -> Tensor:
    """Is no more exact than float32, and what follows is not either."""
    return F.mse_loss(o.squeeze(-1).float(), y.float())


def trained(place: Path, family: Any = Regressor, given: Any = (X, Y, X, Y), **options: Any) -> hfta.Study:
    settings = {"epochs": 2, "batch_size": 8, "device": "cpu", "dtype": "float64", "lr": 0.01, **options}
    study = hfta.Study(family, {"seed": [0, 1]}, given, directory=place, **settings)
    study.fit(progress=False)
    return study


OWN: dict[str, Any] = {"loss": squeezed, "metrics": {"furthest": furthest}, "monitor": "val_loss"}
PICTURES: dict[str, Any] = {
    "family": Pictures, "given": (IMAGES, LABELS, IMAGES, LABELS), "horizontal_flip": 0.5, "random_crop": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [
        OWN,
        {"loss": "mse"},
        {"loss": in_single, "epochs": 8},
        {},
        {"given": (X, Y), **OWN},
        {"given": (X.numpy(), Y.tolist(), X.tolist(), Y.numpy()), **OWN},
        {"given": TensorDataset(X, Y), **OWN},
        {"given": [(x, float(y)) for x, y in zip(X, Y, strict=True)], **OWN},
        {"given": ({"x": X}, {"y": (Y,)}, {"x": X}, {"y": (Y,)}), "loss": lambda o, y: squeezed(o, y["y"][0])},
        {"steps_per_epoch": 2, "validate_every": 2, "drop_last": True, "epochs": 4, **OWN},
        {"lr_scheduler": "plateau", "data_seed": 3, **OWN},
        pytest.param({"optimizer": "lbfgs", **OWN}, marks=pytest.mark.long),
        PICTURES,
        {**PICTURES, "mixup": 0.3, "normalize": True},
        {**PICTURES, "mixup": 0.3, "cutmix": 0.5, "color_jitter": 0.3, "random_erasing": 0.7},
        {
            **PICTURES,
            "family": Masks,
            "given": hfta.data.from_tensors(IMAGES, MASKS, IMAGES, MASKS, task="segmentation"),
        },
        {
            "family": Cloud,
            "given": (CLOUDS, LABELS, CLOUDS, LABELS),
            "point_rotation": 30.0,
            "rotation_axis": "all",
            "point_jitter": 0.1,
        },
    ],
)
def test_without_a_fault_it_is_equal(options: dict[str, Any], tmp_path: Path) -> None:
    found = trained(tmp_path, **options).check(members=[0, 1])
    assert found["equal"].all(), found.T


def _with_target(score: Any, change: Callable[[Any], Any]) -> Any:
    return lambda output, target: score(output, change(target))


def _with_loss(score: Any, change: Callable[[Any], Any]) -> Any:
    def changed(output: Any, target: Any) -> Any:
        loss, found = score(output, target)
        return change(loss), found

    return changed


def _with_metrics(score: Any, change: Callable[[Any], Any]) -> Any:
    def changed(output: Any, target: Any) -> Any:
        loss, found = score(output, target)
        return loss, {name: change(value) for name, value in found.items()}

    return changed


def planted(wrap: Callable[..., Any], change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A fault in what makes losses and metrics of an output and a target."""
    return lambda own: lambda *args, **named: wrap(own(*args, **named), change)


def shifted(own: Any) -> Any:
    """Inputs and targets of unlike rows."""

    def take(samples: Any, rows: Any) -> Any:
        found = own(samples, rows)
        return data.tree_map(lambda t: t.roll(1, 0), found) if samples.ndim == 1 else found

    return take


def of_first_epoch(own: Any) -> Any:
    return lambda samples, seed, epoch: own(samples, seed, 0)


def in_float32(own: Any) -> Any:
    return lambda samples, device, dtype: data.tree_map(
        lambda t: t.float().double() if t.is_floating_point() else t, own(samples, device, dtype)
    )


def not_at_all(own: Any) -> Any:
    return lambda self, x, y, own_samples, epoch, number: (self.data.scaled(x, self.dtype), y, own_samples)


def of_the_next(own: Any) -> Any:
    return lambda self, x, y, own_samples, epoch, number: own(self, x, y, own_samples, epoch, number + 1)


SCORES = "hfta_nb.train.step.update.scorer"
IMAGES = "hfta_nb.data.augment.images"
FAULTS: dict[str, tuple[str, Callable[[Any], Any], dict[str, Any]]] = {
    "target in another dtype": (SCORES, planted(_with_target, lambda y: y.float()), OWN),
    "target turned round": (SCORES, planted(_with_target, lambda y: y.flip(0)), OWN),
    "target of a loss by name": (
        "hfta_nb.models.masks.shaped_as",
        lambda own: lambda y, o: own(y, o).roll(1, 0),
        {"loss": "mse", "metrics": {}},
    ),
    "target of the usual loss": ("hfta_nb.models.masks.shaped_as", lambda own: lambda y, o: own(y, o) * 1.001, {}),
    "loss scaled": (SCORES, planted(_with_loss, lambda loss: loss * 1.0001), OWN),
    "loss of another power": (SCORES, planted(_with_loss, lambda loss: loss**2), OWN),
    "metric scaled": (SCORES, planted(_with_metrics, lambda value: value * 1.001), OWN),
    "metric frozen": (SCORES, planted(_with_metrics, torch.ones_like), OWN),
    "metric by name": (
        "hfta_nb.models.masks.as_numbers", lambda own: lambda y, o: own(y, o) * 1.001, {"loss": squeezed}
    ),
    "rows of other samples": ("hfta_nb.train.batches.take", shifted, OWN),
    "order of the first epoch": ("hfta_nb.data.samples.order", of_first_epoch, OWN),
    "numbers in float32": ("hfta_nb.data.samples.moved", in_float32, OWN),
    "augmentation left out": ("hfta_nb.data.augment.prepare:Prepared.training", not_at_all, PICTURES),
    "augmentation of another batch": ("hfta_nb.data.augment.prepare:Prepared.training", of_the_next, PICTURES),
    "flips of all": (f"{IMAGES}.horizontal_flip", lambda own: lambda x, m, p, d: (x.flip(3), m), PICTURES),
    "crops not padded": (f"{IMAGES}._outside", lambda own: lambda p, n: (p < -99) | (p > 99), PICTURES),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    place, fault, options = FAULTS[name]
    owner = pkgutil.resolve_name(place.rpartition(".")[0])
    attribute = place.rpartition(".")[2]
    monkeypatch.setattr(owner, attribute, fault(getattr(owner, attribute)))
    study = trained(tmp_path, **options)
    assert not study.check(members=[0])["equal"].any()
