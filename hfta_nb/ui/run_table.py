"""The table of a folder's runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import anywidget
import traitlets

from hfta_nb import events as ev
from hfta_nb.figures import colors
from hfta_nb.records.summaries import Row
from hfta_nb.study import RUN
from hfta_nb.ui.front_end import source
from hfta_nb.ui.text import clock, count, metric, score

IN_PROGRESS = ev.RUNNING, ev.PAUSED

_COLUMNS = {
    "run": ("run", "Name of its directory", False),
    "state": ("state", "Whether it is in progress, or how it ended", False),
    "of": ("trains", "Family and data", False),
    "best": ("best", "The monitored metric of the best member", True),
    "started": ("started", "When it began", True),
    "took": ("took", "How long it trained, without pauses", True),
    "members": ("members", "Number of members", True),
    "axes": ("axes", "Axes that vary", False),
    "tags": ("tags", "Choose the run to change them", False),
    "note": ("note", "Choose the run to change it", False),
}
"""Label, tooltip, and whether the largest come first."""


class RunTable(anywidget.AnyWidget):  # type: ignore[misc]
    """One row per run, the latest first; column heads sort the rows.

    Args:
        on_request: called with "open" and a run's directory, or with "refresh" and "", when that button is pressed.

    Attributes:
        table: "columns" (key, label, title, number), "rows" (id, state, cells, keys, swatch, open), ready to display,
            and "reading", how many runs are still to be read; "keys" are the sort keys of cells.
        selected: directories of the chosen runs.
        sort_by: key of the column that sorts.
        descending: whether the largest come first.
        query: words that the rows must have to be shown.
    """

    _esm = source("runs.js")

    table = traitlets.Dict({"columns": [], "rows": []}).tag(sync=True)
    selected = traitlets.List(traitlets.Unicode()).tag(sync=True)
    sort_by = traitlets.Unicode("started").tag(sync=True)
    descending = traitlets.Bool(True).tag(sync=True)
    query = traitlets.Unicode("").tag(sync=True)

    def __init__(self, on_request: Callable[[str, str], None], **traits: Any) -> None:
        super().__init__(**traits)
        self._on_request = on_request
        self.on_msg(self._on_message)

    def __repr__(self) -> str:
        return "RunTable()"

    def _on_message(self, _widget: Any, content: Any, _buffers: Any) -> None:
        if isinstance(content, dict) and content.get("kind") in ("open", "refresh"):
            self._on_request(str(content["kind"]), str(content.get("id", "")))


def table_of(rows: Sequence[Row], shown: str, drawn: Sequence[str], reading: int) -> dict[str, Any]:
    """The table of these runs.

    Args:
        rows: of `hfta_nb.records.summaries`.
        shown: the directory of the run on the screen.
        drawn: directories of the runs whose curves are drawn, in order: their rows have the curves' colours.
        reading: how many runs are still to be read.
    """
    columns = [{"key": key, "label": label, "title": title, "number": number}
               for key, (label, title, number) in _COLUMNS.items()]  # fmt: skip
    strokes = dict(zip(drawn, colors.axis(RUN, drawn).strokes, strict=True))
    made = []
    for row in rows:
        cells, place = _cells(row), row["directory"]
        stroke = strokes.get(place)
        swatch = None if stroke is None else {"light": stroke.light, "dark": stroke.dark}
        again = "Reattach" if row["state"] in IN_PROGRESS else "Open"
        made.append({"id": place, "state": row["state"], "cells": [cells[key][0] for key in _COLUMNS],
                     "keys": [cells[key][1] for key in _COLUMNS], "swatch": swatch,
                     "open": "shown" if place == shown else again})  # fmt: skip
    return {"columns": columns, "rows": made, "reading": reading}


def _cells(row: Row) -> dict[str, tuple[str, Any]]:
    """Text and sort key of each cell."""
    best, began, members = row["best"], row["started"], row["members"]
    found = {key: (str(row[key]), str(row[key])) for key in ("run", "state", "axes", "tags", "note")}
    of = f"{row['family']} on {row['data']}" if row["family"] else ""
    known = best is not None and best == best  # not NaN
    return found | {
        "of": (of, of),
        "best": (f"{metric(row['monitor'])} {score(row['monitor'], best)}" if known else "-", best if known else None),
        "started": (began.strftime("%Y-%m-%d %H:%M"), began.timestamp()),
        "took": (clock(row["took_s"]), row["took_s"] if row["took_s"] >= 0 else None),
        "members": (str(members or "-"), members or None),
    }


def summary(rows: Sequence[Mapping[str, Any]]) -> str:
    """The runs in one line: how many, how many in progress, and the best of those that do what the latest does."""
    if not rows:
        return "no runs yet"
    parts, on = [count(len(rows), "run")], sum(row["state"] in IN_PROGRESS for row in rows)
    parts += [f"{on} in progress"] if on else []
    scored = [row for row in rows if row["best"] is not None and row["best"] == row["best"]]
    if scored:
        last = max(scored, key=lambda row: row["started"])
        alike = [row for row in scored if (row["data"], row["monitor"]) == (last["data"], last["monitor"])]
        best = (max if last["direction"] == "maximize" else min)(alike, key=lambda row: row["best"])
        value = f"{metric(best['monitor'])} {score(best['monitor'], best['best'])}"
        parts.append(f"best {value} on {best['data']} in {best['run']}")
    return ", ".join(parts)
