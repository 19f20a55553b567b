"""Data read during a run: loaders, datasets, functions; the batches do not depend on who reads them, or when."""

from __future__ import annotations

import multiprocessing
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

import hfta_nb as hfta
from hfta_nb import data
from hfta_nb import events as ev
from hfta_nb.errors import DataError, StoreError
from hfta_nb.train.batches import Batches
from hfta_nb.train.consecutive import batches_of


def numbers(count: int = 60, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(count, 6, generator=torch.Generator().manual_seed(seed))
    return x, (x.sum(1) > 0).long() + (x[:, 0] > 1).long()


HELD = numbers(20, seed=1)


class Noisy(Dataset):
    """Draws from everybody's random numbers, as augmentation does."""

    def __init__(self, count: int = 40) -> None:
        self.x, self.y = numbers(count)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        return self.x[i] + 0.1 * torch.randn(6) + random.random() + float(np.random.rand()), int(self.y[i])


class Endless(IterableDataset):
    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for _ in range(self.count):
            x = torch.randn(6)
            yield x, x.sum().gt(0).long()


def uneven(epoch: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for size in (16, 5, 9):
        x = torch.randn(size, 6)
        yield x, (x.sum(1) > 0).long() + epoch * 0


STREAMS: dict[str, Any] = {
    "loader": lambda: data.from_loader(DataLoader(TensorDataset(*numbers()), 16, shuffle=True), HELD),
    "noisy loader": lambda: data.from_loader(DataLoader(Noisy(), 16, shuffle=True), HELD),
    "loader with a generator": lambda: data.from_loader(
        DataLoader(Noisy(), 7, shuffle=True, generator=torch.Generator().manual_seed(7), drop_last=True), HELD
    ),
    "workers": lambda: data.from_loader(DataLoader(Noisy(), 16, shuffle=True, num_workers=2), HELD),
    "workers that live on": lambda: data.from_loader(
        DataLoader(Noisy(), 16, shuffle=True, num_workers=2, persistent_workers=True), HELD
    ),
    "iterable": lambda: data.from_loader(DataLoader(Endless(50), 16), HELD),
    "function": lambda: data.from_batches(uneven, HELD),
    "dataset": lambda: data.from_dataset(Noisy(), TensorDataset(*HELD)),
    "iterable dataset": lambda: data.from_dataset(Endless(50), TensorDataset(*HELD)),
}


def batches(stream: Any, size: int = 16) -> Batches:
    return batches_of(stream, size, torch.device("cpu"), torch.float32)


def equal(a: list[Any], b: list[Any]) -> bool:
    return len(a) == len(b) and all(torch.equal(p.x, q.x) and torch.equal(p.y, q.y) for p, q in zip(a, b, strict=True))


@pytest.mark.parametrize("kind", [kind for kind in STREAMS if kind != "loader with a generator"])
def test_a_pass_has_the_same_batches_each_time_and_no_other_pass_has(kind: str) -> None:
    stream = STREAMS[kind]()
    torch.manual_seed(5)
    random.seed(5)
    first, second = batches(stream), batches(stream)
    state = torch.random.get_rng_state()
    one = [list(first.epoch(e, 0, [3, 3])) for e in range(2)]
    assert torch.equal(torch.random.get_rng_state(), state)  # nobody else's random numbers are drawn
    drawn = random.random()
    random.seed(5)
    assert random.random() == drawn
    assert equal(list(second.epoch(1, 0, [3])), one[1])
    assert equal(list(second.epoch(0, 2, [3])), one[0][2:])  # as after an interruption
    assert not torch.equal(one[0][0].x, one[1][0].x)
    assert not torch.equal(next(second.epoch(0, 0, [4])).x, one[0][0].x)
    second.close()
    assert first.length == len(one[1])
    assert multiprocessing.active_children() == []


def test_a_dataset_gives_the_same_in_memory_and_while_a_run_goes_on() -> None:
    whole = data.from_dataset(TensorDataset(*numbers()))
    stream = data.from_dataset(TensorDataset(*numbers()), in_memory=False)
    assert isinstance(whole, hfta.Data)
    assert isinstance(stream, data.Stream)
    assert whole.facts == stream.facts == {"in_features": 6, "num_classes": 3, "out_features": 3}
    for epoch in range(2):
        kept, read = (list(batches(d, 10).epoch(epoch, 1, [3])) for d in (whole, stream))
        assert equal(kept, read)
    kept, read = (list(batches(d).validation()) for d in (whole, stream))
    assert equal(kept, read)
    assert repr(stream) == "Stream('TensorDataset', classification, 48 samples of [6])"


@pytest.mark.parametrize("kind", [torch.as_tensor, np.asarray], ids=["tensors", "arrays"])
def test_a_list_of_samples_is_a_dataset(kind: Any) -> None:
    x, y = numbers()
    samples = [(kind(row), int(label)) for row, label in zip(x, y, strict=True)]
    whole, listed = data.from_dataset(TensorDataset(x, y)), data.resolve(samples)
    assert listed.name == "own data"
    assert listed.facts == whole.facts
    assert equal(list(batches(listed).epoch(0, 0, [3])), list(batches(whole).epoch(0, 0, [3])))
    split = data.resolve((samples[:40], samples[40:]))
    assert sum(len(batch.x) for batch in batches(split).validation()) == len(samples) - 40


def test_lists_of_numbers_are_inputs_and_targets() -> None:
    found = data.resolve(([(1.0, 2.0), (3.0, 4.0)] * 20, [0, 1] * 20))
    assert found.facts["in_features"] == 2


def test_a_dataset_that_draws_or_is_too_large_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(data.resolve(Noisy()), data.Stream)
    assert isinstance(data.from_dataset(Noisy(), in_memory=True), hfta.Data)
    monkeypatch.setattr("hfta_nb.data.datasets.SHARE_OF_MEMORY", 1e-9)
    assert isinstance(data.resolve(TensorDataset(*numbers())), data.Stream)


class NumpysNoise(Noisy):
    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        return self.x[i] + float(np.random.rand()), int(self.y[i])


def test_a_dataset_that_draws_from_another_generator_of_numpys_is_not_kept() -> None:
    before = np.random.get_bit_generator()  # type: ignore[attr-defined]
    try:
        np.random.set_bit_generator(np.random.PCG64(1))  # type: ignore[attr-defined]
        assert isinstance(data.resolve(NumpysNoise()), data.Stream)
    finally:
        np.random.set_bit_generator(before)  # type: ignore[attr-defined]


def test_leaving_members_do_not_disturb_a_stream() -> None:
    calls = []

    def counted() -> Iterator[Any]:
        calls.append(1)
        return uneven(0)

    stream = data.from_batches(counted, HELD)
    calls.clear()
    whole = list(batches(stream).epoch(0, 0, [3]))
    source = batches(stream)
    found = [next(source.epoch(0, 0, [3, 3, 3]))]
    found += list(source.epoch(0, 1, [3, 3]))
    assert equal(found, whole)
    assert len(calls) == 2


def study(given: Any, directory: Path, **options: Any) -> hfta.Study:
    grid = {"lr": [1e-3, 1e-2], "seed": [0, 1]}
    return hfta.Study("mlp", grid, given, directory=directory, width=4, dropout=0.1, **{"epochs": 2, **options})


@pytest.mark.parametrize("kind", ["noisy loader", "iterable", "function", "dataset"])
def test_members_are_what_they_are_alone(kind: str, tmp_path: Path) -> None:
    made = study(STREAMS[kind](), tmp_path / "run", dtype="float64")
    events = list(made.run())
    assert made.check(members=[0, 3])["equal"].all()
    serial = study(STREAMS[kind](), tmp_path / "serial", dtype="float64", serial=True)
    list(serial.run())
    for m, member in made.history.members.items():
        for name in made.metrics:
            torch.testing.assert_close(
                member.curves[name].values, serial.history.members[m].curves[name].values, rtol=0, atol=1e-10
            )
    last = [e for e in events if isinstance(e, ev.StepsDone)][-1]
    assert last.step == last.steps_total == {"noisy loader": 6, "iterable": 8, "function": 6, "dataset": 2}[kind]


def test_uneven_batches_weigh_as_their_samples(tmp_path: Path) -> None:
    made = hfta.Study(
        "mlp", {"seed": [0, 1]}, (uneven, uneven), lr=0.0, epochs=1, dtype="float64", directory=tmp_path / "even"
    )
    list(made.run())
    model = made.member(1).module()
    stream = made.data
    for part, name in ((stream.training, "train_loss"), (stream.validation, "val_loss")):
        pairs = list(part.batches(0, 0, 0))
        x, y = torch.cat([x for x, _ in pairs]).double(), torch.cat([y for _, y in pairs])
        value = torch.nn.functional.cross_entropy(model(x), y).item()
        assert abs(made.history.members[1].curves[name].values[0] - value) < 1e-12


@pytest.mark.parametrize("kind", ["loader with a generator", "workers", "function"])
def test_a_run_goes_on_in_the_middle_of_an_epoch(kind: str, tmp_path: Path) -> None:
    whole = study(STREAMS[kind](), tmp_path / "whole", dtype="float64")
    list(whole.run())
    control = hfta.Control()
    half = study(STREAMS[kind](), tmp_path / "half", dtype="float64")
    run = half.run(control)
    for event in run:
        if isinstance(event, ev.PhaseChanged) and event.phase == "training":
            break
    trained = half.plan_groups  # three steps more, then stop
    assert len(trained) == 1
    stop_after(half, run, control)
    assert multiprocessing.active_children() == []
    with pytest.raises(StoreError, match=r"was a stream.*Study.load\(path, data="):
        hfta.Study.load(tmp_path / "half")
    with pytest.raises(StoreError, match=r"not the data of this study; got .*; accepted: .*'in_features': 6"):
        hfta.Study.load(tmp_path / "half", data="wine")
    again = hfta.Study.load(tmp_path / "half", data=STREAMS[kind]())
    list(again.run(resume=True))
    for m, member in whole.history.members.items():
        for name in whole.metrics:
            found = again.history.members[m].curves[name].values
            # To rounding: how many members run at once is measured anew by each.
            torch.testing.assert_close(found, member.curves[name].values, rtol=0, atol=1e-12)


def stop_after(made: hfta.Study, run: Iterator[Any], control: hfta.Control) -> None:
    """Ask for a stop while the run is in the middle of its first epoch."""
    from hfta_nb.train.group_run import GroupRun

    original = GroupRun._train_step

    def counted(self: GroupRun, batch: Any) -> Iterator[Any]:
        yield from original(self, batch)
        if self.steps == 2:
            control.stop()

    GroupRun._train_step = counted  # type: ignore[method-assign]
    try:
        list(run)
    finally:
        GroupRun._train_step = original  # type: ignore[method-assign]
    assert made.history.state == ev.STOPPED


def test_leaving_the_loop_ends_a_loaders_processes(tmp_path: Path) -> None:
    run = study(STREAMS["workers"](), tmp_path / "run", epochs=50).run()
    for event in run:
        if isinstance(event, ev.EpochDone):
            break
    run.close()
    assert multiprocessing.active_children() == []


def test_an_endless_function_with_steps_per_epoch(tmp_path: Path) -> None:
    def endless(epoch: int) -> Iterator[Any]:
        while True:
            x = torch.randn(8, 6)
            yield x, (x.sum(1) > 0).long()

    with pytest.raises(DataError, match="num_classes can't be found"):
        data.from_batches(endless, HELD)
    stream = data.from_batches(endless, HELD, num_classes=3, out_features=3)
    made = study(stream, tmp_path / "run", steps_per_epoch=3, epochs=2)
    list(made.run())
    assert [e for e, _ in made.store.events() if isinstance(e, ev.EpochDone)][-1].step == 6


@pytest.mark.parametrize(
    ("item", "shapes"),
    [
        ((torch.zeros(4, 2), torch.zeros(4)), ((4, 2), (4,))),
        ([torch.zeros(4, 2), torch.zeros(4, 3), torch.zeros(4)], (((4, 2), (4, 3)), (4,))),
        ({"input_ids": torch.zeros(4, 2), "labels": torch.zeros(4)}, ((4, 2), (4,))),
        (
            {"ids": torch.zeros(4, 2), "mask": torch.zeros(4, 2), "label": torch.zeros(4)},
            ({"ids": (4, 2), "mask": (4, 2)}, (4,)),
        ),
        ((np.zeros((4, 2), np.float32), [1.0, 2.0, 3.0, 4.0]), ((4, 2), (4,))),
    ],
)
def test_forms_of_a_batch(item: Any, shapes: Any) -> None:
    stream = data.from_batches(lambda: [item], lambda: [item])
    x, y = stream.first

    def shape(samples: Any) -> Any:
        if isinstance(samples, dict):
            return {k: tuple(v.shape) for k, v in samples.items()}
        return tuple(map(shape, samples)) if isinstance(samples, tuple) else tuple(samples.shape)

    assert (shape(x), shape(y)) == shapes


def test_classes_are_found_out() -> None:
    class Named(TensorDataset):
        classes = ("a", "b", "c", "d", "e")

    class Numbered(TensorDataset):
        targets = (0, 1, 7)

    assert data.resolve(Named(*numbers())).facts["num_classes"] == 5
    loader = DataLoader(Subset(Named(*numbers()), range(40)), 8)
    assert data.from_loader(loader, HELD).facts["num_classes"] == 5
    assert data.from_loader(DataLoader(Numbered(*numbers()), 8), HELD).facts["num_classes"] == 8
    assert data.from_loader(DataLoader(TensorDataset(*numbers()), 8), HELD).facts["num_classes"] == 3
    assert data.from_loader(DataLoader(TensorDataset(*numbers()), 8), HELD, num_classes=9).facts["num_classes"] == 9


def test_pictures_are_kept_as_bytes() -> None:
    image = pytest.importorskip("PIL.Image")

    class Pictures(Dataset):
        def __len__(self) -> int:
            return 10

        def __getitem__(self, i: int) -> Any:
            return image.new("RGB", (4, 3), (i, 255, 0)), i % 2

    whole = data.resolve(Pictures())
    assert (whole.x.dtype, whole.x.shape[1:]) == (torch.uint8, (3, 3, 4))
    x = whole.sample(2)
    assert x.dtype == torch.float32
    assert x[:, 1].eq(1).all()
    (batch,) = batches(whole).validation()
    assert batch.x.dtype == torch.float32
    assert batch.x.max() == 1
