"""Figures of what a run found, chosen from a list."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import ipywidgets

from hfta_nb import figures
from hfta_nb.errors import HftaError
from hfta_nb.figures import colors
from hfta_nb.records.history import History
from hfta_nb.study import COSTS, Study
from hfta_nb.ui.text import escape
from hfta_nb.ui.text import words as error_words
from hfta_nb.ui.widgets import Picture, button, words

NONE, CONTOUR, BEST = "none", "contour", "best_so_far"
_EVERY_S = 2.0
"""Shortest time between two drawings of the figure that follows the run."""
KINDS = {
    NONE: "no figure",
    BEST: "best so far",
    "importances": "importances",
    "parallel_coordinates": "parallel coordinates",
    "slices": "slices",
    CONTOUR: "contour",
    "curves": "curves over seeds",
    "pareto": "Pareto front",
    "placements": "arrays on workers",
}
"""Methods of a study that draw, and what they are called on the screen."""


def draw(study: Study, kind: str, first: str, second: str) -> bytes:
    """A figure of a study as a PNG.

    Args:
        kind: one of `KINDS`.
        first, second: the axes of a contour; `second` is also what a Pareto front of one objective is set against.

    Raises:
        HftaError: it can't be drawn; the message says why.
    """
    if kind == CONTOUR:
        return figures.png(study.contour(first, second))
    if kind == "pareto" and len(study.objectives) == 1:
        return figures.png(study.pareto(study.monitor, second if second in COSTS else COSTS[0]))
    return figures.png(getattr(study, kind)())


class FigureBox(ipywidgets.VBox):  # type: ignore[misc]
    """A list of figures, and the one that is chosen.

    Args:
        study: gives the study of the run.
    """

    def __init__(self, study: Callable[[], Study]) -> None:
        self._study = study
        wide = {"width": "auto"}
        self.kind = ipywidgets.Dropdown(
            options=[(text, name) for name, text in KINDS.items()], value=NONE, description="figure",
            tooltip="A figure of what decides", layout=wide,
        ).add_class("hfta-figure-kind")  # fmt: skip
        self.first = _dropdown("across", "The axis from left to right")
        self.second = _dropdown("up", "The axis from bottom to top; or what the best members cost")
        self.again = button("draw again", "Draw the figure of what has come since", "hfta-figure-again")
        self.note = words("hfta-error")
        self.image = Picture(format="png", layout={"max_width": "100%", "display": "none", "align_self": "flex-start"})
        row = ipywidgets.HBox([self.kind, self.first, self.second, self.again]).add_class("hfta-figure-tools")
        super().__init__([row, self.note, self.image])
        self.add_class("hfta-figures")
        self._quiet, self._next_s = False, 0.0
        self._lay([])
        for field in (self.kind, self.first, self.second):
            field.observe(lambda _: self.draw(), "value")
        self.again.on_click(lambda _: self.draw())

    def __repr__(self) -> str:
        return f"FigureBox({self.kind.value!r})"

    def enable(self, has_run: bool) -> None:
        """Enable it where there is a run."""
        self.kind.disabled = not has_run
        if not has_run:
            self.kind.value = NONE

    def draw(self) -> None:
        """Draw the figure that is chosen; where it can't be drawn, say why."""
        if self._quiet:
            return
        self.note.value = ""
        data = b""
        try:
            if self.kind.value != NONE:
                study = self._study()
                self._lay(self._choices(study, study.history))
                data = draw(study, self.kind.value, self.first.value or "", self.second.value or "")
            else:
                self._lay([])
        except HftaError as error:
            self.note.value = f'<span role="alert">{escape(error_words(error))}</span>'
        self.image.value, self.image.tooltip = data, KINDS[self.kind.value]
        self.image.layout.display = "" if data else "none"
        self.again.layout.display = "" if self.kind.value != NONE else "none"

    def follow(self, at_once: bool = False) -> None:
        """Called when there is more to show of the run: the best so far is drawn again, at most each few seconds."""
        began_s = time.monotonic()
        if self.kind.value == BEST and (at_once or began_s >= self._next_s):
            self.draw()
            self._next_s = time.monotonic() + max(_EVERY_S, 10 * (time.monotonic() - began_s))

    def _choices(self, study: Study, history: History) -> list[str]:
        """What the lists beside the figure's name offer."""
        if self.kind.value == "pareto":
            return list(COSTS) if len(study.objectives) == 1 else []
        return colors.swept(history.run.axes) if self.kind.value == CONTOUR and history.run else []

    def _lay(self, choices: Sequence[str]) -> None:
        """Show the lists that the figure needs, with these choices."""
        self._quiet = True
        contour = self.kind.value == CONTOUR
        for field, shown, otherwise in ((self.first, contour, 0), (self.second, bool(choices), int(contour))):
            if tuple(choices) != field.options:
                field.options = tuple(choices)
                field.value = choices[min(otherwise, len(choices) - 1)] if choices else None
            field.layout.display = "" if shown and choices else "none"
        self.again.layout.display = "" if self.kind.value != NONE else "none"
        self._quiet = False


def _dropdown(description: str, tooltip: str) -> Any:
    layout = {"width": "auto", "display": "none"}
    return ipywidgets.Dropdown(options=(), description=description, tooltip=tooltip, layout=layout)
