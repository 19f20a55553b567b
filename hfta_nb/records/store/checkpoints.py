"""Checkpoints and best weights: committed by a row of the database, once all their files are on the disk.

A checkpoint's row lists its files and those of all best weights and ends at that moment. Files are never written over:
so the row before, with its files, is whole as well, and is what a run goes on from where the last one is damaged.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from hfta_nb.errors import StoreError
from hfta_nb.records import regular_files
from hfta_nb.records.store import tensor_files, trees
from hfta_nb.records.store.database import sum_of, text, transaction
from hfta_nb.records.store.tensor_files import Entry

KEPT = 2
"""Checkpoints that are kept, the last ones; of each member also its best weights."""

_OF_ONE = r"\d+\.\d+\.safetensors"
FOLDERS = {
    "checkpoints": re.compile(r"\d+\.safetensors"),
    "weights": re.compile(r"\d+(@\w+)?\.\d+\.safetensors"),
    "ends": re.compile(_OF_ONE),
}
"""Where there are files of checkpoints, and what their names are. Others are left alone."""


@dataclass(frozen=True)
class Checkpoint:
    """A row of the table of checkpoints.

    Attributes:
        number: rises, and is never used again.
        event: the last event before it.
        state: the tree without its tensors, which are in the file `tensors`.
        weights: by variant, its best weights; by "3@9" and "3@last" those of member 3 after epoch 9 and at its end.
        ends: by name, how far an array is that is done; `trees` has what is in it beside tensors.
    """

    number: int
    event: int
    state: Any
    tensors: Entry | None = None
    weights: Mapping[str, Entry] = field(default_factory=dict)
    ends: Mapping[str, Entry] = field(default_factory=dict)
    trees: Mapping[str, Any] = field(default_factory=dict)

    @property
    def files(self) -> list[Entry]:
        own = [] if self.tensors is None else [self.tensors]
        return [*own, *self.weights.values(), *self.ends.values()]

    def body(self) -> str:
        """As JSON."""
        saved: dict[str, Any] = {"state": self.state, "trees": dict(self.trees)}
        saved["tensors"] = None if self.tensors is None else self.tensors.to_json()
        saved |= {"weights": {k: v.to_json() for k, v in self.weights.items()}}
        saved |= {"ends": {k: v.to_json() for k, v in self.ends.items()}}
        return json.dumps(saved)

    @classmethod
    def from_json(cls, number: int, event: int, body: str) -> Checkpoint:
        """What `body` gave.

        Raises:
            KeyError, TypeError, ValueError, AttributeError: it is not.
        """
        saved = regular_files.parsed(body)
        weights, ends = ({str(k): Entry.from_json(v) for k, v in saved[name].items()} for name in ("weights", "ends"))
        tensors = None if saved["tensors"] is None else Entry.from_json(saved["tensors"])
        return cls(number, event, saved["state"], tensors, weights, ends, dict(saved["trees"]))


def insert(connection: sqlite3.Connection, made: Checkpoint) -> None:
    """Write a row; the checkpoint is there once this is committed."""
    body = made.body()
    row = (made.number, made.event, body, sum_of("checkpoints", made.number, made.event, body))
    connection.execute("INSERT INTO checkpoints (number, event, body, sum) VALUES (?, ?, ?, ?)", row)


def next_number(connection: sqlite3.Connection) -> int:
    """A number that no checkpoint has, or has had."""
    found = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'checkpoints'").fetchone()
    return 1 + int(found[0]) if found else 1


def listed(connection: sqlite3.Connection, most: int = -1) -> list[tuple[int, Checkpoint | None]]:
    """All checkpoints, or so many, the last one first; None where the row is damaged."""
    sql = "SELECT number, event, body, sum FROM checkpoints ORDER BY number DESC LIMIT ?"
    rows = connection.execute(sql, (most,)).fetchall()
    return [(int(row[0]), _read(*row)) for row in rows]


def _read(number: Any, event: Any, body: Any, total: Any) -> Checkpoint | None:
    words = text(body)
    if words is None or text(total) != sum_of("checkpoints", number, event, words):
        return None
    try:
        return Checkpoint.from_json(int(number), int(event), words)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def tree(directory: Path, found: Checkpoint) -> Any:
    """The state of a checkpoint, with its tensors.

    Raises:
        StoreError: its file is damaged.
    """
    return _put(directory, found.state, found.tensors)


def end(directory: Path, found: Checkpoint | None, name: str) -> Any:
    """How far an array is that is done.

    Raises:
        StoreError: nothing is known of it, or its file is damaged.
    """
    if found is None or name not in found.ends:
        raise StoreError("no such file in the run", where=str(directory / name))
    return _put(directory, found.trees[name], found.ends[name])


def _put(directory: Path, plain: Any, entry: Entry | None) -> Any:
    tensors: dict[str, Tensor] = {} if entry is None else tensor_files.read(directory, entry)
    try:
        return trees.put_tensors(plain, tensors)
    except KeyError as error:
        where = str(directory if entry is None else directory / entry.path)
        raise StoreError(f"is not what was saved ({error} is missing)", where=where) from error


def whole(directory: Path, found: Checkpoint) -> StoreError | None:
    """What is wrong with the files of a checkpoint; None where nothing is."""
    for entry in found.files:
        try:
            tensor_files.verify(directory, entry)
        except StoreError as error:
            return error
    return None


def last_whole(connection: sqlite3.Connection, directory: Path, tell: Callable[[str], None]) -> Checkpoint:
    """The last checkpoint that is whole; `tell` hears of those that are not, if there are others.

    Raises:
        StoreError: there is none.
    """
    rows = listed(connection)
    if not rows:
        raise StoreError("no checkpoint here yet", where=str(directory))
    damages: list[StoreError] = []
    for number, found in rows:
        damage = StoreError("is damaged", where=f"checkpoint {number}") if found is None else whole(directory, found)
        if found is not None and damage is None:
            return found
        damages += [damage] if damage else []
        if len(rows) > 1:
            tell(f"checkpoint {number} can't be used, the one before is: {damages[-1].message}")
    what, remedy = damages[0].message, "start a new study; what can be read of this one stays so"
    raise StoreError(f"no checkpoint is whole: {what}", where=str(directory), remedy=remedy) from damages[0]


def any_in(directory: Path) -> bool:
    """Whether there are files of checkpoints, of which a database must have told."""
    return any((directory / folder).is_dir() for folder in FOLDERS)


def there(
    directory: Path, entries: Mapping[str, Entry], tell: Callable[[str], None], new: Mapping[Any, Any] = {}
) -> dict[str, Entry]:
    """Those whose files are still there, to be part of the next checkpoint.

    Args:
        tell: hears of others.
        new: those that have new files now, of which it need not hear.
    """
    names: set[str] = set()
    for folder in FOLDERS:
        with contextlib.suppress(OSError):
            names |= {f"{folder}/{name}" for name in os.listdir(directory / folder)}
    found = {key: entry for key, entry in entries.items() if entry.path in names}
    gone = [key for key in entries if key not in found and key not in map(str, new)]
    if gone:
        tell(f"files are gone: {', '.join(gone[:5])}{', ...' if len(gone) > 5 else ''}")
    return found


def tidy(connection: sqlite3.Connection, directory: Path, staged: Iterable[Entry]) -> None:
    """Keep the last checkpoints alone, and their files; what a killed process has left half written goes as well.

    Args:
        staged: files of the next checkpoint.
    """
    rows = listed(connection)
    old = [number for number, _ in rows[KEPT:]]
    if old:
        with transaction(connection):
            connection.execute("DELETE FROM checkpoints WHERE number <= ?", (max(old),))
    kept = [found for _, found in rows[:KEPT]]
    if None in kept:
        return  # which files are of the damaged one is not known
    names = {entry.path for entry in (*staged, *(e for found in kept if found is not None for e in found.files))}
    for folder, pattern in FOLDERS.items():
        with contextlib.suppress(OSError):
            for path in list((directory / folder).iterdir()):
                ours = pattern.fullmatch(path.name.removesuffix(".tmp"))
                if ours and f"{folder}/{path.name}" not in names:
                    path.unlink(missing_ok=True)
