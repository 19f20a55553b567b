"""The runs of a folder, each in one line, as read from their events."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hfta_nb.errors import StoreError
from hfta_nb.errors.plain_text import encodes
from hfta_nb.records import events as ev
from hfta_nb.records.history import History
from hfta_nb.records.store import Store

USUAL_FOLDER = "hfta_runs"
"""Where studies keep their runs, unless they are given a directory."""

COLUMNS = ("run", "state", "family", "data", "members", "epochs", "monitor", "best", "started", "took_s", "axes",
           "directory")  # fmt: skip


@dataclass(frozen=True)
class Summary:
    """A run.

    Attributes:
        directory: its own.
        history: of it.
    """

    directory: Path
    history: History

    @property
    def row(self) -> dict[str, Any]:
        """Its values of `COLUMNS`."""
        history, run, leader = self.history, self.history.run, self.history.leader
        assert run is not None  # one without a beginning has no summary
        best = None if leader is None else leader.at_best(run.monitor)
        axes = ", ".join(name for name, values in run.axes.items() if len(values) > 1)
        began = datetime.datetime.fromtimestamp(history.begin_s).replace(microsecond=0)
        found = self.directory.name, history.state, run.family, run.data, len(history.members), run.epochs, run.monitor
        return dict(zip(COLUMNS, (*found, best, began, history.took_s, axes, str(self.directory)), strict=True))


def history_of(store: Store) -> History:
    """What the events of a run tell; INTERRUPTED where the process that trained it is gone."""
    history = History()
    for event, _ in store.events():
        if history.run is not None or isinstance(event, ev.RunStarted):  # else the first event is damaged
            history.add(event)
    if history.state in (ev.RUNNING, ev.PAUSED) and store.running is False:
        history.interrupt()
    return history


def stores(folder: str | Path) -> list[Store]:
    """The studies in a folder, the last one written to first.

    Raises:
        OSError: it can't be read.
    """
    places = (place for place in Path(folder).iterdir() if encodes(place.absolute()) and place.is_dir())
    found = [store for store in map(Store, places) if store.written_s]
    return sorted(found, key=lambda store: (-store.written_s, store.directory))


def summaries(folder: str | Path) -> Iterator[Summary]:
    """The runs of a folder that have begun, the latest first; damaged ones are left out.

    Raises:
        StoreError: it can't be read.
    """
    try:
        found = stores(folder)
    except OSError as error:
        remedy = "give the folder in which runs are: hfta_runs, or another one"
        raise StoreError(f"can't be read ({error.strerror})", where=str(folder), remedy=remedy) from error
    for store in found:
        try:
            history = history_of(store)
        except (StoreError, TypeError, ValueError, KeyError):
            continue
        if history.run is not None:
            yield Summary(store.directory, history)
