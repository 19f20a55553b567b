"""Figures for notebooks and files, and text without mathtext."""

from __future__ import annotations

import functools
import io
import warnings
from typing import TYPE_CHECKING

from hfta_nb.errors.caught_warnings import caught_warnings

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def figure_of(width: float, height: float) -> Figure:
    """An empty figure, in inches, that a notebook shows if it is the value of a cell."""
    figure = _kind()(figsize=(width, height), facecolor="white")
    figure.set_layout_engine("constrained", w_pad=0.09, h_pad=0.09, wspace=0.04)
    return figure


@functools.cache
def _kind() -> type[Figure]:
    from matplotlib.figure import Figure

    class NotebookFigure(Figure):
        """A figure with a PNG representation; IPython itself shows figures of pyplot only."""

        def _repr_png_(self) -> bytes:
            return png(self)

    return NotebookFigure


def png(figure: Figure, dpi: int = 110) -> bytes:
    """The figure as the bytes of a PNG file.

    Args:
        figure: any of this module's.
        dpi: pixels per inch.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    buffer = io.BytesIO()
    with caught_warnings():
        # Characters that the font lacks are drawn as boxes, without a warning.
        warnings.filterwarnings("ignore", message="Glyph")
        FigureCanvasAgg(figure).print_figure(buffer, dpi=dpi, facecolor=figure.get_facecolor())
    return buffer.getvalue()


def plain(text: str, limit: int = 60) -> str:
    """Text that matplotlib draws literally: no mathtext, no line breaks, at most `limit` characters."""
    flat = "".join(c if c.isprintable() else " " for c in text)
    flat = flat if len(flat) <= limit else flat[: limit - 1] + "…"
    return flat.replace("$", r"\$")
