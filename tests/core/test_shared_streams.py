"""Arrays that take turns on one stream: each batch is read once, and every result is that of a stream of one's own."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

import hfta_nb as hfta
from hfta_nb import data
from hfta_nb import events as ev
from hfta_nb.errors import StudyError
from hfta_nb.train.group_run import GroupRun

WIDTHS = [4, 5, 6]


def numbers(count: int = 48, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(count, 6, generator=torch.Generator().manual_seed(seed))
    return x, (x.sum(1) > 0).long() + (x[:, 0] > 1).long()


HELD = numbers(20, seed=1)


class Noisy(Dataset):
    """Draws random numbers, as augmentation does."""

    def __init__(self, count: int = 48) -> None:
        self.x, self.y = numbers(count)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        return self.x[i] + 0.1 * torch.randn(6) + random.random(), int(self.y[i])


def uneven(epoch: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for size in (16, 5, 9):
        x = torch.randn(size, 6)
        yield x, (x.sum(1) > 0).long() + (x[:, 0] > 1).long() + epoch * 0


STREAMS: dict[str, Callable[[], Any]] = {
    "dataset": lambda: data.from_dataset(Noisy(), TensorDataset(*HELD)),
    "loader": lambda: data.from_loader(DataLoader(Noisy(), 16, shuffle=True), HELD, num_classes=3),
    "function": lambda: data.from_batches(uneven, HELD, num_classes=3),
}


def study(given: Any, directory: Path, **options: Any) -> hfta.Study:
    grid = {"width": WIDTHS, "seed": [0, 1]}
    own = {"padding": "never", "lr": 0.01, "dropout": 0.1, "batch_size": 16, "device": "cpu", "deterministic": True}
    own["verify"] = "never"
    if given.batch_size is not None:
        del own["batch_size"]
    return hfta.Study("mlp", grid, given, directory=directory, **{"epochs": 3, **own, **options})


def curves(made: hfta.Study) -> dict[int, dict[str, list[float]]]:
    return {m: {n: list(c.values) for n, c in member.curves.items()} for m, member in made.history.members.items()}


def weights(made: hfta.Study) -> list[torch.Tensor]:
    return [v for variant in made.variants for v in made.member(variant.id).module().state_dict().values()]


def assert_same(a: hfta.Study, b: hfta.Study) -> None:
    assert curves(a) == curves(b)
    assert all(torch.equal(v, w) for v, w in zip(weights(a), weights(b), strict=True))


class Alone(dict[str, hfta.Study]):
    """Each kind of stream, read by every array for itself; trained when first asked for."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __missing__(self, kind: str) -> hfta.Study:
        made = self[kind] = study(STREAMS[kind](), self.place / kind, share_stream=False)
        list(made.run())
        return made


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Alone:
    return Alone(tmp_path_factory.mktemp("alone"))


def turns(events: list[ev.Event]) -> list[int]:
    """The arrays in the order in which they ended epochs."""
    return [e.group for e in events if isinstance(e, ev.EpochDone)]


@pytest.mark.parametrize("kind", ["dataset", pytest.param("loader", marks=pytest.mark.long), "function"])
def test_results_are_those_of_a_stream_of_ones_own(kind: str, alone: Alone, tmp_path: Path) -> None:
    made = study(STREAMS[kind](), tmp_path / "run")
    events = list(made.run())
    assert turns(events) == [0, 1, 2] * 3
    assert {m.state for m in made.history.members.values()} == {ev.COMPLETE}
    assert_same(made, alone[kind])
    assert not any(isinstance(e, ev.Heartbeat) for e in events)  # what ends a turn stays within


def test_each_batch_is_read_once(tmp_path: Path) -> None:
    read: list[str] = []

    def training(epoch: int) -> Iterator[Any]:
        for batch in uneven(epoch):
            read.append("training")
            yield batch

    def validation() -> Iterator[Any]:
        read.append("validation")
        yield HELD

    for share in (True, False):
        given = data.from_batches(training, validation, num_classes=3)
        read.clear()
        list(study(given, tmp_path / str(share), share_stream=share, epochs=2).run())
        arrays = 1 if share else len(WIDTHS)
        assert read.count("training") == arrays * 2 * 3
        assert read.count("validation") == arrays * 2


def test_augmentation_with_equal_values_is_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hfta_nb.data.augment import images

    flips: list[int] = []
    flip = images.horizontal_flip
    monkeypatch.setattr(images, "horizontal_flip", lambda *given: (flips.append(1), flip(*given))[1])
    x = torch.randint(0, 256, (32, 1, 8, 8), dtype=torch.uint8)
    y = torch.arange(32) % 2
    results = []
    for share in (True, False):
        given = data.from_dataset(TensorDataset(x, y), TensorDataset(x[:8], y[:8]), in_memory=False)
        flips.clear()
        grid = {"width": [2, 3], "horizontal_flip": [0.0, 0.5], "lr": [0.01, 0.1]}
        how = {"padding": "never", "batch_size": 16, "epochs": 1, "device": "cpu", "deterministic": True}
        made = hfta.Study("cnn", grid, given, directory=tmp_path / str(share), share_stream=share, **how)
        assert len(made.plan_groups) == 2
        list(made.run())
        results.append(made)
        assert len(flips) == (1 if share else 2) * 2
    assert_same(*results)


def test_a_model_that_writes_into_its_input_spoils_no_other(tmp_path: Path) -> None:
    class Writing(torch.nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(torch.nn.Linear(6, width), torch.nn.Tanh(), torch.nn.Linear(width, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layers(x.mul_(0.5))

    results = []
    for share in (True, False):
        given = data.from_dataset(Noisy(), TensorDataset(*HELD))
        how = {"padding": "never", "batch_size": 16, "epochs": 2, "device": "cpu", "deterministic": True}
        made = hfta.Study(Writing, {"width": WIDTHS}, given, directory=tmp_path / str(share), share_stream=share, **how)
        list(made.run())
        results.append(made)
    assert_same(*results)


def stopped_after(made: hfta.Study, steps: int, **options: Any) -> list[ev.Event]:
    """Train until so many steps were made by all arrays together."""
    control, events, done = hfta.Control(), [], []
    original = GroupRun._train_step

    def counted(self: GroupRun, batch: Any) -> Iterator[Any]:
        yield from original(self, batch)
        done.append(1)
        if len(done) == steps:
            control.stop()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GroupRun, "_train_step", counted)
        events = list(made.run(control, **options))
    return events


@pytest.mark.parametrize("steps", [4, pytest.param(9, marks=pytest.mark.long)])
def test_an_interrupted_run_goes_on_with_the_same_results(steps: int, alone: Alone, tmp_path: Path) -> None:
    made = study(STREAMS["dataset"](), tmp_path / "run")
    stopped_after(made, steps)
    assert {m.state for m in made.history.members.values()} == {ev.STOPPED}
    again = hfta.Study.load(tmp_path / "run", data=STREAMS["dataset"]())
    events = list(again.run(resume=True))
    assert again.history.state == ev.COMPLETE
    assert sorted(turns(events)[-3:]) == [0, 1, 2]
    assert_same(again, alone["dataset"])


def test_a_request_reaches_the_array_whose_member_it_is_about(alone: Alone, tmp_path: Path) -> None:
    made, control = study(STREAMS["dataset"](), tmp_path / "run"), hfta.Control()
    for event in made.run(control):
        if isinstance(event, ev.EpochDone) and (event.group, event.epoch) == (1, 1):
            control.stop(0)  # of array 0, which has ended this epoch
            control.post(ev.Prune(5, "slow"))  # of array 2, which has not
    states = {m: (member.state, len(member.curves["val_loss"].values)) for m, member in made.history.members.items()}
    complete = (ev.COMPLETE, 3)
    assert states == {0: (ev.STOPPED, 1), 1: complete, 2: complete, 3: complete, 4: complete, 5: (ev.PRUNED, 1)}
    mine, theirs = curves(made), curves(alone["dataset"])
    assert all(mine[m] == theirs[m] for m in (2, 3))
    for m in (1, 4):  # whose arrays are of one member now, and round as plain modules do
        assert mine[m]["val_loss"] == pytest.approx(theirs[m]["val_loss"], rel=1e-5)


def test_all_arrays_are_extended_where_one_is_asked(tmp_path: Path) -> None:
    """In the first epoch lr schedules are where those of a longer run are."""
    planned = study(STREAMS["function"](), tmp_path / "planned", epochs=4, lr_scheduler="cosine")
    list(planned.run())
    made, control = study(STREAMS["function"](), tmp_path / "run", epochs=2, lr_scheduler="cosine"), hfta.Control()
    for event in made.run(control):
        if isinstance(event, ev.PhaseChanged) and (event.group, event.phase) == (2, "training"):
            control.extend(2)
    assert [member.epoch for member in made.history.members.values()] == [4] * 6
    assert curves(made) == curves(planned)


def test_a_complete_run_trains_on_together(alone: Alone, tmp_path: Path) -> None:
    made = study(STREAMS["dataset"](), tmp_path / "run", epochs=2)
    list(made.run())
    assert turns(list(made.run(epochs=3))) == [0, 1, 2]
    assert_same(made, alone["dataset"])


def failing(error: Exception, group: int, after: int) -> Callable[..., Any]:
    """A step that raises once, in one array."""
    original, calls = GroupRun._train_step, [0]

    def step(self: GroupRun, batch: Any) -> Iterator[Any]:
        if self.group.index == group:
            calls[0] += 1
            if calls[0] == after:
                self.place -= 1
                raise error
        yield from original(self, batch)

    return step


def test_an_array_that_raises_leaves_alone_and_goes_on_later(
    alone: Alone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GroupRun, "_train_step", failing(torch.OutOfMemoryError("no room"), 1, 5))
    made = study(STREAMS["dataset"](), tmp_path / "run")
    events = list(made.run())
    assert turns(events) == [0, 1, 2, 0, 2, 0, 2, 1, 1]
    assert not any(isinstance(e, ev.ArrayHalved) for e in events)
    waiting = [e for e in events if isinstance(e, ev.MemberChanged) and "beside array 1: OutOfMemory" in e.reason]
    assert [e.variant for e in waiting] == [2, 3]
    assert_same(made, alone["dataset"])


def test_a_member_that_diverges_ends_alone(alone: Alone, tmp_path: Path) -> None:
    grid = [{"width": width, "seed": seed, "lr": 0.01} for width in WIDTHS for seed in (0, 1)]
    grid[2]["lr"] = float("1e30")
    own = {"padding": "never", "dropout": 0.1, "batch_size": 16, "device": "cpu", "deterministic": True, "epochs": 3}
    made = hfta.Study("mlp", grid, STREAMS["dataset"](), directory=tmp_path / "run", optimizer="sgd", **own)
    list(made.run())
    assert made.history.members[2].state == ev.DIVERGED
    assert all(made.history.members[m].state == ev.COMPLETE for m in (0, 1, 3, 4, 5))


def test_only_arrays_that_fit_together_take_turns(
    alone: Alone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = study(STREAMS["dataset"](), tmp_path / "run")
    from hfta_nb.train import trainer as module

    sizes = {g.index: module._bytes(g) for g in made.plan_groups}
    monkeypatch.setattr(module, "free_bytes", lambda device: sizes[0] + sizes[2])
    monkeypatch.setattr(module, "_bytes", lambda group: sizes[group.index])
    order = turns(list(made.run()))
    assert order == [0, 1, 0, 1, 0, 1, 2, 2, 2]
    assert_same(made, alone["dataset"])


def test_plain_modules_and_data_in_memory_train_one_after_another(tmp_path: Path) -> None:
    serial = study(STREAMS["dataset"](), tmp_path / "serial", serial=True, epochs=2)
    serial.plan_groups = serial.plan_groups[:2]
    assert turns(list(serial.run())) == [0, 0, 1, 1]
    whole = study(data.from_dataset(TensorDataset(*numbers())), tmp_path / "whole", epochs=2)
    assert turns(list(whole.run())) == [0, 0, 1, 1, 2, 2]


def test_the_choice_is_checked_kept_and_written_as_code(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="share_stream: not True or False"):
        study(STREAMS["dataset"](), tmp_path / "wrong", share_stream="yes")
    made = study(STREAMS["dataset"](), tmp_path / "run", share_stream=False)
    assert "share_stream=False" in made.to_code()
    made.save(tmp_path / "run")
    assert hfta.Study.load(tmp_path / "run", data=STREAMS["dataset"]()).share_stream is False
