"""Saved runs for tests: modified or damaged."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hfta_nb.records.store import Store, checkpoints
from hfta_nb.records.store.database import sum_of


@contextlib.contextmanager
def opened(directory: Path) -> Iterator[sqlite3.Connection]:
    """The database of a run."""
    with contextlib.closing(sqlite3.connect(directory / "study.sqlite", isolation_level=None)) as connection:
        yield connection


def last_checkpoint(store: Store) -> Any:
    """The state of the last checkpoint that is whole, from which `Store.go_back` would carry on."""
    return checkpoints.tree(store.directory, store._best_of())


def change_events(directory: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change what the events say, as if it had been written so."""
    with opened(directory) as connection:
        for number, body in connection.execute("SELECT number, body FROM events").fetchall():
            event = json.loads(body)
            change(event)
            words = json.dumps(event)
            row = (words, sum_of("events", number, words), number)
            connection.execute("UPDATE events SET body = ?, sum = ? WHERE number = ?", row)


def damage_event(directory: Path, number: int) -> None:
    """Change an event, but not its sum."""
    with opened(directory) as connection:
        connection.execute("UPDATE events SET body = replace(body, '1', '2') || ' ' WHERE number = ?", (number,))
