"""Validation at intervals, and epochs of a number of steps."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import hfta_nb as hfta
from hfta_nb import events as ev
from hfta_nb import figures
from hfta_nb.errors import StudyError
from hfta_nb.ui.live_state import LiveState
from tests.core.stores import last_checkpoint
from tests.frames import steady


def _study(directory: Path, **options: Any) -> hfta.Study:
    given: dict[str, Any] = {"epochs": 7, "dtype": "float64", "device": "cpu", "directory": directory, "width": 8}
    return hfta.Study("mlp", options.pop("grid", {"lr": [1e-3, 1e-2]}), **given | options)


def _run(study: hfta.Study, **options: Any) -> list[ev.Event]:
    return list(study.run(**options))


def test_epochs_without_validation(tmp_path: Path) -> None:
    every = _study(tmp_path / "every")
    _run(every)
    study = _study(tmp_path / "third", validate_every=3)
    events = _run(study)
    done = [e for e in events if isinstance(e, ev.EpochDone)]
    assert [e.epoch for e in done] == [1, 2, 3, 4, 5, 6, 7]
    training = {"train_loss", "train_accuracy"}
    for event in done:
        validated = event.epoch in (3, 6, 7)  # the last one always
        assert event.metrics.keys() == (set(study.metrics) if validated else training)
    for mine, theirs in zip(study.history.members.values(), every.history.members.values(), strict=True):
        assert mine.curves["val_loss"].epochs == [3, 6, 7]
        assert mine.best_epoch in (3, 6, 7)
        assert mine.curves["train_loss"].values == pytest.approx(theirs.curves["train_loss"].values, abs=1e-10)
        at = [theirs.curves["val_loss"].values[e - 1] for e in (3, 6, 7)]
        assert mine.curves["val_loss"].values == pytest.approx(at, abs=1e-10)
    assert study.results()[list(study.metrics)].notna().all(axis=None)
    check = study.check([0, 1])
    assert check["equal"].all()
    assert (check["epochs"] == 7).all()
    assert check[["train_loss", "val_loss"]].max(axis=None) <= 1e-10
    assert study.check([0], epochs=2)["equal"].all()  # before the first validation: what there is
    assert "val_loss" not in study.check([0], epochs=2).columns


def test_patience_counts_validations(tmp_path: Path) -> None:
    study = _study(tmp_path, epochs=40, validate_every=2, patience=3, grid={"lr": [1e-3, 0.0]})
    _run(study)
    still = study.history.members[1]
    assert still.state == ev.COMPLETE
    assert still.best_epoch == 2
    assert still.epoch == 8
    assert still.reason == "no better val_accuracy for 3 validations, best at epoch 2"


def test_an_epoch_of_steps_goes_on_through_the_data(tmp_path: Path) -> None:
    """Two epochs of 23 batches, and the same 46 steps in epochs of 10: the same weights."""
    options: dict[str, Any] = {"grid": {"lr": [1e-3, 1e-2], "data_seed": [0, 1]}, "monitor": "val_loss"}
    whole = _study(tmp_path / "whole", epochs=2, **options)
    _run(whole)
    steps = -(-len(whole.data) // 64)
    assert steps == 23
    parts = _study(tmp_path / "parts", epochs=2 * steps, steps_per_epoch=1, validate_every=steps, **options)
    events = _run(parts)
    ends = [e for e in events if isinstance(e, ev.EpochDone) and "val_loss" in e.metrics]
    assert [e.step for e in ends] == [23, 46]
    for mine, theirs in zip(parts.history.members.values(), whole.history.members.values(), strict=True):
        assert mine.curves["val_loss"].values == pytest.approx(theirs.curves["val_loss"].values, abs=1e-10)
    odd = _study(tmp_path / "odd", epochs=5, steps_per_epoch=10, **options)
    told = [e for e in _run(odd) if isinstance(e, ev.StepsDone)]
    assert told[-1].steps_total == 50
    assert told[-1].epochs_done == 5
    first = whole.history.members[0].curves["train_loss"].values[0]
    assert odd.history.members[0].curves["train_loss"].values[0] != pytest.approx(first)
    assert odd.check(range(4))["equal"].all()


def test_lr_schedules_count_such_epochs(tmp_path: Path) -> None:
    options: dict[str, Any] = {"epochs": 6, "lr_scheduler": "step", "step_size": 2, "gamma": 0.0}
    study = _study(tmp_path, steps_per_epoch=3, **options)
    _run(study)
    for member in study.history.members.values():
        values = member.curves["val_loss"].values
        assert values[1] == values[2] == values[5]  # two epochs are trained, then lr is 0
        assert values[0] != values[1]


@pytest.mark.parametrize("serial", [False, True])
def test_stopped_within_an_epoch_of_steps_and_resumed(serial: bool, tmp_path: Path) -> None:
    options: dict[str, Any] = {"steps_per_epoch": 31, "epochs": 3, "serial": serial, "dropout": 0.2}
    whole, parts = _study(tmp_path / "whole", **options), _study(tmp_path / "parts", **options)
    _run(whole)
    control, asked = hfta.Control(), 0
    poll = control.poll

    def counted() -> Any:
        nonlocal asked
        asked += 1
        if asked == (45 if not serial else 120):
            control.stop()
        return poll()

    control.poll = counted  # type: ignore[method-assign]
    _run(parts, control=control)
    run = last_checkpoint(parts.store)["todo"][0]["run"]
    assert run["batch"] % 31
    rest = hfta.Study.load(parts.directory)
    assert rest.options == parts.options
    _run(rest, resume=True)
    pd.testing.assert_frame_equal(steady(rest.results()), steady(whole.results()), atol=1e-10, rtol=0)


def test_views_draw_what_there_is(tmp_path: Path) -> None:
    study = _study(tmp_path, validate_every=4)
    live = LiveState()
    for event in study.run():
        live.add(event)
        if isinstance(event, ev.EpochDone) and event.epoch == 2:
            assert all(math.isnan(row["val_loss"]) for row in study.history.rows())
            assert "no points of val_accuracy yet" in _texts(figures.curves(study.history, "val_accuracy"))
    message = live.take(full=True)
    assert message is not None
    points = {(owner, name): count for owner, name, count in message[0]["curves"]}
    assert points[0, "train_loss"] == 7
    assert points[0, "val_loss"] == 2
    drawn = figures.curves(study.history, "val_loss").axes[0].get_lines()
    assert sorted(len(line.get_xdata()) for line in drawn) == [2, 2, 7, 7]


def _texts(figure: Any) -> str:
    return " ".join(text.get_text() for text in figure.axes[0].texts)


def test_the_pace_is_kept_and_told(tmp_path: Path) -> None:
    study = _study(tmp_path / "a", validate_every=2, steps_per_epoch=5)
    assert "validate_every=2," in study.to_code()
    assert "steps_per_epoch=5," in study.to_code()
    again = hfta.Study.load(study.save(tmp_path / "b"))
    assert (again.validate_every, again.steps_per_epoch) == (2, 5)
    plain = _study(tmp_path / "c").to_code()
    assert "validate_every" not in plain
    assert "steps_per_epoch" not in plain


@pytest.mark.parametrize("name", ["validate_every", "steps_per_epoch"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "2"])
def test_a_pace_that_is_none(name: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=f"{name}: not a positive whole number"):
        _study(tmp_path, **{name: value})


def test_an_endless_function_has_epochs_of_steps(tmp_path: Path) -> None:
    def batches(epoch: int) -> Any:
        generator = torch.Generator().manual_seed(epoch)
        while True:
            x = torch.randn(16, 3, generator=generator)
            yield x, (x.sum(1) > 0).long()

    def held_out() -> Any:
        yield from [next(batches(99)) for _ in range(2)]

    data = hfta.data.from_batches(batches, held_out, num_classes=2, out_features=2, in_features=3)
    study = hfta.Study(
        "mlp", {"lr": [1e-3, 1e-2]}, data, epochs=4, steps_per_epoch=6, dtype="float64", directory=tmp_path
    )
    events = _run(study)
    assert [e.step for e in events if isinstance(e, ev.EpochDone)] == [6, 12, 18, 24]
    assert study.check([0, 1])["equal"].all()


@pytest.mark.parametrize("kind", ["memory", "stream", "varying"])
def test_validation_has_batches_of_the_size_that_is_asked_for(kind: str, tmp_path: Path) -> None:
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))

    def loss(out: Any, y: Any) -> Any:
        return ((out - y) ** 2).mean() + len(y)

    class Counted(TensorDataset):
        def __getitem__(self, i: int) -> Any:
            self.reads = getattr(self, "reads", 0) + 1
            return super().__getitem__(i)

    parts = {"memory": TensorDataset, "stream": TensorDataset, "varying": Counted}[kind]
    training, held = (parts(part, part.sum(1, keepdim=True)) for part in (x[:16], x[16:]))
    given = hfta.data.from_dataset(training, held, in_memory=kind == "memory")
    own = {"epochs": 1, "batch_size": 16, "loss": loss, "dtype": "float64", "device": "cpu"}
    losses = []
    for size in (None, 10):
        place = tmp_path / str(size)
        study = hfta.Study("mlp", {"lr": [0.01]}, given, directory=place, validation_batch_size=size, width=2, **own)
        list(study.run())
        mean_size = (16 * 16 + 8 * 8 if size is None else 10 * 10 + 10 * 10 + 4 * 4) / 24
        losses.append(study.history.members[0].curves["val_loss"].values[0] - mean_size)
    assert losses[0] == pytest.approx(losses[1], abs=1e-12)
    assert "validation_batch_size=10," in study.to_code()
    with pytest.raises(StudyError, match="validation_batch_size: not a positive whole number"):
        hfta.Study("mlp", {"lr": [0.01]}, given, validation_batch_size=0)
    loaders = (DataLoader(training, 8), DataLoader(held, 8))
    with pytest.raises(StudyError, match="validation_batch_size: own data has validation batches of its own size"):
        hfta.Study("mlp", {"lr": [0.01]}, loaders, validation_batch_size=4)


@pytest.mark.parametrize("serial", [False, True])
def test_what_validation_finds_does_not_depend_on_the_size_of_its_batches(serial: bool, tmp_path: Path) -> None:
    x = torch.randn(100, 3, generator=torch.Generator().manual_seed(0))
    y = (x.sum(1) > 0).long()
    held = hfta.data.from_tensors(x, y, x[:70], y[:70], num_classes=2)
    right = hfta.Metric(lambda out, y: (out.argmax(-1) == y).sum().double(), finish=lambda total: total)
    own = {"epochs": 3, "batch_size": 16, "dtype": "float64", "device": "cpu", "serial": serial}
    found = []
    for size in (None, 7, 16, 70):
        study = hfta.Study(
            "mlp",
            {"lr": [1e-2, 1e-1]},
            held,
            directory=tmp_path / str(size),
            validation_batch_size=size,
            metrics={"n": right},
            **own,
        )
        assert set(study.plan(measure=False)["validation_batch_size"]) == {size or 16}
        _run(study)
        found.append({m: study.history.members[m].curves for m in (0, 1)})
    for curves in found[1:]:
        for member, own_curves in curves.items():
            assert own_curves["val_n"].values == found[0][member]["val_n"].values
            losses = found[0][member]["val_loss"].values
            assert own_curves["val_loss"].values == pytest.approx(losses, rel=0, abs=1e-12)


def test_variants_of_unlike_batch_size_are_validated_in_batches_of_one_size(tmp_path: Path) -> None:
    study = hfta.Study("mlp", {"batch_size": [8, 32]}, "iris", directory=tmp_path, device="cpu")
    assert list(study.plan(measure=False)["validation_batch_size"]) == [64, 64]
