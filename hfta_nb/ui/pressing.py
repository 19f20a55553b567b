"""What the buttons of a Workbench do. What goes wrong is said on the screen, for nobody reads a kernel's log."""

from __future__ import annotations

from typing import Any, Protocol

from hfta_nb.errors import HftaError
from hfta_nb.ui.machine import ENDED
from hfta_nb.ui.results import Results
from hfta_nb.ui.text import words
from hfta_nb.ui.train_view import TrainView


class Bench(Protocol):
    """What has the buttons; see `Workbench`."""

    train_view: TrainView
    results: Results

    @property
    def state(self) -> str:
        """What the run is doing."""

    def ask_again(self) -> None:
        """Ask whether a second run is meant."""

    def say(self, text: str, level: str) -> None:
        """A sentence in the status line."""

    def stop(self, member: int | None = None) -> None:
        """Stop the run, or one member."""

    def take(self, member: int) -> Any:
        """Give a member's module to the notebook."""


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
            bench.ask_again()
        else:
            getattr(bench, _METHODS[name])()
    except (HftaError, OSError) as error:
        if name in bench.results.buttons:
            bench.results.say(words(error), bad=True)
        else:
            bench.say(words(error), "bad")


def press_row(bench: Bench, what: str, member: int) -> None:
    """Do what a button in a row of the leaderboard does: "stop" or "take"."""
    try:
        (bench.stop if what == "stop" else bench.take)(member)
    except (HftaError, OSError) as error:
        bench.results.say(words(error), bad=True)
