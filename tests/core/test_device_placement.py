"""The placement of data during a run, and the thread that reads ahead: results do not depend on them."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import hfta_nb as hfta
from hfta_nb import data
from hfta_nb import events as ev
from hfta_nb.data import Ahead, Data, DeviceTransfer, gathered, is_resident, placed, placement
from hfta_nb.errors import DataError
from hfta_nb.train import batches
from hfta_nb.train.batches import Batch, Batches, Hosted, Resident
from hfta_nb.train.consecutive import batches_of

CPU = torch.device("cpu")


def whole(samples: int = 50, **more: Any) -> Data:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(samples + 7, 3, generator=generator)
    y = torch.randint(0, 4, (samples + 7,), generator=generator)
    given = {"x": x[:samples], "y": y[:samples], "x_validation": x[samples:], "y_validation": y[samples:]}
    facts = {"in_features": 3, "num_classes": 4, "out_features": 4}
    return Data("toy", "classification", **{**given, "facts": facts, **more})


def forms() -> dict[str, Data]:
    generator = torch.Generator().manual_seed(1)
    bytes_ = torch.randint(0, 256, (57, 2, 4, 4), generator=generator, dtype=torch.uint8)
    numbers = torch.randn(57, 3, generator=generator)
    images = {"x": bytes_[:50], "x_validation": bytes_[50:], "standard": data.samples.standard_of(bytes_)}
    several = {"x": (numbers[:50], bytes_[:50].long()), "x_validation": (numbers[50:], bytes_[50:].long())}
    named = {"x": {"a": numbers[:50].bfloat16()}, "x_validation": {"a": numbers[50:].bfloat16()}}
    return {"numbers": whole(), "bytes": whole(**images), "tuple": whole(**several), "dict": whole(**named)}


def both(given: Data, device: torch.device, dtype: torch.dtype, size: int = 8) -> tuple[Batches, Batches]:
    return Resident(given.to(device, dtype), size, device, dtype), Hosted(given, size, device, dtype)


def equal(a: Batch, b: Batch) -> bool:
    pairs = zip(*([*data.leaves(batch.x), *data.leaves(batch.y)] for batch in (a, b)), strict=True)
    alike = all(p.dtype == q.dtype and p.device == q.device and torch.equal(p, q) for p, q in pairs)
    return alike and (a.size, a.own) == (b.size, b.own)


@pytest.mark.parametrize("seeds", [[3, 3], [3, 4]], ids=["shared", "own order"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("form", ["numbers", "bytes", "tuple", "dict"])
def test_read_ahead_gives_what_resident_data_gives(
    form: str, dtype: torch.dtype, seeds: list[int], device: torch.device
) -> None:
    resident, hosted = both(forms()[form], device, dtype)
    for epoch, start in [(0, 0), (1, 0), (1, 4), (1, 6), (1, 7)]:
        batches = zip(resident.epoch(epoch, start, seeds), hosted.epoch(epoch, start, seeds), strict=True)
        assert [equal(a, b) for a, b in batches] == [True] * (7 - start)
    assert all(equal(a, b) for a, b in zip(resident.validation(), hosted.validation(), strict=True))
    assert resident.length == hosted.length == 7
    hosted.close()


@pytest.mark.parametrize("form", ["numbers", "dict"])
def test_members_of_unlike_folds_have_samples_of_their_own(form: str, device: torch.device) -> None:
    given = forms()[form]
    split = data.folded(None, given, [(range(0, 40), range(40, 50)), (range(10, 50), range(10))])
    resident, hosted = both(split, device, torch.float32)
    for source in (resident, hosted):
        source.draws = [data.Draw(0), data.Draw(1)]
    assert resident.length == hosted.length == -(-40 // resident.batch_size)
    mine, theirs = (source.epoch(1, 0, [3, 3]) for source in (resident, hosted))
    assert all(equal(a, b) for a, b in zip(mine, theirs, strict=True))
    held_out = list(hosted.validation())
    assert all(equal(a, b) for a, b in zip(resident.validation(), held_out, strict=True))
    found = torch.cat([data.leaves(batch.y)[0].cpu() for batch in held_out], 1)
    wanted = data.leaves(given.y)[0]
    assert torch.equal(found, torch.stack([wanted[40:50], wanted[:10]]))
    hosted.close()


@pytest.mark.parametrize("together", [1, 3, 100])
def test_batches_that_are_drawn_together_are_those_that_are_drawn_alone(
    together: int, monkeypatch: pytest.MonkeyPatch, device: torch.device
) -> None:
    x = torch.randn(50, 16)  # batches of 8 begin at multiples of 64 bytes
    given = whole(x=x, x_validation=x[:3])
    monkeypatch.setattr("hfta_nb.train.batches.MOST_TOGETHER", together)
    narrow = whole(x=x[:, :3])
    assert batches.together(given.x, given.y, 8, torch.float32) == together
    assert batches.together(narrow.x, given.y, 8, torch.float32) == 1
    assert batches.together(x.repeat(1, 10**4), given.y, 8, torch.float32) == 1
    resident, hosted = both(given, device, torch.float32)
    rows = data.order(50, 3, 0).split(8)
    for start in (0, 2, 6, 7):
        triples = zip(resident.epoch(0, start, [3]), hosted.epoch(0, start, [3]), rows[start:], strict=True)
        for a, b, expected in triples:
            assert equal(a, b)
            assert torch.equal(a.x.cpu(), x[expected])
    assert all(t.x.data_ptr() % batches.ALIGNED == 0 for t in hosted.epoch(0, 0, [3]))
    hosted.close()


def test_validation_in_the_middle_of_a_pass_leaves_it_where_it_is(device: torch.device) -> None:
    resident, hosted = both(whole(), device, torch.float32)
    mine, theirs = (source.epoch(0, 0, [3]) for source in (hosted, resident))
    for _ in range(3):
        assert equal(next(mine), next(theirs))
    assert sum(batch.size for batch in hosted.validation()) == 7
    assert all(equal(a, b) for a, b in zip(mine, theirs, strict=True))
    hosted.close()


def test_data_that_takes_too_much_stays_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    given = whole()
    there = placed(given, CPU, torch.float32)
    assert placement(given, CPU, torch.float32).bytes == 0  # it lies there already
    assert is_resident(there, CPU, torch.float32)
    assert isinstance(batches_of(there, 8, CPU, torch.float32), Resident)
    needed = 57 * 3 * 8  # as float64; the targets stay what they are
    found = placement(given, CPU, torch.float64)
    assert (found.resident, found.bytes) == (True, needed)
    monkeypatch.setattr("hfta_nb.data.device_placement.free_bytes", lambda device: 2 * needed - 1)
    found = placement(given, CPU, torch.float64)
    assert not found.resident
    assert str(found) == "read ahead from main memory (0.0 MiB of 0.0 MiB free)"
    kept = placed(given, CPU, torch.float64)
    assert kept.x is given.x
    assert isinstance(batches_of(kept, 8, CPU, torch.float64), Hosted)
    monkeypatch.setattr("hfta_nb.data.device_placement.free_bytes", lambda device: 2 * needed)
    assert placement(given, CPU, torch.float64).resident


def run(directory: Path, **options: Any) -> tuple[hfta.Study, list[ev.Event]]:
    grid = {"lr": [1e-3, 1e-2], "data_seed": [None, 5]}
    study = hfta.Study("mlp", grid, "digits", width=8, epochs=2, dtype="float64", directory=directory, **options)
    return study, list(study.run())


def test_a_run_on_data_that_does_not_fit_gives_the_same_curves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resident, _ = run(tmp_path / "resident")
    before = threading.active_count()
    monkeypatch.setattr("hfta_nb.data.device_placement.SHARE_OF_DEVICE", 0.0)
    hosted, events = run(tmp_path / "hosted")
    assert threading.active_count() == before
    for m, member in hosted.history.members.items():
        for name in hosted.metrics:
            expected = resident.history.members[m].curves[name].values
            # Each run measures for itself how many members to take at once, which may round otherwise.
            assert member.curves[name].values == pytest.approx(expected, rel=1e-12)
    told = [e.waiting_share for e in events if isinstance(e, ev.StepsDone)]
    assert told
    assert all(0 <= share <= 1 for share in told)
    assert hosted.check(members=[0])["equal"].all()


def test_waiting_is_counted_where_the_reader_is_slow(tmp_path: Path) -> None:
    clock = [0.0]

    def slow() -> Iterator[Any]:
        for _ in range(4):
            clock[0] += 1.0
            x = torch.randn(8, 6)
            yield x, (x.sum(1) > 0).long()

    source = batches_of(data.from_batches(slow, slow), 8, CPU, torch.float32)
    monkey = pytest.MonkeyPatch()
    monkey.setattr("hfta_nb.train.batches.time.perf_counter", lambda: clock[0])
    try:
        assert len(list(source.epoch(0, 0, [0]))) == 4
    finally:
        monkey.undo()
    assert source.waited_s == 4.0


# The thread.


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("hfta_nb data")]


def test_items_come_in_order_and_no_more_than_asked_for_are_made() -> None:
    made: list[int] = []

    def numbers() -> Iterator[int]:
        for number in range(100):
            made.append(number)
            yield number

    ahead = Ahead(numbers(), depth=3)
    assert [next(ahead) for _ in range(5)] == [0, 1, 2, 3, 4]
    while len(made) < 8:  # taken, and lying ready
        time.sleep(0)
    ahead.close()
    assert made == list(range(8))
    assert not threads()
    with pytest.raises(StopIteration):
        next(ahead)


def test_an_error_comes_out_after_what_was_made_before_it() -> None:
    def failing() -> Iterator[int]:
        yield 1
        raise ValueError("no more")

    ahead = Ahead(failing())
    assert next(ahead) == 1
    with pytest.raises(ValueError, match="no more"):
        next(ahead)
    assert list(ahead) == []
    ahead.close()


def test_a_generator_is_closed_in_the_thread() -> None:
    closed: list[str] = []

    def open_file() -> Iterator[int]:
        try:
            while True:
                yield 0
        finally:
            closed.append(threading.current_thread().name)

    ahead = Ahead(open_file())
    next(ahead)
    ahead.close()
    ahead.close()
    assert closed == ["hfta_nb data_0"]


def test_the_thread_ends_when_nobody_holds_it() -> None:
    ahead = Ahead(iter(range(1000)))
    [thread], gone = threads(), weakref.ref(ahead)
    next(ahead)
    del ahead
    gc.collect()
    assert gone() is None
    thread.join(10)
    assert not thread.is_alive()


def test_leaving_a_pass_ends_its_thread() -> None:
    before = threading.active_count()
    hosted = Hosted(whole(), 4, CPU, torch.float64)
    next(hosted.epoch(0, 0, [3]))
    again = hosted.epoch(0, 1, [3])
    next(again)
    assert threading.active_count() == before + 1
    hosted.close()
    assert threading.active_count() == before
    assert list(again) == []


# Errors of what reads.


class Torn(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 20

    def __getitem__(self, i: int) -> Any:
        if i == 13:
            raise OSError("the disk is gone\nand more of it")
        return torch.zeros(3), i % 2


@pytest.mark.parametrize("kind", ["loader", "function"])
def test_an_error_in_reading_says_where(kind: str) -> None:
    def function() -> Iterator[Any]:
        for i in range(20):
            yield tuple(v.unsqueeze(0) for v in map(torch.as_tensor, Torn()[i]))

    held = (torch.zeros(4, 3), torch.tensor([0, 1, 0, 1]))
    stream = {
        "loader": lambda: data.from_loader(DataLoader(Torn(), 5), held, name="mine", num_classes=2, out_features=2),
        "function": lambda: data.from_batches(function, held, name="mine", num_classes=2, out_features=2),
    }[kind]()
    at = 13 if kind == "function" else 2
    with pytest.raises(DataError) as raised:
        list(batches_of(stream, 5, CPU, torch.float32).epoch(0, 0, [0]))
    assert raised.value.where == f"mine, training, pass 1, batch {at}"
    assert raised.value.what.startswith("reading failed with OSError: the disk is gone (test_device_placement.py:")
    assert isinstance(raised.value.__cause__, OSError)


# On a GPU.


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_what_is_sent_is_there_when_it_is_used() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    sender = DeviceTransfer(device, torch.float32)
    x, y = torch.arange(2**22, dtype=torch.float64), torch.arange(4)
    for _ in range(20):
        sent = sender.send(x, y)
        assert sent.arrived is not None
        there, _ = sent.taken()
        assert float(there.double().sum()) == pytest.approx(float(x.float().double().sum()))
    [(made, _)] = gathered(x.view(-1, 4), y.repeat(2**20), [torch.tensor([3, 1])], pinned=True)
    assert made.is_pinned()
    assert made.tolist() == x.view(-1, 4)[[3, 1]].tolist()
