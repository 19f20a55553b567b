"""Members that leave a deterministic study in any way: not a bit of the others' curves and weights is another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from hfta_nb import events as ev
from hfta_nb.train.step import ArrayStep
from tests.attack.leavings import EPOCHS, OPTIMIZERS, Case, changed, run

RANDOM = 48
"""12 models, each with 4 of 9 optimizers: what an optimizer keeps of a member goes whatever the model."""

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
    "paused before the array is built": Case("linear", "rprop", 4, {3: (0, "pause")}),
    "interrupted": Case("batch norm of images", "adam", 4, {1: (4, "stop"), 3: (5, "pause")}, 7),
    "interrupted in an epoch without it": Case("lstm", "nadam", 2, {0: (3, "stop")}, 4),
    "orders of their own": Case("mlp", "adam", 2, {1: (4, "stop")}, 7, True),
}


@pytest.mark.parametrize("name", KNOWN)
def test_a_leaving(name: str, tmp_path: Path) -> None:
    assert changed(KNOWN[name], tmp_path) == []


@pytest.mark.long
@pytest.mark.parametrize("share", range(4))
def test_random_leavings(share: int, tmp_path: Path) -> None:
    found = {}
    for number in range(share, RANDOM, 4):
        case = Case.drawn(number)
        if members := changed(case, tmp_path / str(number)):
            found[number] = (case, members)
    assert not found


def test_every_optimizer_has_its_turn() -> None:
    cases = [Case.drawn(number) for number in range(RANDOM)]
    assert {case.optimizer for case in cases} == set(OPTIMIZERS)
    assert len({(case.model, case.optimizer) for case in cases}) == RANDOM
    assert {way for case in cases for _, way in case.leaves.values()} == {
        "stop", "prune", "delete", "pause", "diverge", "fail"}  # fmt: skip


def test_rows_of_nobody_go_where_memory_runs_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two members one has left; there is no memory for its row any more."""
    case, train, failed = Case("mlp", "adam", 2, {0: (4, "stop")}), ArrayStep.train, list[int]()

    def scarce(step: ArrayStep, *args: Any, **more: Any) -> Any:
        if step.steps == 7 and len(step) == 2:
            failed.append(step.steps)
            raise torch.OutOfMemoryError("no memory")
        return train(step, *args, **more)

    monkeypatch.setattr(ArrayStep, "train", scarce)
    study = run(case.study(tmp_path, False), case)
    assert failed == [7]
    assert study.history.members[1].state == ev.COMPLETE
    assert len(study.history.members[1].curves["val_loss"].values) == EPOCHS
