"""Memory that runs out halves the array; every member goes on as if nothing had been."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hfta_nb
from hfta_nb import Study, fuse
from hfta_nb import events as ev
from hfta_nb.array.capture.program import Program
from hfta_nb.array.engine import Engine
from hfta_nb.errors import MemberError, out_of_memory
from hfta_nb.events import Control, Event
from hfta_nb.optim import Adam
from hfta_nb.step import ArrayStep
from hfta_nb.train.speed import SpeedProbe
from hfta_nb.train.trainer import Trainer

MEMBERS = 5


class Plan:
    """When to run out of memory: `fail` raises the number of times that is left, after some calls."""

    def __init__(self) -> None:
        self.after, self.left, self.error = -1, 0, torch.OutOfMemoryError("injected")

    def set(self, after: int, times: int = 1, error: BaseException | None = None) -> None:
        self.after, self.left = after, times
        self.error = error or torch.OutOfMemoryError("injected")

    def __call__(self) -> None:
        if self.left:
            self.after -= 1
            if self.after < 0:
                self.left -= 1
                raise self.error


forward, backward = Plan(), Plan()


class Hungry(torch.autograd.Function):
    """Gives its input; may run out of memory on the way there and on the way back."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        forward()
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        return None

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        backward()
        return grad


class Net(nn.Module):
    def __init__(self, width: int, inputs: int, outputs: int) -> None:
        super().__init__()
        # A bias before batch norm has a gradient of zero, whose rounding Adam amplifies.
        self.first, self.norm = nn.Linear(inputs, width, bias=False), nn.BatchNorm1d(width)
        self.drop, self.last = nn.Dropout(0.3), nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.drop(self.norm(torch.relu(Hungry.apply(self.first(x))))))  # type: ignore[no-any-return]


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(60, 6, generator=generator, dtype=torch.float64), torch.arange(60) % 3


def made(directory: Path, **options: Any) -> Study:
    def net(width: int = 5, inputs: int = 6, outputs: int = 3) -> nn.Module:
        return Net(width, inputs, outputs)

    recipe = hfta_nb.family(name="hungry_net")(net)
    grid = {"lr": [1e-3, 3e-3, 1e-2, 3e-2, 1e-1]}
    asked = {"epochs": 3, "batch_size": 16, "dtype": "float64", "device": "cpu", **options}
    return Study(recipe, grid, data(), directory=directory, **asked)


def curves(study: Study) -> dict[int, dict[str, list[float]]]:
    found = study.history.members
    return {i: {name: curve.values for name, curve in m.curves.items()} for i, m in found.items()}


def same(found: dict[int, Any], wanted: dict[int, Any]) -> bool:
    """Equal but for the last bits, in which vectorised kernels depend on how long an array is."""
    assert found.keys() == wanted.keys()
    for i, named in wanted.items():
        assert found[i].keys() == named.keys()
        for name, values in named.items():
            assert found[i][name] == pytest.approx(values, rel=0, abs=1e-13), (i, name)
    return True


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """No calls of the model but those of training, in an order that is known."""
    forward.set(0, 0)
    backward.set(0, 0)
    monkeypatch.setattr(ArrayStep, "tune_while_training", lambda self: None)
    monkeypatch.setattr(SpeedProbe, "alone", lambda self, x, y: False)


@pytest.fixture
def undisturbed(tmp_path: Path, quiet: None) -> dict[int, dict[str, list[float]]]:
    study = made(tmp_path / "undisturbed")
    list(study.run())
    assert study.history.state == ev.COMPLETE
    return curves(study)


def halved(events: list[Event]) -> list[ev.ArrayHalved]:
    return [e for e in events if isinstance(e, ev.ArrayHalved)]


STEPS = [
    pytest.param(lambda: forward.set(0), "training", id="forward of the first step"),
    pytest.param(lambda: forward.set(5), "training", id="forward of a later step"),
    pytest.param(lambda: backward.set(0), "training", id="backward of the first step"),
    pytest.param(lambda: backward.set(6), "training", id="backward of a later step"),
    pytest.param(lambda: forward.set(3), "validating", id="validation"),
    pytest.param(lambda: forward.set(0, 3), "training", id="down to single members"),
    pytest.param(lambda: forward.set(4, 1, MemoryError()), "training", id="Python's own error"),
    pytest.param(
        lambda: forward.set(4, 1, RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 9 bytes")),
        "training",
        id="the error of torch on a CPU",
    ),
]


@pytest.mark.parametrize(("inject", "stage"), STEPS)
def test_halves_carry_on_to_the_digit(
    tmp_path: Path, undisturbed: dict[int, Any], inject: Callable[[], None], stage: str
) -> None:
    study = made(tmp_path / "run")
    inject()
    events = list(study.run())
    first = halved(events)[0]
    assert (first.phase, first.members, first.into) == (stage, MEMBERS, (3, 2))
    assert same(curves(study), undisturbed)
    assert study.history.state == ev.COMPLETE
    assert {m.state for m in study.history.members.values()} == {ev.COMPLETE}
    sizes = [len(g.variants) for g in study.history.groups]
    assert sum(sizes) == MEMBERS
    assert len(sizes) == 1 + len(halved(events))
    assert study.history.groups == study.groups()
    assert "did not fit" in study.groups()[1].reason


def test_the_first_step_of_the_optimizer(
    tmp_path: Path, undisturbed: dict[int, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = Adam.step, []

    def step(self: Adam, *args: Any, **named: Any) -> Any:
        calls.append(len(self.array))
        result = real(self, *args, **named)
        if len(calls) == 1:  # after all was changed: a step that has failed must leave no trace
            raise torch.OutOfMemoryError("injected")
        return result

    monkeypatch.setattr(Adam, "step", step)
    study = made(tmp_path / "run")
    events = list(study.run())
    assert calls[:2] == [5, 3]
    assert halved(events)[0].phase == "training"
    assert same(curves(study), undisturbed)


@pytest.mark.parametrize("lr_scheduler", ["none", "cosine"])
@pytest.mark.parametrize("place", ["before it", "while it is bound anew"])
def test_a_later_step_of_the_optimizer(
    tmp_path: Path, quiet: None, monkeypatch: pytest.MonkeyPatch, place: str, lr_scheduler: str
) -> None:
    """Its calls, once bound, need no memory; where they are bound anew, all that is changed by then is put back."""
    list((whole := made(tmp_path / "undisturbed", lr_scheduler=lr_scheduler)).run())
    wanted = curves(whole)
    forward.set(0, 0)
    backward.set(0, 0)
    step, update, calls = Adam.step, Adam._update, []

    def fails_before(self: Adam, *args: Any, **named: Any) -> Any:
        calls.append(self.bound)
        if len(calls) == 3:
            raise torch.OutOfMemoryError("injected")
        if place != "before it" and len(calls) == 5:
            self._prepared = None  # as after new hyperparameters
        return step(self, *args, **named)

    def fails_after(self: Adam, *args: Any) -> None:
        update(self, *args)
        if place != "before it" and len(calls) == 5:
            calls.append(True)
            raise torch.OutOfMemoryError("injected")

    monkeypatch.setattr(Adam, "step", fails_before)
    monkeypatch.setattr(Adam, "_update", fails_after)
    study = made(tmp_path / "run", lr_scheduler=lr_scheduler)
    events = list(study.run())
    assert [e.phase for e in halved(events)] == ["training"] * (1 if place == "before it" else 2)
    assert calls[2]
    assert same(curves(study), wanted)
    assert study.history.state == ev.COMPLETE


def test_half_a_step_of_the_optimizer_ends_the_run(
    tmp_path: Path, quiet: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it can't be undone, going on would give other numbers: the checkpoint is the way back."""
    real, calls = Adam.step, []

    def step(self: Adam, *args: Any, **named: Any) -> Any:
        calls.append(1)
        result = real(self, *args, **named)
        if len(calls) == 3:
            raise torch.OutOfMemoryError("injected")
        return result

    monkeypatch.setattr(Adam, "step", step)
    study = made(tmp_path / "run")
    with pytest.raises(torch.OutOfMemoryError):
        list(study.run())
    assert study.history.state == ev.FAILED


class Kept(nn.Module):
    """Batch norm, dropout, and an operator that may run out of memory, of which recordings know nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)  # type: ignore[no-any-return]


def test_a_replayed_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither its failure nor that of the step which runs in its place leaves a trace."""
    arrays = []
    for _ in range(2):
        torch.manual_seed(0)
        arrays.append(fuse([Kept().double() for _ in range(3)], [0, 1, 2]))
    x, y = data()
    two = arrays[1]
    for _ in range(4):  # the last is replayed
        losses = [a.backward(nn.functional.cross_entropy, x, y) for a in arrays]
        for a in arrays:
            a.zero_grad()
    assert torch.equal(*losses)
    assert "replayed" in " ".join(two.explain()["how"])

    def nothing_left(*args: Any) -> Any:
        raise torch.OutOfMemoryError("injected")

    before = {k: v.clone() for k, v in two.state_dict().items()}
    with monkeypatch.context() as patch:
        patch.setattr(Program, "run", nothing_left)
        patch.setattr(Engine, "run", nothing_left)
        with pytest.raises(torch.OutOfMemoryError):
            two.backward(nn.functional.cross_entropy, x, y)
    assert all(torch.equal(v, before[k]) for k, v in two.state_dict().items())
    assert all(p.grad is None for p in two.parameters())
    wanted, found = (a.backward(nn.functional.cross_entropy, x, y) for a in arrays)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-14)


def test_building(tmp_path: Path, undisturbed: dict[int, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    build, sizes = Trainer.build, []

    def fail(self: Trainer, group: Any) -> Any:
        sizes.append(len(group.variants))
        if len(group.variants) > 3:
            raise torch.OutOfMemoryError("injected")
        return build(self, group)

    monkeypatch.setattr(Trainer, "build", fail)
    study = made(tmp_path / "run")
    found = [(e.phase, e.into) for e in halved(list(study.run()))]
    assert found == [("building", (3, 2))]
    assert same(curves(study), undisturbed)


def test_one_member_that_does_not_fit_fails_alone(
    tmp_path: Path, undisturbed: dict[int, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    train = ArrayStep.train

    def fail(self: ArrayStep, x: Any, y: Any, keep: Any = None) -> Any:
        if 3e-2 in self.updates[0].optimizer.rows(0, "lr"):
            raise torch.OutOfMemoryError("injected")
        return train(self, x, y, keep)

    monkeypatch.setattr(ArrayStep, "train", fail)
    study = made(tmp_path / "run")
    events = list(study.run())
    assert study.history.state == ev.COMPLETE
    states = {i: m.state for i, m in study.history.members.items()}
    assert states == {0: ev.COMPLETE, 1: ev.COMPLETE, 2: ev.COMPLETE, 3: ev.FAILED, 4: ev.COMPLETE}
    reason = study.history.members[3].reason
    assert "out of memory while training" in reason
    assert "smaller batch_size" in reason
    found = curves(study)
    assert same({i: found[i] for i in (0, 1, 2, 4)}, {i: undisturbed[i] for i in (0, 1, 2, 4)})
    assert any(isinstance(e, ev.ArrayHalved) and e.members == 2 for e in events)


def test_stop_and_resume_between_the_halves(tmp_path: Path, undisturbed: dict[int, Any]) -> None:
    study = made(tmp_path / "run")
    forward.set(6)
    control = Control()
    for event in study.run(control):
        if isinstance(event, ev.EpochDone) and event.epoch == 2 and len(event.variants) == 3:
            control.stop()
    assert study.history.state == ev.STOPPED
    assert {m.state for m in study.history.members.values()} == {ev.STOPPED}
    again = Study.load(tmp_path / "run", family=study.family)
    list(again.run(resume=True))
    assert again.history.state == ev.COMPLETE
    assert same(curves(again), undisturbed)
    assert [len(g.variants) for g in again.groups()] == [3, 2]


def test_pause_between_the_halves(tmp_path: Path, undisturbed: dict[int, Any]) -> None:
    study = made(tmp_path / "run")
    forward.set(6)
    control, pauses = Control(), 0
    for event in study.run(control):
        if isinstance(event, ev.ArrayHalved):
            control.pause()
        if isinstance(event, ev.RunChanged) and event.state == ev.PAUSED:
            pauses += 1
            control.resume()
    assert pauses == 1
    assert same(curves(study), undisturbed)


def test_a_member_of_the_other_half_is_stopped(tmp_path: Path, undisturbed: dict[int, Any]) -> None:
    study = made(tmp_path / "run")
    forward.set(6)
    control = Control()
    for event in study.run(control):
        if isinstance(event, ev.ArrayHalved):
            control.stop(4)
    states = {i: m.state for i, m in study.history.members.items()}
    assert states == {0: ev.COMPLETE, 1: ev.COMPLETE, 2: ev.COMPLETE, 3: ev.COMPLETE, 4: ev.STOPPED}
    assert study.history.members[4].reason == "stopped by request"
    assert same({3: curves(study)[3]}, {3: undisturbed[3]})


def test_members_of_different_width(tmp_path: Path, quiet: None) -> None:
    """Halves keep the padding of the whole, and members their numbers."""

    def run(place: str, fails: bool) -> Study:
        def net(width: int = 5, inputs: int = 6, outputs: int = 3) -> nn.Module:
            return Net(width, inputs, outputs)

        recipe = hfta_nb.family(name="hungry_net")(net)
        study = Study(
            recipe, {"width": [4, 5, 6]}, data(), directory=tmp_path / place, epochs=2, batch_size=16, dtype="float64",
            device="cpu", across=0.9,
        )  # fmt: skip
        assert len(study.groups()) == 1
        assert study.groups()[0].architectures == 3
        if fails:
            forward.set(12)
        events = list(study.run())
        assert len(halved(events)) == int(fails)
        return study

    plain, disturbed = run("plain", False), run("run", True)
    assert same(curves(disturbed), curves(plain))
    for i in range(3):
        assert [p.shape for p in disturbed.member(i).module().parameters()] == [
            p.shape for p in plain.member(i).module().parameters()
        ]


def test_the_plain_module_beside_the_first_steps_is_let_go(
    tmp_path: Path, undisturbed: dict[int, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def alone(self: SpeedProbe, x: Any, y: Any) -> bool:
        raise torch.OutOfMemoryError("injected")

    monkeypatch.setattr(SpeedProbe, "alone", alone)
    study = made(tmp_path / "run")
    events = list(study.run())
    assert not halved(events)
    assert not any(isinstance(e, ev.SpeedMeasured) for e in events)
    assert same(curves(study), undisturbed)


def test_what_counts_as_out_of_memory() -> None:
    assert out_of_memory(torch.OutOfMemoryError("x"))
    assert out_of_memory(MemoryError())
    assert out_of_memory(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"))
    assert not out_of_memory(RuntimeError("shapes differ"))
    assert not out_of_memory(None)
    wrapped = MemberError("not enough memory to be clever")
    assert not out_of_memory(wrapped)
    wrapped.__cause__ = MemoryError()
    assert out_of_memory(wrapped)
