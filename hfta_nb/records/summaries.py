"""The runs of a folder, each in one line, as read from their events."""

from __future__ import annotations

import contextlib
import datetime
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hfta_nb.errors import StoreError
from hfta_nb.errors.plain_text import encodes
from hfta_nb.records import events as ev
from hfta_nb.records.history import History
from hfta_nb.records.store import Store
from hfta_nb.records.store.journal import record

USUAL_FOLDER = "hfta_runs"
"""Where studies keep their runs, unless they are given a directory."""

UNREADABLE = "UNREADABLE"
"""The state of a run whose events can't be read: it is damaged, or of a later version."""

COLUMNS = ("run", "state", "family", "data", "members", "epochs", "monitor", "best", "started", "took_s", "axes",
           "tags", "note", "directory")  # fmt: skip

Row = dict[str, Any]
"""A run's values of `COLUMNS`, and the ``direction`` of its monitor."""

_LABEL = "label"  # the kind of facts of a run's tags and note

_TELLING = ("RunStarted", "RunChanged", "MemberEdited")
"""Events that a run's row is made of, beside `MemberImproved`."""

_known: dict[Path, tuple[float, Row | None]] = {}
"""By directory, when it was written to and its row: runs that have ended are read once."""

_DAMAGE = OSError, TypeError, ValueError, KeyError, OverflowError
"""What a damaged run may raise; a `StoreError` is an `OSError`."""


def history_of(store: Store) -> History:
    """What the events of a run tell; INTERRUPTED where the process that trained it is gone."""
    history = History()
    for event, _ in store.events():
        if history.run is not None or isinstance(event, ev.RunStarted):  # else the first event is damaged
            history.add(event)
    return _interrupted(store, history)


def _interrupted(store: Store, history: History) -> History:
    if history.state in (ev.RUNNING, ev.PAUSED) and store.running is False:
        history.interrupt()
    return history


def _outline_of(store: Store) -> History:
    """As `history_of`, without curves and what else a line doesn't say: several times as fast."""
    history = History()
    for row in store.rows():
        body = row.body or {}
        telling = row.kind in _TELLING or body.get("state") == ev.DELETED
        event = (record(row) if telling else None) or ev.Event(float(body.get("time_s", 0.0)))
        if history.run is not None or isinstance(event, ev.RunStarted):
            history.add(event)
        if row.kind == "MemberImproved" and body["variant"] in history.members:
            member = history.members[body["variant"]]
            member.best_epoch, member.best_value = int(body["epoch"]), float(body["value"])
    return _interrupted(store, history)


def label_of(store: Store) -> tuple[list[str], str]:
    """A run's tags and note; empty where it has none, or they can't be read."""
    with contextlib.suppress(*_DAMAGE):
        found = store.notes(_LABEL).get("", {})
        return [str(tag) for tag in found.get("tags", ())], str(found.get("note", ""))
    return [], ""


def set_label(store: Store, tags: Sequence[str], note: str) -> None:
    """Write a run's tags and note.

    Raises:
        StoreError: there is no run, or it can't be written to.
    """
    store.note(_LABEL, {"": {"tags": list(tags), "note": note}})


def row_of(store: Store) -> Row | None:
    """A run in one line; None where it hasn't begun. Of a damaged one there is what can be read."""
    written_s, place = store.written_s, store.directory.absolute()
    if place in _known and _known[place][0] == written_s and not store.running:
        return _known[place][1]
    try:
        history = _outline_of(store)
        row = _row(store, history) if history.run is not None or not store.has_events else _damaged(store)
        ended = row is None or row["state"] in ev.FINAL_STATES
    except _DAMAGE:
        row, ended = _damaged(store), False
    if ended and not store.running:
        _known[place] = written_s, row
    else:
        _known.pop(place, None)
    return row


def _row(store: Store, history: History) -> Row | None:
    run, leader = history.run, history.leader
    if run is None:
        return None
    axes = ", ".join(name for name, values in run.axes.items() if len(values) > 1)
    best = None if leader is None or math.isnan(leader.best_value) else leader.best_value
    found = {"state": history.state, "family": run.family, "data": run.data, "members": len(history.members)}
    found |= {"epochs": run.epochs, "monitor": run.monitor, "best": best, "direction": run.direction}
    found |= {"took_s": history.took_s, "axes": axes}
    return _complete(store, found, history.begin_s)


def _damaged(store: Store) -> Row:
    found: Row = {"state": UNREADABLE, "took_s": math.nan, "members": 0, "epochs": 0}
    with contextlib.suppress(*_DAMAGE):
        asked = store.read_study()
        found |= {"family": str(asked["family"]), "data": str(asked["data"]["name"])}
    return _complete(store, found, store.written_s)


def _complete(store: Store, found: Row, begin_s: float) -> Row:
    (tags, note), began = label_of(store), datetime.datetime.fromtimestamp(begin_s).replace(microsecond=0)
    row: Row = dict.fromkeys(COLUMNS, "")
    row |= {"best": None, "run": store.directory.name, "started": began} | found
    return row | {"tags": ", ".join(tags), "note": note, "directory": str(store.directory)}


def stores(folder: str | Path) -> list[Store]:
    """The studies in a folder, the last one written to first.

    Raises:
        OSError: it can't be read.
    """
    places = (place for place in Path(folder).iterdir() if encodes(place.absolute()) and place.is_dir())
    found = [store for store in map(Store, places) if store.written_s]
    return sorted(found, key=lambda store: (-store.written_s, store.directory))


def rows(folder: str | Path) -> Iterator[Row]:
    """The runs of a folder that have begun, the latest first.

    Raises:
        StoreError: it can't be read.
    """
    try:
        found = stores(folder)
    except OSError as error:
        remedy = "give the folder in which runs are: hfta_runs, or another one"
        raise StoreError(f"can't be read ({error.strerror})", where=str(folder), remedy=remedy) from error
    listed = [row for row in map(row_of, found) if row is not None]
    yield from sorted(listed, key=lambda row: row["started"], reverse=True)
