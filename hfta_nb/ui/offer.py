"""The line that offers to show a saved run."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import ipywidgets

from hfta_nb.study import SavedRun
from hfta_nb.ui.text import count, escape
from hfta_nb.ui.widgets import button, words


class Offer(ipywidgets.HBox):  # type: ignore[misc]
    """A line that offers to show a saved run.

    Args:
        on_request: called with its directory when the button is pressed.
    """

    def __init__(self, on_request: Callable[[Path], None]) -> None:
        self.run: SavedRun | None = None
        self.text = words("hfta-offer-text")
        hint = "Show this run again, with curves, results and definition"
        self.button = button("Reattach", hint, "hfta-button-reattach")
        self.button.on_click(lambda _: None if self.run is None else on_request(self.run.directory))
        super().__init__([self.text, self.button])
        self.add_class("hfta-offer")
        self.show(None)

    def __repr__(self) -> str:
        return "Offer()"

    def show(self, run: SavedRun | None) -> None:
        """Offer a run, or nothing."""
        self.run = run
        self.text.value = "" if run is None else escape(described(run))
        self.layout.display = "none" if run is None else ""


def described(run: SavedRun) -> str:
    """A saved run in one line."""
    sizes = f"{count(run.variants, 'variant')}, {count(run.epochs, 'epoch')}"
    what, when = ("run in progress", "") if run.running else ("saved run", f", {_when(run.time_s)}")
    return f"There is a {what} of {run.family} on {run.data}: {sizes}{when}, in {run.directory.name}."


def _when(time_s: float) -> str:
    then, now = time.localtime(time_s), time.localtime()
    clock = time.strftime("%H:%M", then)
    return f"today {clock}" if then[:3] == now[:3] else f"{time.strftime('%Y-%m-%d', then)} {clock}"
