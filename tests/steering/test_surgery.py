"""Random operations on a study that trains: every member equals its twin alone, which underwent the same changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from steering.operations import steered, worst

from hfta_nb import events as ev

TOLERANCE = 1e-9


@pytest.mark.parametrize(
    "options", [{}, pytest.param({"lr_scheduler": "cosine"}, marks=pytest.mark.long)], ids=["plain", "cosine"]
)
def test_thirty_operations(tmp_path: Path, options: dict[str, Any]) -> None:
    study, control = steered(tmp_path, 1, 30, 4, **options)
    assert study.history.state == ev.COMPLETE
    assert control.left == 0
    assert sum(control.asked.values()) >= 20
    assert {"cloned", "set"} <= {edit.how for edit in study.history.edits}
    assert worst(study) < TOLERANCE


@pytest.mark.long
@pytest.mark.parametrize(("kind", "seed"), [("none", 7), ("cosine", 8)])
def test_hundreds_of_operations(tmp_path: Path, kind: str, seed: int) -> None:
    study, control = steered(tmp_path, seed, 300, 19, lr_scheduler=kind)
    assert study.history.state == ev.COMPLETE
    assert control.left == 0
    assert worst(study) < TOLERANCE
