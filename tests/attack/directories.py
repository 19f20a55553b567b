"""Run directories that someone has made to do harm: valid checksums, and anything in the place of a value or a file."""

from __future__ import annotations

import json
import os
import pickle
import random
import shutil
import sqlite3
import zipfile
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from hfta_nb.records.store.database import sum_of

DEEP = 100_000
VALUES = (
    *("null", "true", "-1", "0", "1.5", "1e308", "NaN", "-Infinity", str(2**63), "9" * 400, "9" * 5000, "[]", "{}"),
    *('""', '"x"', '"../../outside"', '"/dev/zero"', '"\\u001b[2J"', '"\\ud800"', '"a\\u0000b"', f'"{"y" * 5000}"'),
    *("[null]", "[[1]]", '{"a": 1}', "[" * DEEP + "]" * DEEP, '{"a":' * DEEP + "1" + "}" * DEEP, "", "{", "\ufeff{}"),
)
"""In place of a value, as JSON or nearly."""
MARK = "was here"


class Harm:
    """Writes a file when it is unpickled."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.write_text, (self.place, MARK)


def _replaced(value: Any, draw: random.Random, hostile: str) -> str:
    """JSON of a value in which one part, at any depth, is another one."""
    if not isinstance(value, dict | list) or not value or draw.random() < 0.15:
        return hostile
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    chosen = draw.choice(keys)
    items = value.items() if isinstance(value, dict) else enumerate(value)
    parts = [(k, _replaced(v, draw, hostile) if k == chosen else json.dumps(v)) for k, v in items]
    if isinstance(value, list):
        return f"[{','.join(text for _, text in parts)}]"
    return "{" + ",".join(f"{json.dumps(k)}:{text}" for k, text in parts) + "}"


def _row(place: Path, draw: random.Random) -> str:
    """Another value in a row of the database, whose checksum is right."""
    hostile = draw.choice(VALUES)
    with closing(sqlite3.connect(place / "study.sqlite")) as connection, connection:
        table = draw.choice(["facts", "facts", "events", "checkpoints"])
        keys = {"facts": ("kind", "key"), "events": ("number",), "checkpoints": ("number", "event")}[table]
        rows = connection.execute(f"SELECT {', '.join(keys)}, body FROM {table}").fetchall()
        *own, body = draw.choice(rows)
        changed = _replaced(json.loads(body), draw, hostile)
        try:
            valid = sum_of(*own, changed)
        except UnicodeEncodeError:
            valid = ""
        where = " AND ".join(f"{key} = ?" for key in keys)
        connection.execute(f"UPDATE {table} SET body = ?, sum = ? WHERE {where}", (changed, valid, *own))
    return f"{table} {own}: {hostile[:20]}"


def _schema(place: Path, draw: random.Random) -> str:
    """Another schema, or values of other types in its tables."""
    statement = draw.choice(
        [
            "DROP TABLE facts",
            "DROP TABLE events",
            "ALTER TABLE facts RENAME COLUMN body TO other",
            "UPDATE facts SET body = x'ff00fe'",
            "UPDATE events SET body = NULLIF(1, 2)",
            "UPDATE facts SET kind = 'other'",
            "UPDATE checkpoints SET event = 9223372036854775807",
            "DELETE FROM facts WHERE kind = 'variant'",
            "DELETE FROM events",
            "CREATE TRIGGER t AFTER INSERT ON events BEGIN DELETE FROM facts; END",
            "DROP TABLE events; CREATE VIEW events AS SELECT 1 AS number, 'x' AS body, 'y' AS sum",
            "DROP TABLE facts; CREATE VIEW facts AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) "
            "SELECT x AS kind, x AS key, x AS body, x AS sum FROM n",
            "PRAGMA user_version = 2147483647",
            "PRAGMA application_id = 1",
            "INSERT INTO events (number, body, sum) VALUES (9223372036854775807, '{}', '')",
        ]
    )
    # The schema forbids some: the directory stays as it is.
    with closing(sqlite3.connect(place / "study.sqlite")) as connection, suppress(sqlite3.Error):
        connection.executescript(statement)
    return statement


def _file(place: Path, draw: random.Random) -> str:
    """Something else in the place of a file."""
    path = draw.choice(sorted(path for path in place.rglob("*") if path.name != "run.lock" or draw.random() < 0.5))
    kind = draw.choice(
        ["fifo", "zero", "loop", "directory", "empty", "sparse", "pickle", "zip", "text", "link", "gone"]
    )
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    if kind == "fifo":
        os.mkfifo(path)
    elif kind in ("zero", "loop", "link"):
        path.symlink_to({"zero": Path("/dev/zero"), "loop": path, "link": place.parent}[kind])
    elif kind == "directory":
        path.mkdir()
    elif kind == "sparse":
        with path.open("wb") as file:
            file.truncate(1 << 42)
    elif kind == "pickle":
        path.write_bytes(pickle.dumps(Harm(place.parent / "harm")))
    elif kind == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("archive/data.pkl", pickle.dumps(Harm(place.parent / "harm")))
    elif kind in ("empty", "text"):
        path.write_bytes(b"" if kind == "empty" else (2**63 - 1).to_bytes(8, "little") + b"{" * 9999)
    return f"{kind} at {path.relative_to(place)}"


def made_hostile(place: Path, draw: random.Random) -> str:
    """Change a run directory; returns how."""
    return draw.choice([_row, _row, _row, _row, _schema, _file, _file])(place, draw)
