"""What the buttons of a Workbench do. What goes wrong is said on the screen, for nobody reads a kernel's log."""

from __future__ import annotations

from pathlib import Path

from hfta_nb.errors import HftaError, StudyError
from hfta_nb.ui.protocol import Bench
from hfta_nb.ui.run_phase import ENDED
from hfta_nb.ui.text import words

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
"""The method of a Workbench that a button stands for."""


def press(bench: Bench, name: str) -> None:
    """Do what a button of this name does; a second Train asks first."""
    try:
        if name == "train" and bench.state in ENDED and not bench.train_view.asking:
            _ask_again(bench)
        else:
            getattr(bench, _METHODS[name])()
    except (HftaError, OSError) as error:
        if name in bench.results.buttons:
            bench.results.say(words(error), bad=True)
        else:
            bench.say(words(error), "bad")


def _ask_again(bench: Bench) -> None:
    """Ask whether a new run is meant, as there is one already.

    Raises:
        StudyError: nothing that could be trained is defined.
    """
    problem = bench.planned()
    if problem:
        raise StudyError(f"can't train now: {problem}")
    where = bench.study.directory
    bench.train_view.ask(f"There is a {bench.state} run already; it stays in {where}. Start a new one?")


def press_reattach(bench: Bench, path: Path) -> None:
    """Bring a saved run back."""
    try:
        bench.restore(path)
    except (HftaError, OSError) as error:
        bench.say(words(error), "bad")


def press_row(bench: Bench, what: str, member: int) -> None:
    """Do what a button in a row of the leaderboard does: "stop" or "take"."""
    try:
        (bench.stop if what == "stop" else bench.take)(member)
    except (HftaError, OSError) as error:
        bench.results.say(words(error), bad=True)
