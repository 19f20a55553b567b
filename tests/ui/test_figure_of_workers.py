"""The figures of the results: which worker trained which array."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hfta_nb import figures
from hfta_nb.records.history import History
from hfta_nb.ui.figure_box import KINDS, FigureBox
from tests.test_figures_of_plans import ran


def box(history: History) -> FigureBox:
    study: Any = SimpleNamespace(history=history, placements=lambda: figures.placements(history))
    made = FigureBox(lambda: study)
    made.kind.value = "placements"
    return made


def test_a_run_on_workers_is_drawn() -> None:
    made = box(ran())
    assert KINDS["placements"] == "arrays on workers"
    assert bytes(made.image.value[:4]) == b"\x89PNG"
    assert made.note.value == ""


def test_a_run_in_one_process_says_why_there_is_none() -> None:
    made = box(History())
    assert bytes(made.image.value) == b""
    assert "no array was given to a worker" in made.note.value
