"""Worker processes that make the batches of data sets: same bits, in order, as few as keep up, replaced if killed."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from hfta_nb import data
from hfta_nb import events as ev
from hfta_nb.data import Demand, preprocessed, workers
from hfta_nb.data.shared_slots import Folder
from hfta_nb.errors import DataError
from tests.core.test_shared_streams import HELD, STREAMS, Noisy, assert_same, study


class Drawing(Dataset):
    """Draws from everybody's random numbers."""

    def __init__(self, count: int = 60) -> None:
        self.x = torch.randn(count, 6, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[dict[str, torch.Tensor], int]:
        return self.x[i] + torch.randn(6) + random.random() + float(np.random.rand()), int(i % 3)


class Fatal(Noisy):
    """Ends any other process that reads sample 7, or raises."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.owner = how, os.getpid()

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        if i == 7 and os.getpid() != self.owner:
            if self.how == "raises":
                raise ValueError(f"sample {i} is broken")
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(i)


def stream(dataset: Any) -> data.Stream:
    found = data.from_dataset(dataset, TensorDataset(*HELD), in_memory=False)
    assert isinstance(found, data.Stream)
    return found


def same(a: list[Any], b: list[Any]) -> bool:
    return len(a) == len(b) and all(
        torch.equal(x, u) and torch.equal(y, v) for (x, y), (u, v) in zip(a, b, strict=True)
    )


def test_workers_give_the_batches_of_the_stream_in_order() -> None:
    plain = stream(Drawing())
    read, made = preprocessed(plain, Demand(most=2))
    assert made is not None
    try:
        for epoch in range(2):
            alone = list(plain.training.batches(16, 3, epoch))
            assert same(list(read.training.batches(16, 3, epoch)), alone)
            assert same(list(read.training.batches(16, 3, epoch, skip=2)), alone[2:])
        assert same(list(read.validation.batches(8, 0, 0)), list(plain.validation.batches(8, 0, 0)))
        assert made.cpu_s > 0
        assert made.replaced == 0
    finally:
        made.close()
    assert made.processes == []


def test_a_batch_depends_on_its_number_alone() -> None:
    source = stream(Drawing()).training
    assert isinstance(source, workers.DatasetSource)
    whole = list(source.batches(16, 3, 1))
    assert same([source.batch(16, 3, 1, n) for n in (3, 0, 2, 1)], [whole[n] for n in (3, 0, 2, 1)])
    assert not torch.equal(source.batch(16, 3, 2, 0)[0], whole[0][0])
    assert not torch.equal(source.batch(16, 4, 1, 0)[0], whole[0][0])


def test_passes_that_are_left_and_read_in_between_disturb_nobody() -> None:
    plain = stream(Drawing())
    read, made = preprocessed(plain, Demand(most=2))
    assert made is not None
    try:
        one, other = read.training.batches(8, 3, 0), read.validation.batches(8, 0, 0)
        found = [next(one), next(one)]
        assert same(list(other), list(plain.validation.batches(8, 0, 0)))
        found.append(next(one))
        one.close()
        assert same(found, list(plain.training.batches(8, 3, 0))[:3])
        assert same(list(read.training.batches(8, 3, 0)), list(plain.training.batches(8, 3, 0)))
    finally:
        made.close()


def test_only_map_style_datasets_on_the_host_are_read_by_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    class Iterable(IterableDataset):
        def __iter__(self) -> Any:
            return iter(TensorDataset(*HELD))

    function = data.from_batches(lambda: [HELD], HELD)
    for given in (function, stream(Iterable())):
        assert preprocessed(given) == (given, None)
    monkeypatch.setattr(workers, "possible", lambda: False)
    given = stream(Drawing())
    assert preprocessed(given) == (given, None)


@pytest.mark.parametrize("busy", [True, False])
def test_a_killed_worker_is_replaced_and_its_batch_made_again(busy: bool) -> None:
    plain = stream(Drawing())
    read, made = preprocessed(plain, Demand(most=1))
    assert made is not None
    try:
        reader = read.training.batches(8, 3, 0)
        found = [next(reader)]
        if not busy:
            found += [next(reader) for _ in range(6)]  # the last batches are asked for; none is left to ask for
        (before,) = made.processes
        os.kill(before, signal.SIGKILL)
        found += list(reader)
        assert same(found, list(plain.training.batches(8, 3, 0)))
        if busy:
            assert made.replaced == 1
        assert same(list(read.training.batches(8, 3, 1)), list(plain.training.batches(8, 3, 1)))
        assert made.replaced == 1
        assert made.processes != [before]
    finally:
        made.close()


def test_what_a_sample_raises_is_told_and_what_kills_every_worker_given_up() -> None:
    for how, words in (("raises", r"ValueError: sample 7 is broken"), ("dies", r"5 processes ended .* code -9\)")):
        read, made = preprocessed(stream(Fatal(how)), Demand(most=1))
        assert made is not None
        try:
            with pytest.raises(DataError, match=words):
                list(read.training.batches(8, 3, 0))
        finally:
            made.close()


@pytest.mark.parametrize(
    ("made_s", "used_s", "most", "expected"),
    [(0.1, 1.0, 8, 1), (1.0, 1.0, 8, 1), (1.0, 0.4, 8, 3), (1.0, 0.4, 2, 2), (1.0, 0.0, 4, 4)],
)
def test_the_fewest_processes_that_keep_up_within_the_cores(
    made_s: float, used_s: float, most: int, expected: int
) -> None:
    demand = Demand(most)
    for _ in range(2):
        demand.made(made_s)
        demand.used(used_s)
    assert demand.processes == 1  # too little was measured
    demand.made(made_s)
    demand.used(used_s)
    demand.used(100 * used_s)  # the first step of an array takes longer
    assert demand.processes == expected


class Wanted(Demand):
    """As many processes as a test says."""

    wanted = 1

    @property
    def processes(self) -> int:
        return self.wanted


def test_processes_come_and_go_with_the_demand() -> None:
    plain, demand = stream(Drawing(400)), Wanted(most=4)
    read, made = preprocessed(plain, demand)
    assert made is not None
    try:
        reader = read.training.batches(8, 3, 0)
        found = [next(reader)]
        assert len(made.processes) == 1
        demand.wanted = 3
        found += [next(reader) for _ in range(4)]
        assert len(made.processes) == 3
        assert made.ahead == 4
        demand.wanted = 1
        found += list(reader)
        assert len(made.processes) < 3
        assert same(found, list(plain.training.batches(8, 3, 0)))
        assert made.replaced == 0
    finally:
        made.close()


def test_what_is_ready_is_bounded() -> None:
    read, made = preprocessed(stream(Drawing(400)), Demand(most=1))
    assert made is not None
    try:
        reader = read.training.batches(8, 3, 0)
        for _ in range(5):
            next(reader)
        assert len(list(made._folder.path.iterdir())) <= made.ahead + 1
    finally:
        made.close()


def test_batches_of_several_tensors_cross_unharmed(tmp_path: Path) -> None:
    folder = Folder()
    path = folder.path
    slot = folder.slot()
    x = {"image": torch.randint(0, 255, (3, 2, 5, 5), dtype=torch.uint8), "mask": torch.rand(3, 7) > 0.5}
    for given in (x, (torch.randn(3, 2).double(), torch.arange(3)), torch.randn(0, 4), torch.randn(3, 4).bfloat16()):
        layout = slot.write(given, torch.arange(3.0))
        x_read, y_read = type(slot)(slot.path).read(layout)
        assert torch.equal(y_read, torch.arange(3.0))
        for a, b in zip(data.leaves(given), data.leaves(x_read), strict=True):
            assert a.dtype == b.dtype
            assert torch.equal(a, b)
        assert not isinstance(given, dict) or list(x_read) == ["image", "mask"]
        assert isinstance(x_read, tuple) == isinstance(given, tuple)
    folder.close()
    assert not path.exists()


def test_a_study_shares_the_workers_of_one_stream(tmp_path: Path) -> None:
    shared, alone = (study(STREAMS["dataset"](), tmp_path / str(s), share_stream=s, epochs=2) for s in (True, False))
    list(alone.run())
    pids: set[int] = set()
    from hfta_nb.train.shared_batches import BatchBuffer

    shelves: list[BatchBuffer] = []
    original = BatchBuffer.__init__

    def noted(self: BatchBuffer, *given: Any) -> None:
        original(self, *given)
        shelves.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BatchBuffer, "__init__", noted)
        for _ in shared.run():
            workers = shelves[0].workers if shelves else None
            if workers is not None and workers.processes and len(pids) < 2:
                pids.add(workers.processes[0])
                os.kill(workers.processes[0], signal.SIGKILL)
    (buffer,) = shelves
    assert buffer.workers is not None
    assert buffer.workers.replaced >= 1
    assert buffer.workers.processes == []
    assert shared.history.state == ev.COMPLETE
    assert_same(shared, alone)
