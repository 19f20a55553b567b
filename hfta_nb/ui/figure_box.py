"""Figures of what a run found, chosen from a list: linked with curves and rows, or as pictures."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import RLock
from typing import Any

import ipywidgets

from hfta_nb import figures
from hfta_nb.errors import HftaError
from hfta_nb.figures import colors
from hfta_nb.figures.tried_points import SEEDS
from hfta_nb.records.history import History
from hfta_nb.study import COSTS, LINKED, Study, linked
from hfta_nb.ui.exports import download, write
from hfta_nb.ui.linked_figure import LinkedFigure
from hfta_nb.ui.text import escape
from hfta_nb.ui.text import words as error_words
from hfta_nb.ui.widgets import Picture, button, words

NONE, CONTOUR, BEST, HEAT_MAP = "none", "contour", "best_so_far", "heat_map"
_OF_TWO = (CONTOUR, HEAT_MAP)
_EVERY_S = 2.0
"""Shortest time between two drawings of the figure that follows the run."""
KINDS = {
    NONE: "no figure",
    "parallel_coordinates": "parallel coordinates",
    "importances": "importances",
    HEAT_MAP: "heat map",
    "curves": "curves over seeds and folds",
    BEST: "best so far",
    "slices": "slices",
    CONTOUR: "contour",
    "pareto": "Pareto front",
    "confusion_matrix": "confusion matrix of the best",
    "ensemble": "ensemble of the members",
    "placements": "arrays on workers",
}
"""Methods of a study that draw, or functions of `hfta_nb.figures`, and what they are called on the screen."""


def draw(study: Study, kind: str, first: str, second: str) -> bytes:
    """A figure of a study as a PNG.

    Args:
        kind: one of `KINDS`.
        first, second: the axes of a contour or a heat map; `second` is also what a Pareto front of one objective is
            set against.

    Raises:
        HftaError: it can't be drawn; the message says why.
    """
    if kind == HEAT_MAP:
        return figures.png(figures.heat_map(study.history, first, second))
    if kind == CONTOUR:
        return figures.png(study.contour(first, second))
    if kind == "pareto" and len(study.objectives) == 1:
        return figures.png(study.pareto(study.monitor, second if second in COSTS else COSTS[0]))
    if kind == "ensemble":
        return figures.png(study.ensemble().figure())
    return figures.png(getattr(study, kind)())


class FigureBox(ipywidgets.VBox):  # type: ignore[misc]
    """A list of figures, and the one that is chosen.

    Args:
        study: gives the study of the run.

    Attributes:
        linked: the figure, where it is one whose members can be selected.
        color_by: the axis that sets the colours of the curves.
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
        self.png = button("save PNG", "Write the figure to a PNG file in the run's directory", "hfta-figure-png")
        self.note, self.written = words("hfta-error"), words("hfta-note")
        self.linked, self.color_by = LinkedFigure(layout={"display": "none"}), ""
        self.image = Picture(format="png", layout={"max_width": "100%", "display": "none", "align_self": "flex-start"})
        row = ipywidgets.HBox([self.kind, self.first, self.second, self.again, self.png, self.written]).add_class(
            "hfta-figure-tools"
        )
        super().__init__([row, self.note, self.linked, self.image])
        self.add_class("hfta-figures")
        self._quiet, self._next_s, self._colored_by, self._drawing = False, 0.0, "", RLock()
        self._lay([])
        for field in (self.kind, self.first, self.second):
            field.observe(lambda _: self.draw(), "value")
        self.again.on_click(lambda _: self.draw())
        self.png.on_click(lambda _: self.save())

    def __repr__(self) -> str:
        return f"FigureBox({self.kind.value!r})"

    def enable(self, has_run: bool) -> None:
        """Enable it where there is a run."""
        self.kind.disabled = not has_run
        if not has_run:
            self.kind.value = NONE

    def draw(self) -> None:
        """Draw the figure that is chosen; where it can't be drawn, say why."""
        with self._drawing:  # another thread may have begun to draw what was chosen before
            if not self._quiet:
                self._draw()

    def _draw(self) -> None:
        self.note.value = self.written.value = ""
        picture, data = b"", {}
        self._colored_by = self.color_by
        try:
            if self.kind.value == NONE:
                self._lay([])
            else:
                study = self._study()
                self._lay(self._choices(study, study.history))
                asked = self.kind.value, self.first.value or "", self.second.value or ""
                if self.kind.value in LINKED:
                    data = linked(study, *asked, self.color_by)
                else:
                    picture = draw(study, *asked)
        except HftaError as error:
            self.note.value = f'<span role="alert">{escape(error_words(error))}</span>'
        self.image.value, self.image.tooltip = picture, KINDS[self.kind.value]
        self.image.layout.display = "" if picture else "none"
        if data != self.linked.data:
            self.linked.data = data
        self.linked.layout.display = "" if data else "none"

    def save(self) -> Path | None:
        """Write the figure, as `hfta_nb.figures` draws it, to the run's directory; returns the path."""
        path = None
        try:
            study = self._study()
            picture = draw(study, self.kind.value, self.first.value or "", self.second.value or "")
            path = write(study.directory / f"figure_{self.kind.value}.png", picture)
            self.written.value = download(path)
        except HftaError as error:
            self.note.value = f'<span role="alert">{escape(error_words(error))}</span>'
        return path

    def follow(self, at_once: bool = False) -> None:
        """Called when there is more to show of the run, or in other colours: the figures that follow it are drawn
        again, at most each few seconds."""
        began_s = time.monotonic()
        at_once = at_once or self.color_by != self._colored_by
        if self.kind.value in (BEST, *LINKED) and (at_once or began_s >= self._next_s):
            self.draw()
            self._next_s = time.monotonic() + max(_EVERY_S, 10 * (time.monotonic() - began_s))

    def _choices(self, study: Study, history: History) -> list[str]:
        """What the lists beside the figure's name offer."""
        if self.kind.value == "pareto":
            return list(COSTS) if len(study.objectives) == 1 else []
        swept = colors.swept(history.run.axes) if self.kind.value in _OF_TWO and history.run else []
        return [name for name in swept if name not in SEEDS] or swept

    def _lay(self, choices: Sequence[str]) -> None:
        """Show the lists that the figure needs, with these choices."""
        self._quiet = True
        of_two = self.kind.value in _OF_TWO
        for field, shown, otherwise in ((self.first, of_two, 0), (self.second, bool(choices), int(of_two))):
            if tuple(choices) != field.options:
                field.options = tuple(choices)
                field.value = choices[min(otherwise, len(choices) - 1)] if choices else None
            field.layout.display = "" if shown and choices else "none"
        self.png.layout.display = "" if self.kind.value != NONE else "none"
        self.again.layout.display = "none" if self.kind.value in (NONE, *LINKED) else ""
        self._quiet = False


def _dropdown(description: str, tooltip: str) -> Any:
    layout = {"width": "auto", "display": "none"}
    return ipywidgets.Dropdown(options=(), description=description, tooltip=tooltip, layout=layout)
