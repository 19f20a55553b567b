"""Compiled steps: the same numbers, used where they are faster or where one insists; else a reason."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hfta_nb as hfta
from hfta_nb.array import FusedArray
from hfta_nb.array.capture import deciding
from hfta_nb.array.capture.compiling import graph_of
from hfta_nb.errors import FusionError

MEMBERS = 3
needs_compiler = pytest.mark.skipif(not any(map(shutil.which, ("g++", "clang++", "c++"))), reason="no compiler")
quiet = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


@pytest.fixture(autouse=True)
def _own_times(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HFTA_NB_CACHE", str(tmp_path))


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 4))


def _cnn() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 4, 2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(48, 4)
    )


def _array(build: Any = _mlp, dtype: torch.dtype = torch.float64) -> FusedArray:
    torch.manual_seed(0)
    return hfta.fuse([build().to(dtype) for _ in range(MEMBERS)], [1, 2, 3])


def _batch(number: int, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(number)
    return torch.randn(5, 6, generator=generator, dtype=dtype), torch.randint(0, 4, (5,), generator=generator)


def _train(array: FusedArray, steps: int) -> torch.Tensor:
    optimizer = hfta.optim.SGD(array, lr=0.1)
    losses = []
    for number in range(steps):
        optimizer.zero_grad()
        losses.append(array.backward(nn.functional.cross_entropy, *_batch(number)))
        optimizer.step()
    return torch.stack(losses)


def _notes(array: FusedArray) -> list[str]:
    table = array.explain()
    return [how for how in table["how"][table["function"] == "backward"] if "compiled" in how]


@pytest.mark.parametrize("build", [_mlp, _cnn])
def test_a_recorded_step_is_a_graph_of_the_same_numbers(build: Any) -> None:
    array = _array(build)
    _train(array, 4)
    program = next(iter(array._steps._kinds)).program
    graph, inputs = graph_of(program.source)
    expected = [*program.run(), *(room.clone() for _, room in program.source.gradients)]
    for got, value in zip(graph(*inputs), expected, strict=True):
        assert torch.allclose(got, value, rtol=0, atol=1e-12)


@needs_compiler
@quiet
def test_always_compiles_and_is_what_it_would_be() -> None:
    compiled, plain = _array(), _array()
    compiled.compiling = "always"
    expected = _train(plain, 12)
    assert torch.allclose(_train(compiled, 12), expected, rtol=0, atol=1e-12)
    program = next(iter(compiled._steps._kinds)).program
    assert program.decision.compiled is not None
    assert len(_notes(compiled)) == 1
    assert _notes(compiled)[0].startswith("compiled in ")
    # What was measured is known to the next array, which decides by it.
    other = _array()
    other.compiling, other.settings.planned_steps = "auto", 1e12
    assert torch.allclose(_train(other, 12), expected, rtol=0, atol=1e-12)
    note = _notes(other)[0]
    assert note.startswith(("not compiled: compiled it took", "compiled in", "not compiled: compiled in"))


@needs_compiler
@quiet
def test_gradients_that_are_there_are_added_to() -> None:
    compiled, plain = _array(), _array()
    compiled.compiling = "always"
    for array in (compiled, plain):
        _train(array, 4)
        for number in (7, 8):  # nobody forgets the gradients in between
            array.backward(nn.functional.cross_entropy, *_batch(number))
    for p, q in zip(compiled.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(p.grad, q.grad, rtol=0, atol=1e-12)


def test_on_a_cpu_nothing_is_compiled_unless_it_was_found_to_be_faster() -> None:
    array = _array()
    array.compiling, array.settings.planned_steps = "auto", 1e12
    _train(array, 5)
    assert _notes(array) == ['not compiled: on a cpu most steps are slower compiled; "always" measures this one']


KNOWN = {"replayed": 2e-3, "compiled": 1e-3, "compiling": 10.0}


@pytest.mark.parametrize(
    ("times", "steps", "pays", "why"),
    [
        (KNOWN, 10_001, True, ""),
        (KNOWN, 9_999, False, "it takes about 10 s, more than 9999 steps would save"),
        ({**KNOWN, "compiled": 3e-3}, 1e9, False, "compiled it took 3 ms, replayed 2 ms"),
        ({**KNOWN, "compiled": None}, 1e9, False, "it gave other numbers when it was tried"),
    ],
)
def test_what_was_measured_decides(times: dict, steps: float, pays: bool, why: str) -> None:
    array = _array()
    _train(array, 4)
    source = next(iter(array._steps._kinds)).program.source
    assert deciding._pays(source, times, lambda: 0.0, steps) == (pays, why)


def test_what_is_usual_on_a_device_decides_where_nothing_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(deciding.USUAL_GAIN, "cpu", 0.1)
    array = _array()
    _train(array, 4)
    source = next(iter(array._steps._kinds)).program.source
    cost = deciding.USUAL_SECONDS + deciding.SECONDS_PER_CALL * len(source.calls)
    assert deciding._pays(source, None, lambda: 1e-2, cost / 1e-3 + 1) == (True, "")
    assert not deciding._pays(source, None, lambda: 1e-2, cost / 1e-3 - 1)[0]


def test_without_a_compiler_there_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hfta_nb.array.capture.compiling.shutil.which", lambda name: None)
    array = _array()
    array.compiling = "always"
    _train(array, 5)
    assert _notes(array) == ["not compiled: there is no C++ compiler"]


def test_random_numbers_are_left_to_the_members() -> None:
    array = _array(lambda: nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.5)))
    array.compiling = "always"
    _train(array, 5)
    assert _notes(array) == ["not compiled: it draws random numbers, which is left to each member's own stream"]


@pytest.mark.parametrize("trouble", ["numbers", "error"])
def test_a_compiled_step_that_is_wrong_or_fails_is_not_used(trouble: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong:
        def __init__(self, source: Any) -> None:
            if trouble == "error":
                raise RuntimeError("no such kernel\nat line 3")
            self.source = source

        def run(self) -> list[torch.Tensor]:
            for _, room in self.source.gradients:
                room.add_(1.0)
            return [torch.zeros(MEMBERS, dtype=torch.float64) for _ in self.source.outputs]

    monkeypatch.setattr(deciding, "Compiled", Wrong)
    monkeypatch.setattr(deciding, "why_not", lambda source, device: "")
    array, plain = _array(), _array()
    array.compiling = "always"
    assert torch.equal(_train(array, 8), _train(plain, 8))
    reason = "no such kernel" if trouble == "error" else "compiled, the step gives other numbers"
    assert _notes(array) == [f"not compiled: {reason}"]


def test_an_unknown_choice_is_refused() -> None:
    with pytest.raises(FusionError, match="auto, never, always"):
        _array().compiling = "sometimes"
