"""What happened in a run, event by event."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from hfta_nb.errors import EventError
from hfta_nb.records import regular_files
from hfta_nb.records.events import (
    CheckpointSaved,
    EpochDone,
    Event,
    MemberChanged,
    MemberEdited,
    MemberImproved,
    RunChanged,
    RunStarted,
    StepsDone,
    from_json,
    to_json,
)
from hfta_nb.records.store import facts
from hfta_nb.records.store.database import sum_of, text

DECISIVE = (RunStarted, RunChanged, CheckpointSaved)
"""Events that a power cut may not take. Others may wait for the next of these: a run that goes on repeats them."""

REPEATED = (StepsDone, EpochDone, MemberImproved, MemberChanged, MemberEdited)
"""Events of a run's progress. Those after a checkpoint come again when the run goes on from there."""

GONE_BACK = "gone back"
"""Facts of this kind say which events of progress a run has gone back behind."""

AT_ONCE = 2048
"""Events that are read at once."""


@dataclass(frozen=True)
class Row:
    """A row of the table of events.

    Attributes:
        body: the event as JSON; None where the row is damaged or missing.
    """

    number: int
    body: dict[str, Any] | None

    @property
    def kind(self) -> str:
        return "" if self.body is None else str(self.body.get("type", ""))


def append(connection: sqlite3.Connection, event: Event) -> int:
    """Add an event; returns its number. To be called within a transaction."""
    return append_body(connection, json.dumps(to_json(event)))


def append_body(connection: sqlite3.Connection, body: str, number: int | None = None) -> int:
    """Add an event that is JSON already; under the next number where none is given."""
    if number is None:
        number = last(connection) + 1
    row = (number, body, sum_of("events", number, body))
    connection.execute("INSERT INTO events (number, body, sum) VALUES (?, ?, ?)", row)
    return number


def last(connection: sqlite3.Connection) -> int:
    """The number of the last event; 0 where there is none."""
    found = connection.execute("SELECT max(number) FROM events").fetchone()[0]
    return int(found or 0)


def rows(connection: sqlite3.Connection, after: int, most: int = AT_ONCE) -> list[Row]:
    """Up to so many events after a number, damaged and missing ones as such.

    Raises:
        sqlite3.Error: not one of them can be found any more.
    """
    sql = "SELECT number, body, sum FROM events WHERE number > ? ORDER BY number LIMIT ?"
    try:
        found = connection.execute(sql, (after, most)).fetchall()
    except sqlite3.DatabaseError:
        return _one_by_one(connection, after, most)
    listed: list[Row] = []
    for number, body, total in found:
        expected = after + 1 + len(listed)
        if not isinstance(number, int) or number < expected or number - expected > 10 * most:
            return _one_by_one(connection, after, most)
        listed += [Row(n, None) for n in range(expected, number)]
        listed.append(_row(number, body, total))
    return listed


def _row(number: int, body: Any, total: Any) -> Row:
    words = text(body)
    if words is None or text(total) != sum_of("events", number, words):
        return Row(number, None)
    try:
        return Row(number, dict(regular_files.parsed(words)))
    except (ValueError, TypeError):
        return Row(number, None)


def _one_by_one(connection: sqlite3.Connection, after: int, most: int) -> list[Row]:
    """The same, where some page of the table can't be read: what lies on others can."""
    end = _end(connection)
    listed, found_any = [], False
    for number in range(after + 1, min(after + most, end) + 1):
        try:
            cells = connection.execute("SELECT number, body, sum FROM events WHERE number = ?", (number,)).fetchone()
        except sqlite3.DatabaseError:
            cells = None
        row = Row(number, None) if cells is None or cells[0] != number else _row(*cells)
        found_any |= row.body is not None
        listed.append(row)
    # Where the last number is damaged as well, the way there may be long: it is not gone step by step.
    return listed if found_any or not listed else [Row(end, None)]


def _end(connection: sqlite3.Connection) -> int:
    """The number of the last event that was ever written."""
    for sql in ("SELECT seq FROM sqlite_sequence WHERE name = 'events'", "SELECT max(number) FROM events"):
        try:
            found = connection.execute(sql).fetchone()
        except sqlite3.DatabaseError:
            continue
        if found is not None and isinstance(found[0], int) and 0 <= found[0] < 2**40:
            return int(found[0])
    raise sqlite3.DatabaseError("the events can't be found")


def record(row: Row) -> Event | None:
    """The event of a row; None where it is damaged, or of a kind that this version does not know."""
    if row.body is None:
        return None
    try:
        found = from_json(row.body)
    except EventError:
        return None
    return found if isinstance(found, Event) else None


# Going back.


def go_back(connection: sqlite3.Connection, after: int) -> None:
    """Leave out events of progress after a number, up to now: they come again. Within a transaction."""
    until = last(connection)
    if until > after:
        facts.put(connection, GONE_BACK, f"{until:012d}", {"after": after, "until": until})


def left_out(connection: sqlite3.Connection) -> list[tuple[int, int]]:
    """The ranges (after, until) of events of progress that a run has gone back behind."""
    found = (body for _, body in facts.all_of(connection, GONE_BACK) if body is not None)
    return [(int(body["after"]), int(body["until"])) for body in found]


def kept(listed: Iterable[Row], ranges: list[tuple[int, int]]) -> Iterator[Row]:
    """The rows without those that a run has gone back behind."""
    names = {kind.__name__ for kind in REPEATED}
    for row in listed:
        if row.kind in names and any(after < row.number <= until for after, until in ranges):
            continue
        yield row
