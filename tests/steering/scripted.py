"""Small studies that are steered before certain steps, and compared with the members alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from steering.twins import Twins, data, net

import hfta_nb as hfta
from hfta_nb import events as ev

TOLERANCE = 1e-9


def made(directory: Path, epochs: int = 3, grid: Any = None, **options: Any) -> hfta.Study:
    given = {"lr": [1e-3, 1e-2, 3e-3]} if grid is None else grid
    how: dict[str, Any] = {"batch_size": 16, "dtype": "float64", "device": "cpu", "deterministic": True} | options
    return hfta.Study(net, given, data(), epochs=epochs, directory=directory, verify="never", **how)


class Script(hfta.Control):
    """A mailbox that is asked for something before certain steps, counted over the whole run."""

    def __init__(self, script: dict[int, Callable[[hfta.Control], Any]]) -> None:
        super().__init__()
        self.script, self.polls = dict(script), -2  # the first two are before the array is built

    def poll(self) -> list[ev.Request]:
        asked = self.script.pop(self.polls, None)
        self.polls += 1
        if asked is not None:
            asked(self)
        return super().poll()


def run(study: hfta.Study, script: dict[int, Callable[[hfta.Control], Any]], **options: Any) -> list[ev.Event]:
    return list(study.run(Script(script), **options))


def equal(study: hfta.Study) -> bool:
    return max(Twins(study).differences().values()) < TOLERANCE


def states(study: hfta.Study) -> dict[int, str]:
    return {m.id: m.state for m in study.history.members.values()}
