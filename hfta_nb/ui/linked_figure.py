"""A figure in the browser whose members are those of the curves and the rows: what is selected in one is so in all."""

from __future__ import annotations

import anywidget
import traitlets

from hfta_nb.ui.front_end import source


class LinkedFigure(anywidget.AnyWidget):  # type: ignore[misc]
    """Parallel coordinates, importances, a heat map, or mean curves over seeds.

    Attributes:
        data: what is drawn, from `hfta_nb.study.linked`; empty for nothing.
        selected: ids of the selected members.
    """

    _esm = source("linked_figure.js")
    _css = source("live_view.css")

    data = traitlets.Dict().tag(sync=True)
    selected = traitlets.List(traitlets.Int()).tag(sync=True)

    def __repr__(self) -> str:
        return "LinkedFigure()"
