"""The actions of a Workbench's buttons. Errors are shown on the screen, since nobody reads a kernel's log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hfta_nb.errors import HftaError, StudyError
from hfta_nb.ui.run_phase import ENDED
from hfta_nb.ui.since_run import REVERT
from hfta_nb.ui.steer import request_of
from hfta_nb.ui.text import words
from hfta_nb.ui.workbench_protocol import Bench

_METHODS = {
    "train": "train",
    "confirm": "train",
    "retry": "train",
    "pause": "pause",
    "resume": "resume",
    "stop": "stop",
    "csv": "export_csv",
    "png": "export_png",
    "code": "code",
    "check": "check",
}
"""The Workbench method of each button."""


def press(bench: Bench, name: str) -> None:
    """Run a button's action; a second Train asks for confirmation, and a written file is downloaded."""
    try:
        if name == "train" and bench.state in ENDED and not bench.train_view.asking:
            _ask_again(bench)
        else:
            made = getattr(bench, _METHODS[name])()
            if isinstance(made, Path):
                bench.results.download(made)
    except (HftaError, OSError) as error:
        if name in bench.results.buttons:
            bench.results.say(words(error), bad=True)
        else:
            bench.say(words(error), "bad")


def _ask_again(bench: Bench) -> None:
    """Ask for confirmation, because there is a run already.

    Raises:
        StudyError: the definition can't be trained.
    """
    problem = bench.planned()
    if problem:
        raise StudyError(f"can't train now: {problem}")
    where = bench.study.directory
    bench.train_view.ask(f"There is a {bench.state} run already; it stays in {where}. Start a new one?")


def press_reattach(bench: Bench, path: Path) -> None:
    """Show a saved run."""
    try:
        bench.restore(path)
    except (HftaError, OSError) as error:
        bench.say(words(error), "bad")


def press_row(bench: Bench, what: str, given: Any) -> None:
    """Run the action of a button in the leaderboard: "take" or "refine" of one, or what steers the selected."""
    try:
        if what == "select":
            bench.refresh()
        elif what == "refine":
            bench.refine(given)
        elif what == "take":
            bench.take(given)
            bench.results.code_box.insert()
        else:
            bench.results.say(f"asked: {bench.steer(what, request_of(what, given))}")
    except (HftaError, OSError) as error:
        bench.results.say(words(error), bad=True)


def press_since(bench: Bench, action: str) -> None:
    """Run an action of Define's head: take changes back, or add them to the run."""
    try:
        bench.revert() if action == REVERT else bench.add()
    except (HftaError, OSError) as error:
        bench.results.say(words(error), bad=True)
