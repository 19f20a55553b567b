"""Members with augmented samples equal training alone, whatever the settings of other members."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import hfta_nb as hfta
from hfta_nb.data import Data, augment
from hfta_nb.data.augment import Augmenting
from hfta_nb.data.augment.statistics import Statistics
from hfta_nb.errors import GridError
from hfta_nb.records.events import Control, EpochDone, Stop
from hfta_nb.train.step import ArrayStep

CPU, DOUBLE = torch.device("cpu"), torch.float64
SWEPT: dict[str, list[Any]] = {
    "random_crop": [0, 2],
    "horizontal_flip": [0.0, 0.5],
    "color_jitter": [0.0, 0.4],
    "random_erasing": [0.0, 0.6],
    "mixup": [0.0, 0.4],
    "cutmix": [0.0, 1.0],
    "normalize": [False, True],
}
CLOUD: dict[str, list[Any]] = {
    "point_jitter": [0.0, 0.1],
    "point_rotation": [0.0, 30.0, 180.0],
    "rotation_axis": ["z", "y", "all"],
}


@pytest.fixture(autouse=True)
def _own_families() -> None:
    @hfta.family(data="digits")
    def tiny(num_classes: int = 3, in_channels: int = 3, width: int = 4) -> nn.Module:
        layers = [nn.Conv2d(in_channels, width, 3), nn.Tanh(), nn.Flatten(), nn.LazyLinear(num_classes)]
        return nn.Sequential(*layers[:3], nn.Dropout(0.2), layers[3])

    @hfta.family(data="photographs")
    def pixels(num_classes: int = 3, in_channels: int = 3, width: int = 4) -> nn.Module:
        return nn.Sequential(nn.Conv2d(in_channels, width, 3, padding=1), nn.Tanh(), nn.Conv2d(width, num_classes, 1))

    @hfta.family(data="shapes")
    def points(num_classes: int = 3, in_channels: int = 6, width: int = 8) -> nn.Module:
        class Points(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.each, self.last = nn.Linear(in_channels, width), nn.Linear(width, num_classes)

            def forward(self, x: Tensor) -> Tensor:
                out: Tensor = self.last(torch.tanh(self.each(x)).amax(1))
                return out

        return Points()


def images(count: int = 80, task: str = "classification", kept: torch.dtype = torch.uint8) -> Data:
    generator = torch.Generator().manual_seed(5)
    x = torch.randint(0, 256, (count + 20, 3, 6, 6), generator=generator, dtype=torch.uint8)
    if kept != torch.uint8:
        x = x.to(kept) / 64 - 2
    size = (count + 20, 6, 6) if task == "segmentation" else (count + 20,)
    y = torch.randint(0, 3, size, generator=generator)
    return hfta.data.from_tensors(x[:count], y[:count], x[count:], y[count:], name="toy", task=task)


def cloud(count: int = 80) -> Data:
    generator = torch.Generator().manual_seed(6)
    x = torch.randn(count + 20, 9, 6, generator=generator)
    y = torch.randint(0, 3, (count + 20,), generator=generator)
    return hfta.data.from_tensors(x[:count], y[:count], x[count:], y[count:], name="toy cloud")


def curves(study: hfta.Study) -> dict[int, dict[str, tuple[float, ...]]]:
    list(study.run())
    members = study.history.members
    return {i: {n: tuple(c.values) for n, c in m.curves.items()} for i, m in members.items()}


def run(folder: Path, family: str, grid: dict[str, Any], data: Data, **options: Any) -> Any:
    options = {"epochs": 4, "batch_size": 16, "dtype": "float64", "device": "cpu", **options}
    study = hfta.Study(family, grid, data, directory=folder, **options)
    return study, curves(study)


def apart(a: Any, b: Any) -> float:
    pairs = [(x, y) for i in a for n in a[i] for x, y in zip(a[i][n], b[i][n], strict=True)]
    return max(abs(x - y) for x, y in pairs)


def alike(tmp_path: Path, family: str, grid: dict[str, Any], data: Data, **options: Any) -> Any:
    """Fused and serial give the same curves over 20 steps; returns those of the fused study."""
    study, fused = run(tmp_path / "fused", family, grid, data, **options)
    assert len(study.plan_groups) == 1
    _, serial = run(tmp_path / "serial", family, grid, data, serial=True, **options)
    assert apart(fused, serial) < 1e-10
    for i in range(len(study.variants)):
        weights = study.member(i).module().state_dict()
        twin = hfta.Study.load(tmp_path / "serial", family=study.family).member(i).module().state_dict()
        assert max(float((weights[k] - twin[k]).abs().max()) for k in weights) < 1e-10
    return fused


@pytest.mark.parametrize("axis", SWEPT)
def test_fused_equals_serial_with_an_augmentation_swept_off_and_on(axis: str, tmp_path: Path) -> None:
    found = alike(tmp_path, "tiny", {axis: SWEPT[axis], "seed": [0, 1]}, images())
    assert found[0]["train_loss"] != found[2]["train_loss"]


@pytest.mark.only(kept=torch.uint8)
@pytest.mark.parametrize("kept", [torch.uint8, torch.float32])
def test_fused_equals_serial_with_all_at_once_and_orders_of_their_own(kept: torch.dtype, tmp_path: Path) -> None:
    grid = {"data_seed": [0, 1], "mixup": [0.0, 0.4], "normalize": [False, True]}
    fixed = {"random_crop": 1, "horizontal_flip": 0.5, "color_jitter": 0.3, "random_erasing": 0.3, "cutmix": 1.0}
    alike(tmp_path, "tiny", grid, images(kept=kept), **fixed)


@pytest.mark.parametrize("axis", ["random_crop", "horizontal_flip", "color_jitter", "random_erasing", "normalize"])
def test_fused_equals_serial_on_photographs_with_masks(axis: str, tmp_path: Path) -> None:
    alike(tmp_path, "pixels", {axis: SWEPT[axis]}, images(task="segmentation"))


@pytest.mark.parametrize("axis", CLOUD)
def test_fused_equals_serial_on_point_clouds(axis: str, tmp_path: Path) -> None:
    fixed = {"point_rotation": 20.0} if axis == "rotation_axis" else {}
    found = alike(tmp_path, "points", {axis: CLOUD[axis]}, cloud(), **fixed)
    assert len({f["train_loss"] for f in found.values()}) == len(CLOUD[axis])


@pytest.mark.only(kept=torch.float32)
@pytest.mark.parametrize("kept", [torch.uint8, torch.float32])
def test_fused_equals_serial_on_a_stream(kept: torch.dtype, tmp_path: Path) -> None:
    data = images(kept=kept)
    loader = DataLoader(TensorDataset(data.x, data.y), batch_size=16, shuffle=True)
    held = (data.x_validation, data.y_validation)
    grid, fixed = {"mixup": [0.0, 0.4], "normalize": [False, True]}, {"color_jitter": 0.3, "random_erasing": 0.5}
    found = []
    for serial in (False, True):
        stream = hfta.data.from_loader(loader, held, num_classes=3)
        study = hfta.Study(
            *("tiny", grid, stream),
            **{"directory": tmp_path / str(serial), "dtype": "float64", "device": "cpu", "serial": serial, "epochs": 3},
            **fixed,
        )
        found.append(curves(study))
    assert apart(*found) < 1e-10
    assert len({m["train_loss"] for m in found[0].values()}) == 4
    # Five batches are the whole of the data: its mean and deviation are known exactly.
    whole = Statistics(data.to(CPU, DOUBLE), CPU).moments
    for a, b in zip(Statistics(stream, CPU).moments, whole, strict=True):
        assert torch.allclose(a, b, rtol=1e-6)


def test_targets_may_be_shares_of_classes_from_the_start(tmp_path: Path) -> None:
    data = images()
    soft, held = (0.8 * torch.eye(3)[y] + 0.2 / 3 for y in (data.y, data.y_validation))
    own = hfta.data.from_tensors(data.x, soft, data.x_validation, held, task="classification")
    alike(tmp_path, "tiny", {"mixup": [0.0, 0.4]}, own)


class Seen:
    """What the steps of a run are given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.shapes: list[tuple[int, ...]] = []
        self.targets: list[tuple[int, ...]] = []
        train = ArrayStep.train

        def watch(step: ArrayStep, x: Any, y: Any, **named: Any) -> Any:
            self.shapes.append(tuple(getattr(x, "value", x).shape))
            self.targets.append(tuple(getattr(y, "value", y).shape))
            return train(step, x, y, **named)

        monkeypatch.setattr(ArrayStep, "train", watch)


def test_a_setting_that_all_share_is_computed_once_and_stays_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = Seen(monkeypatch)
    made: list[Any] = []
    spied = augment.images.mix  # type: ignore[attr-defined]
    monkeypatch.setattr("hfta_nb.data.augment.images.mix", lambda *a: made.append(a) or spied(*a))
    run(tmp_path, "tiny", {"lr": [1e-3, 1e-2, 1e-1]}, images(), mixup=0.3, random_crop=1, normalize=True, epochs=1)
    assert set(seen.shapes) == {(16, 3, 6, 6)}
    assert set(seen.targets) == {(16, 3)}
    assert len(made) == len(seen.shapes)  # block sizes are tried on steps that train


def test_where_settings_differ_each_distinct_one_is_computed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = Seen(monkeypatch)
    made: list[Any] = []
    spied = augment.images.random_crop  # type: ignore[attr-defined]
    monkeypatch.setattr("hfta_nb.data.augment.images.random_crop", lambda *a: made.append(a) or spied(*a))
    run(tmp_path, "tiny", {"random_crop": [0, 1, 2], "seed": [0, 1]}, images(), epochs=1)
    assert set(seen.shapes) == {(6, 16, 3, 6, 6)}
    assert set(seen.targets) == {(6, 16)}
    assert len(made) == 2 * len(seen.shapes)


def test_without_augmentation_nothing_stands_in_the_way() -> None:
    rows = [{"random_crop": 0, "mixup": 0.0, "rotation_axis": "all"}, {}]
    assert Augmenting(images(), CPU, DOUBLE).of(rows, [0, 0]) is None


def test_draws_do_not_depend_on_the_group() -> None:
    data = images().to(CPU, DOUBLE)
    one, more = {"mixup": 0.4, "horizontal_flip": 0.5, "random_crop": 1}, {"cutmix": 1.0, "color_jitter": 0.2}
    augmenting = Augmenting(data, CPU, DOUBLE)
    x, y = data.x[:16], data.y[:16]
    alone, together = augmenting.of([one], [7]), augmenting.of([more, {}, one, {**one, "normalize": True}], [7] * 4)
    assert alone is not None
    assert together is not None
    xa, ya, own = alone.training(x, y, False, 3, 5)
    assert not own
    xt, yt, own = together.training(x, y, False, 3, 5)
    assert own
    assert torch.equal(xt[2], xa)
    assert torch.equal(yt[2], ya)
    assert torch.equal(xt[1], data.scaled(x, DOUBLE))
    mean, deviation = augmenting.statistics.moments
    assert torch.allclose(xt[3], (xa - mean.view(-1, 1, 1)) / deviation.view(-1, 1, 1))
    other, _, _ = alone.training(x, y, False, 3, 6)
    assert not torch.equal(other, xa)


def test_what_a_data_set_is_standardised_by_comes_after_augmentation_or_gives_way_to_normalize() -> None:
    mean, deviation = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.5, 0.6, 0.7])
    data = dataclasses.replace(images(), standard=(mean, deviation)).to(CPU, DOUBLE)
    x, y = data.x[:16], data.y[:16]
    augmenting = Augmenting(data, CPU, DOUBLE)
    plain, flipped, normal = {}, {"horizontal_flip": 1.0}, {"normalize": True}
    prepared = augmenting.of([plain, flipped, normal], [0, 0, 0])
    assert prepared is not None
    found, _, _ = prepared.training(x, y, False, 0, 0)
    scaled = x.double() / 255
    by_set = (scaled - mean.double().view(-1, 1, 1)) / deviation.double().view(-1, 1, 1)
    own_mean, own_deviation = (v.view(-1, 1, 1) for v in augmenting.statistics.moments)
    assert torch.allclose(found[0], by_set)
    assert torch.allclose(found[1], by_set.flip(3))
    assert torch.allclose(found[2], (scaled - own_mean) / own_deviation)
    held, _, own = prepared.validation(x, y, False)
    assert own
    assert torch.equal(held[0], held[1])
    assert torch.equal(held[2], found[2])


def test_members_of_other_orders_get_draws_of_their_own() -> None:
    data = images().to(CPU, DOUBLE)
    row = {"horizontal_flip": 0.5}
    prepared = Augmenting(data, CPU, DOUBLE).of([row, row], [1, 2])
    assert prepared is not None
    x = data.x[:16].expand(2, -1, -1, -1, -1)
    first, second = prepared.training(x, data.y[:16].expand(2, -1), True, 0, 0)[0]
    assert not torch.equal(first, second)
    alone = Augmenting(data, CPU, DOUBLE).of([row], [2])
    assert alone is not None
    assert torch.equal(alone.training(data.x[:16], data.y[:16], False, 0, 0)[0], second)


def test_a_members_own_random_numbers_are_not_disturbed(tmp_path: Path) -> None:
    """Its dropout masks are those that it has without augmentation: a flip that never comes changes nothing."""
    _, plain = run(tmp_path / "plain", "tiny", {"seed": [0, 1]}, images())
    _, never = run(tmp_path / "never", "tiny", {"seed": [0, 1]}, images(), random_erasing=1e-12)
    assert apart(plain, never) == 0.0


def test_validation_is_normalised_and_not_augmented(tmp_path: Path) -> None:
    data = images()
    x, held = data.x.double() / 255, data.x_validation.double() / 255
    mean, deviation = x.mean((0, 2, 3)).view(-1, 1, 1), x.std((0, 2, 3), correction=0).view(-1, 1, 1)
    ready = ((x - mean) / deviation, data.y, (held - mean) / deviation, data.y_validation)
    by_hand = Data("by hand", "classification", *ready, data.facts)
    study, kept = run(tmp_path / "a", "tiny", {"seed": [0]}, data, normalize=True)
    _, wanted = run(tmp_path / "b", "tiny", {"seed": [0]}, by_hand)
    assert apart(kept, wanted) < 1e-12
    inputs = study.member(0).inputs(data.x_validation)
    assert torch.allclose(inputs, (held - mean) / deviation)
    module = study.member(0).module()
    right = (module(inputs).argmax(1) == data.y_validation).double().mean()
    assert float(right) == pytest.approx(study.member(0).metrics["val_accuracy"])
    rows = [{"random_crop": 2, "mixup": 1.0}]
    prepared = Augmenting(data, CPU, DOUBLE).of(rows, [0])
    assert prepared is not None
    x, y, own = prepared.validation(data.x_validation, data.y_validation, False)
    assert torch.equal(x, data.scaled(data.x_validation, DOUBLE))
    assert torch.equal(y, data.y_validation)
    assert not own


def test_the_check_finds_members_equal(tmp_path: Path) -> None:
    grid = {"mixup": [0.0, 0.3], "random_crop": [0, 1]}
    study, _ = run(tmp_path, "tiny", grid, images(), normalize=True)
    found = study.check(members=[0, 1, 2, 3])
    assert bool(found["equal"].all())
    assert float(found["train_loss"].max()) < 1e-10


def test_a_resumed_run_sees_the_same_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grid = {"mixup": [0.0, 0.3], "random_crop": [0, 1], "normalize": [False, True]}
    _, whole = run(tmp_path / "whole", "tiny", grid, images(), color_jitter=0.3)
    options = {"epochs": 4, "batch_size": 16, "dtype": "float64", "device": "cpu", "color_jitter": 0.3}
    study = hfta.Study("tiny", grid, images(), directory=tmp_path / "parts", **options)
    control, steps, train = Control(), iter(range(100)), ArrayStep.train

    def count(step: ArrayStep, x: Any, y: Any, **named: Any) -> Any:
        if next(steps) == 7:  # of 5 in an epoch
            control.post(Stop())
        return train(step, x, y, **named)

    with monkeypatch.context() as patch:
        patch.setattr(ArrayStep, "train", count)
        list(study.run(control))
    assert study.history.members[0].epoch == 1
    again = hfta.Study.load(tmp_path / "parts", family=study.family)
    epochs = [e.epoch for e in again.run(resume=True) if isinstance(e, EpochDone)]
    assert epochs == [2, 3, 4]
    members = again.history.members
    found = {i: {n: tuple(c.values) for n, c in m.curves.items()} for i, m in members.items()}
    assert apart(whole, found) < 1e-12  # blocks of another size may round otherwise


def test_an_early_leaver_changes_nothing_for_the_others(tmp_path: Path) -> None:
    grid = {"random_crop": [0, 1, 2], "normalize": [False, True]}
    _, whole = run(tmp_path / "whole", "tiny", grid, images())
    options = {"epochs": 4, "batch_size": 16, "dtype": "float64", "device": "cpu"}
    study = hfta.Study("tiny", grid, images(), directory=tmp_path / "left", **options)
    control = Control()
    for event in study.run(control):
        if isinstance(event, EpochDone) and event.epoch == 2:
            control.post(Stop(1))
    for i, member in study.history.members.items():
        if i != 1:
            assert tuple(member.curves["val_loss"].values) == pytest.approx(whole[i]["val_loss"], abs=1e-12)


def test_a_loss_of_the_familys_own_keeps_class_numbers_where_nothing_is_mixed(tmp_path: Path) -> None:
    def own(output: Tensor, target: Tensor) -> Tensor:
        return nn.functional.cross_entropy(output, target, weight=torch.tensor([1.0, 2.0, 3.0]).to(output))

    base = hfta.family("tiny")
    family = hfta.family(name="weighted", data="digits", loss=own)(base.function)
    study, fused = run(tmp_path / "fused", family, {"mixup": [0.0, 0.4], "seed": [0, 1]}, images())
    assert [len(g.variants) for g in study.plan_groups] == [2, 2]
    assert "shares of classes" in study.plan_groups[1].reason
    _, serial = run(tmp_path / "serial", family, {"mixup": [0.0, 0.4], "seed": [0, 1]}, images(), serial=True)
    assert apart(fused, serial) < 1e-10


def test_soft_targets_count_by_their_largest_share() -> None:
    output = torch.tensor([[3.0, 1.0, 0.0], [0.0, 1.0, 3.0]])
    shares = torch.tensor([[0.6, 0.4, 0.0], [0.0, 0.7, 0.3]])
    found = hfta.family("cnn").metrics_for(images())
    assert float(found["accuracy"](output, shares)) == 0.5
    assert float(found["accuracy"](output, torch.tensor([0, 1]))) == 0.5


UNSUITABLE: list[tuple[str, Any, dict[str, Any], str]] = [
    ("tiny", cloud, {"random_crop": [0, 1]}, "random_crop is for images, and toy cloud has none"),
    ("points", images, {"point_jitter": [0, 1]}, "point_jitter is for point clouds, and toy has none"),
    ("mlp", "breast_cancer", {"normalize": [False, True]}, "normalize is for images, and breast_cancer has none"),
    ("pixels", lambda: images(task="segmentation"), {"mixup": [0.0, 0.2]}, "mixes classes, one for each image"),
    ("dcgan", "digit_images", {"normalize": [False, True]}, "and digit_images is for generation"),
    ("tiny", images, {"random_crop": [0, 6]}, "moves images of toy out of sight"),
    ("tiny", images, {"horizontal_flip": [0, 1.5]}, "out of bounds"),
    ("points", cloud, {"rotation_axis": ["z", "all"]}, "changes nothing with point_rotation=0"),
]


@pytest.mark.parametrize(("family", "data", "grid", "message"), UNSUITABLE)
def test_what_does_not_suit_is_refused_and_says_why(family: str, data: Any, grid: Any, message: str) -> None:
    with pytest.raises(GridError, match=message):
        hfta.Study(family, grid, data if isinstance(data, str) else data())
