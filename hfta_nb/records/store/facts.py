"""What is known once of a study: of a kind, under a key."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from typing import Any

from hfta_nb.records import regular_files
from hfta_nb.records.store.database import sum_of, text


def put(connection: sqlite3.Connection, kind: str, key: str, body: Mapping[str, Any]) -> None:
    """Write a fact, in the place of one that is there."""
    words = json.dumps(body)
    row = (kind, key, words, sum_of("facts", kind, key, words))
    connection.execute("INSERT OR REPLACE INTO facts (kind, key, body, sum) VALUES (?, ?, ?, ?)", row)


def get(connection: sqlite3.Connection, kind: str, key: str) -> tuple[bool, dict[str, Any] | None]:
    """Whether there is such a fact, and what it says; None where it is damaged. The index, a copy, isn't trusted."""
    found = connection.execute(
        "SELECT body, sum FROM facts NOT INDEXED WHERE kind = ? AND key = ?", (kind, key)
    ).fetchone()
    return (False, None) if found is None else (True, _body(kind, key, *found))


def all_of(connection: sqlite3.Connection, kind: str) -> Iterator[tuple[str, dict[str, Any] | None]]:
    """The facts of a kind by their keys, damaged ones as None."""
    listed = connection.execute(
        "SELECT key, body, sum FROM facts NOT INDEXED WHERE kind = ? ORDER BY key", (kind,)
    ).fetchall()
    for key, body, total in listed:
        name = text(key) or ""
        yield name, _body(kind, name, body, total)


def _body(kind: str, key: str, body: Any, total: Any) -> dict[str, Any] | None:
    words = text(body)
    if words is None or text(total) != sum_of("facts", kind, key, words):
        return None
    try:
        found = regular_files.parsed(words)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
