"""The leaderboard: every member in a table that can be sorted, filtered and selected."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import anywidget
import traitlets

from hfta_nb import events as ev
from hfta_nb.figures import colors
from hfta_nb.records.history import History, Member
from hfta_nb.search.averages import averages
from hfta_nb.search.grid import show
from hfta_nb.ui.blown_up import blown_up
from hfta_nb.ui.edits import marks
from hfta_nb.ui.front_end import source
from hfta_nb.ui.steer import NAMES
from hfta_nb.ui.text import metric, number, score

Row = dict[str, Any]

MOST_ROWS = 1000
"""Rows that are sent to the browser, the best ones; `Study.results` has all."""


class Leaderboard(anywidget.AnyWidget):  # type: ignore[misc]
    """One row per member, best first; column heads sort the rows.

    Attributes:
        table: "columns" (key, label, title, number, and whether they are constant), "of" (how many members there are)
            and "rows" (id, state, reason, cells, keys, swatch, now, take, best), ready to display; "keys" are the sort
            keys of cells, "now" is the member's own state where the run is paused. "actions": see
            `hfta_nb.ui.steer.actions`.
        arranged: the columns as a person has arranged them: "order" (keys), "hidden" (by key, whether it is) and
            "widths" (by key, in pixels). A constant column is hidden unless this says otherwise.
        selected: ids of the selected members.
        sort_by: key of the column that sorts; "rank" for the leaderboard's own order.
        descending: whether the largest come first.
        query: words that the rows must have to be shown.
    """

    _esm = source("leaderboard.js")

    arranged = traitlets.Dict().tag(sync=True)
    table = traitlets.Dict({"columns": [], "rows": []}).tag(sync=True)
    selected = traitlets.List(traitlets.Int()).tag(sync=True)
    sort_by = traitlets.Unicode("rank").tag(sync=True)
    descending = traitlets.Bool(False).tag(sync=True)
    query = traitlets.Unicode("").tag(sync=True)

    def __init__(self, on_request: Callable[[str, Any], None], **traits: Any) -> None:
        """Args: on_request: called with "take" or "refine" and a member's id, or with the name of a button that
        steers and its message (see `hfta_nb.ui.steer.request_of`)."""
        super().__init__(**traits)
        self._on_request = on_request
        self.on_msg(self._on_message)

    def __repr__(self) -> str:
        return "Leaderboard()"

    def _on_message(self, _widget: Any, content: Any, _buffers: Any) -> None:
        if not isinstance(content, dict):
            return
        if content.get("kind") in ("take", "refine") and isinstance(content.get("id"), int):
            self._on_request(content["kind"], content["id"])
        elif content.get("kind") == "steer" and content.get("name") in NAMES:
            self._on_request(content["name"], content)


def table_of(history: History, color_by: str = "") -> dict[str, Any]:
    """The leaderboard's table of a run: of the best members, and how many there are.

    Args:
        history: the run.
        color_by: the axis that sets the colours of the curves, which the rows share.
    """
    run = history.run
    if run is None:
        return {"columns": [], "rows": []}
    # Ordered by importance: axes that vary, monitored metric, validation, training; what is constant last.
    validated = [m for m in run.metrics if m.startswith("val_") and m != run.monitor]
    rest = [m for m in run.metrics if not m.startswith("val_") and m != run.monitor]
    metrics = [run.monitor, *validated, *rest]
    at_best = {m: _column(f"metric:{m}", metric(m), f"{metric(m)} at the best epoch", True) for m in metrics[1:]}
    axes = _axis_columns(history, run.axes)
    columns = [
        _column("rank", "rank", "Place by the best value", True),
        _column("member", "member", "Number and colour of the member", True),
        *(c for c in axes if not c["constant"]),
        _column(f"metric:{run.monitor}", metric(run.monitor), f"{metric(run.monitor)} at its best epoch", True),
        _column("best_epoch", "best at", "The best epoch", True),
        _column("state", "state", "Its state, or how it ended", False),
        *(at_best[m] for m in validated),
        *(at_best[m] for m in rest),
        *(c for c in axes if c["constant"]),
    ]
    folds = _over_folds(history)
    if folds:
        title = f"{metric(run.monitor)}: mean and standard deviation over the folds of the configuration"
        place = next(i for i, column in enumerate(columns) if column["key"] == "best_epoch")
        columns.insert(place, _column("folds", "over folds", title, True))
    checked = any(m.check for m in history.members.values())
    if checked:
        columns.append(_column("check", "against alone", "Largest difference from training alone", True))
    hopeless = blown_up(history)
    scheme = colors.Scheme(list(history.members.values()), run.axes, color_by)
    origins = {e.variant: f"#{e.parent} at ep {e.epoch}" for e in history.edits if e.parent is not None}
    if origins:
        columns.append(_column("from", "copy of", "The member that it was copied from last, and its epoch then", False))
    changes = _changes(history)
    if changes:
        columns.append(_column("changed", "changed", "The values that it was given while it trained, and when", False))
    rows = []
    board = history.leaderboard()
    for rank, member in enumerate(board[:MOST_ROWS], 1):
        found = _cells(member, rank, metrics, run.axes, checked, history.state == ev.PAUSED)
        if member.id in hopeless:
            found["state"] = f"{found['state'][0]}, blown up", found["state"][1]
        found["folds"] = folds.get(member.id, ("", None))
        found["from"] = (origins.get(member.id, ""),) * 2
        found["changed"] = (changes.get(member.id, ""),) * 2
        cells = [found[column["key"]] for column in columns]
        row = _row(member, cells, scheme.stroke(member), history)
        best = rank == 1 and math.isfinite(member.best_value)
        rows.append({**row, "reason": member.reason or hopeless.get(member.id, ""), "best": best})
    return {"columns": columns, "rows": rows, "of": len(board)}


def _over_folds(history: History) -> dict[int, tuple[str, Any]]:
    """By member: mean and standard deviation of the folds of its configuration, and the mean to sort by."""
    run = history.run
    if run is None or len(run.axes.get("fold", ())) < 2:
        return {}
    found: dict[int, tuple[str, Any]] = {}
    for one in averages(history, "fold"):
        mean, spread = one.mean(run.monitor), one.std(run.monitor)
        text = score(run.monitor, mean) + ("" if math.isnan(spread) else f" ± {number(spread, 2)}")
        found |= {member.id: (text, _key(mean)) for member in one.members}
    return found


def _axis_columns(history: History, axes: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Of each axis; one is constant where all members have the same value now."""
    values = {name: {show(m.config.get(name)) for m in history.members.values()} for name in axes}
    return [
        _column(f"axis:{name}", name, f"Axis {name} of the grid", _numeric(v)) | {"constant": len(values[name]) < 2}
        for name, v in axes.items()
    ]


def _changes(history: History) -> dict[int, str]:
    """By member: which values it was given last, and when."""
    given = {edit.variant for edit in history.edits if edit.how == "set"}
    return {i: f"{found[-1][1]} at ep {found[-1][0]}" for i, found in marks(history).items() if i in given}


def state_of(member: Member, paused: bool) -> str:
    """A member's displayed state: no member runs while the run is paused."""
    return ev.PAUSED if paused and member.state == ev.RUNNING else member.state


def check_text(check: ev.MemberChecked) -> str:
    """The outcome of a check in words: ``equal, 3e-07 over 5 epochs``."""
    worst = max(check.differences.values(), default=math.nan)
    return f"{check.verdict}, {number(worst, 2)} over {check.epochs} epochs"


def _cells(
    member: Member, rank: int, metrics: list[str], axes: Mapping[str, Any], checked: bool, paused: bool
) -> dict[str, tuple[str, Any]]:
    """Text and sort key of each cell, by the key of its column."""
    state, epoch = state_of(member, paused), member.best_epoch or None
    found: dict[str, tuple[str, Any]] = {
        "rank": (str(rank), rank),
        "member": (f"#{member.id}", member.id),
        "state": (state, state),
        "best_epoch": (str(epoch or "-"), epoch),
    }
    for name in metrics:
        value = member.at_best(name) if name in member.curves else None
        found[f"metric:{name}"] = score(name, value), _key(value)
    for name in axes:
        config = member.config.get(name)
        plain = isinstance(config, int | float) and not isinstance(config, bool)
        found[f"axis:{name}"] = show(config), config if plain else show(config)
    if checked:
        worst = max(member.check.differences.values(), default=math.nan) if member.check else None
        found["check"] = check_text(member.check) if member.check else "", _key(worst)
    return found


def _row(member: Member, cells: list[tuple[str, Any]], stroke: colors.Stroke, history: History) -> Row:
    return {
        "id": member.id,
        "state": state_of(member, history.state == ev.PAUSED),
        "reason": member.reason,
        "cells": [text for text, _ in cells],
        "keys": [key for _, key in cells],
        "swatch": {"light": stroke.light, "dark": stroke.dark, "dash": list(stroke.dash)},
        "now": member.state,
        "take": member.best_epoch > 0,
    }


def _column(key: str, label: str, title: str, is_number: bool) -> dict[str, Any]:
    return {"key": key, "label": label, "title": title, "number": is_number, "constant": False}


def _numeric(values: Any) -> bool:
    return all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)


def _key(value: float | None) -> float | None:
    # JSON has no NaN, and non-numbers can't be sorted among numbers.
    return value if value is not None and math.isfinite(value) else None
