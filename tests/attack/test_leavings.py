"""Members that leave a deterministic study in any way: not a bit of the others' curves and weights is another."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attack.leavings import OPTIMIZERS, Case, changed

RANDOM = 216
"""Twice 12 models with 9 optimizers."""

KNOWN = {
    "batch norm, 4 to 3": Case("batch norm", "sgd", 4, {1: (4, "stop")}),
    "adam, 2 to 1": Case("mlp", "adam", 2, {0: (4, "stop")}),
    "lstm, 2 to 1": Case("lstm", "sgd", 2, {0: (4, "prune")}),
    "one by one": Case("transformer", "adamw", 4, {0: (1, "stop"), 2: (4, "delete"), 3: (7, "stop")}),
    "before the first step": Case("batch norm", "adam", 3, {0: (0, "stop"), 1: (0, "delete")}),
    "diverged": Case("mlp", "adam", 3, {0: (0, "diverge"), 2: (6, "stop")}),
    "diverged at once": Case("gru", "adam", 3, {0: (0, "diverge"), 1: (0, "diverge")}),
    "failed": Case("batch norm", "adam", 3, {0: (0, "fail"), 2: (0, "fail")}),
    "paused and resumed": Case("batch norm", "rmsprop", 2, {1: (4, "pause")}),
    "interrupted": Case("batch norm of images", "adam", 4, {1: (4, "stop"), 3: (5, "pause")}, 7),
    "interrupted in an epoch without it": Case("lstm", "nadam", 2, {0: (3, "stop")}, 4),
    "orders of their own": Case("mlp", "adam", 2, {1: (4, "stop")}, 7, True),
}


@pytest.mark.parametrize("name", KNOWN)
def test_a_leaving(name: str, tmp_path: Path) -> None:
    assert changed(KNOWN[name], tmp_path) == []


@pytest.mark.long
@pytest.mark.parametrize("share", range(9))
def test_random_leavings(share: int, tmp_path: Path) -> None:
    found = {}
    for number in range(share, RANDOM, 9):
        case = Case.drawn(number)
        if members := changed(case, tmp_path / str(number)):
            found[number] = (case, members)
    assert not found


def test_every_optimizer_has_its_turn() -> None:
    cases = [Case.drawn(number) for number in range(RANDOM)]
    assert {case.optimizer for case in cases} == set(OPTIMIZERS)
    assert len({(case.model, case.optimizer) for case in cases}) == 108
    assert {way for case in cases for _, way in case.leaves.values()} == {
        "stop", "prune", "delete", "pause", "diverge", "fail"}  # fmt: skip
