"""Fixtures of the Workbench's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ui.bench import GRID, Clock, Make, Runs

from hfta_nb.ui import Workbench, run_follower, session


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    """Runs that happen as the test says."""
    made = Runs()
    monkeypatch.setattr(session.executors, "start", made.start)
    return made


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock by which the screen is drawn."""
    made = Clock()
    monkeypatch.setattr(run_follower, "time", SimpleNamespace(monotonic=made))
    return made


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Makes Workbenches whose runs lie in a temporary folder, and closes them."""
    monkeypatch.chdir(tmp_path)
    made: list[Workbench] = []

    def one(**arguments: Any) -> Workbench:
        arguments = {"family": "mlp", "data": "digits", "grid": GRID, "epochs": 4} | arguments
        made.append(Workbench(**arguments))
        return made[-1]

    yield one
    for bench in made:
        bench.close()
