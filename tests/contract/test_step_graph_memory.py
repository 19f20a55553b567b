"""Captured steps where memory is short."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch

from hfta_nb.engine.kernels.capture import Part
from hfta_nb.engine.replay.program import Program
from hfta_nb.train.step import graph
from tests.contract.captured_steps import (
    CPU,
    Captured,
    batch,
    steps_of,
    train_both,
)


@pytest.mark.parametrize("where", ["copy", "capture", "replay", "optimizer"])
def test_without_memory_for_a_capture_the_step_is_made_without_it(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    step, plain = steps_of(CPU)
    backend, held = step.graph.backend, []

    def full(*_: Any) -> Any:
        """Memory is short for as long as a capture is held."""
        if any(reference() is not None for reference in held):
            raise torch.OutOfMemoryError("CUDA out of memory")

    def capture(part: Part) -> Captured:
        made = Captured(part.run)
        held.append(weakref.ref(made))
        if where == "capture":
            full()
        return made

    def before(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def wrapped(*args: Any) -> Any:
            full()
            return real(*args)

        monkeypatch.setattr(owner, name, wrapped)

    monkeypatch.setattr(backend, "capture", capture)
    if where == "copy":

        def saved(*_: Any) -> Any:
            raise torch.OutOfMemoryError("CUDA out of memory")

        monkeypatch.setattr(graph, "Saved", saved)
    elif where == "replay":
        before(Program, "run")
    elif where == "optimizer":
        before(step.updates[0].optimizer, "step")
    train_both([step, plain], range(14))
    assert step.graph.notes() == ["not captured: there is not enough memory to capture it"]
    assert "recorded" in set(step.array.explain()["how"])
    assert (step.whole, len(held)) == (True, where != "copy")
    gc.collect()
    assert all(reference() is None for reference in held)


def test_an_evaluation_gets_the_memory_of_captures(monkeypatch: pytest.MonkeyPatch) -> None:
    step, plain = steps_of(CPU)
    train_both([step, plain], range(14))
    held, evaluate = weakref.ref(step.graph.backend.made.pop()), step.array.evaluate

    def evaluated(*args: Any) -> Any:
        if held() is not None:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return evaluate(*args)

    monkeypatch.setattr(step.array, "evaluate", evaluated)
    found, wanted = (one.evaluate(*batch(99)) for one in (step, plain))
    assert all(torch.equal(value, wanted[name]) for name, value in found.items())
    train_both([step, plain], range(14, 20))
    assert step.graph.notes() == ["not captured: the memory is needed for something else"]

    def full(*_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(step.array, "evaluate", full)
    with pytest.raises(torch.OutOfMemoryError):
        step.evaluate(*batch(99))
