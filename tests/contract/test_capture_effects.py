"""Code with side effects is never replayed, and observers miss no step."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import hfta_nb as hfta
from tests.contract.replay import REPLAYED, backward, mlp, notes, pair, warm_backward
from tests.contract.serial import loss_of, make

LOG: list[Any] = []


class Effect(nn.Module):
    """Does something beside computing."""

    def __init__(self, effect: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.inner, self.effect = nn.Linear(5, 3), effect

    def forward(self, x: Tensor) -> Tensor:
        out = self.inner(x)
        factor = self.effect(out)
        return out if factor is None else out * factor


def _counted(x: Tensor) -> float:
    _counted.calls = getattr(_counted, "calls", 0) + 1  # type: ignore[attr-defined]
    return 1.0 / _counted.calls  # type: ignore[attr-defined]


EFFECTS: dict[str, Callable[[Tensor], Any]] = {
    "prints": lambda x: print("here"),
    "keeps a log": lambda x: LOG.append(1),
    "counts": _counted,
    "asks the clock": lambda x: 1.0 if time.time() > 0 else 2.0,
    "draws by Python": lambda x: random.random(),
    "draws by numpy": lambda x: float(np.random.rand()),
    "reads a value": lambda x: 2.0 if x.detach().sum().item() > 0 else None,
    "reads an array": lambda x: 2.0 if x.detach().numpy().sum() > 0 else None,
    "seeds": lambda x: torch.manual_seed(0) and None,
    "asks the date": lambda x: float(datetime.now().year),
    "imports": lambda x: __import__("time").time() * 0 + 1,
}


@pytest.mark.parametrize("effect", EFFECTS)
def test_code_with_effects_is_not_replayed(effect: str, x: Tensor, y: Tensor, capsys: Any) -> None:
    modules = make(lambda: nn.Sequential(Effect(EFFECTS[effect]), nn.Tanh()), 2, torch.float64, x.device)
    array = hfta.fuse(modules, [1, 2])
    LOG.clear()
    for _ in range(5):
        backward(array, loss_of, x, y)
    assert REPLAYED not in notes(array, "backward").split("; ")
    if effect == "prints":
        assert capsys.readouterr().out.count("here") >= 5
    if effect == "keeps a log":
        assert len(LOG) >= 5


def test_a_loss_that_counts_is_not_replayed(x: Tensor, y: Tensor) -> None:
    calls = 0

    def counting(output: Tensor, target: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return loss_of(output, target)

    array, _ = pair(mlp, x.device)
    for _ in range(6):
        backward(array, counting, x, y)
    assert calls >= 6
    assert REPLAYED not in notes(array, "backward").split("; ")


def test_nobody_who_looks_on_misses_a_step(x: Tensor, y: Tensor) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    array, other = pair(mlp, x.device)
    warm_backward(array, other, loss_of, x, y)
    counts = []
    for a in (array, other):
        with FlopCounterMode(display=False) as counter:
            backward(a, loss_of, x, y)
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0
