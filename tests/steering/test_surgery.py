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
@pytest.mark.parametrize("kind", ["none", "cosine"])
def test_a_thousand_operations(tmp_path: Path, kind: str) -> None:
    study, control = steered(tmp_path, 7, 1000, 60, lr_scheduler=kind)
    assert study.history.state == ev.COMPLETE
    assert control.left == 0
    assert worst(study) < TOLERANCE
