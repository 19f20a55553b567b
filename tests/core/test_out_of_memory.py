"""Running out of memory halves the array; every member continues unchanged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hfta_nb import events as ev
from hfta_nb import fuse
from hfta_nb.engine.eager.engine import Engine
from hfta_nb.engine.replay.program import Program
from hfta_nb.errors import MemberError, out_of_memory
from hfta_nb.optim import Adam
from hfta_nb.train.speed import SpeedProbe
from hfta_nb.train.trainer import Trainer
from tests.core.hungry import MEMBERS, backward, curves, data, forward, halved, made, same

STEPS = [
    pytest.param(lambda: forward.set(1), "training", id="forward of the first step", marks=pytest.mark.long),
    pytest.param(lambda: forward.set(6), "training", id="forward of a later step"),
    pytest.param(lambda: backward.set(0), "training", id="backward of the first step"),
    pytest.param(lambda: backward.set(6), "training", id="backward of a later step", marks=pytest.mark.long),
    pytest.param(lambda: forward.set(4), "validating", id="validation"),
    pytest.param(lambda: forward.set(1, 3), "training", id="down to single members", marks=pytest.mark.long),
    pytest.param(lambda: forward.set(6, 1, MemoryError()), "training", id="Python's own error", marks=pytest.mark.long),
    pytest.param(
        lambda: forward.set(6, 1, RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 9 bytes")),
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


@pytest.mark.each("place")
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
            self._bound_step = None  # as after new hyperparameters
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
    assert "recorded" in set(two.explain()["how"])

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
