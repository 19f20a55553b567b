"""A copy of a run, of all that can be read in it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from hfta_nb.errors import StoreError
from hfta_nb.records import regular_files
from hfta_nb.records.store import checkpoints, database, facts, journal, tensor_files
from hfta_nb.records.store.locks import LOCK


def copy(connection: sqlite3.Connection, source: Path, target: Path) -> Iterator[str]:
    """Copy a run; the database comes last, so that there is a run once all of it is there.

    Yields:
        What is lost, in words.

    Raises:
        StoreError: it can't be read or written.
    """
    left_out = shutil.ignore_patterns(f"{database.NAME}*", LOCK, "*.tmp")

    def no_files(folder: str, names: list[str]) -> set[str]:  # FIFOs, /dev/zero and the like
        kinds = {name: regular_files.irregular(os.path.join(folder, name)) for name in names}
        return left_out(folder, names) | {name for name, kind in kinds.items() if kind not in ("", "a directory")}

    try:
        if source.is_dir():
            shutil.copytree(source, target, ignore=no_files, dirs_exist_ok=True)
    except OSError as error:
        raise StoreError(f"can't be copied ({tensor_files.reason(error)})", where=str(target)) from error
    with database.making(target / database.NAME) as made, database.transaction(made):
        yield from _facts(connection, made)
        yield from _events(connection, made)
        yield from _checkpoints(connection, made)


def _facts(old: sqlite3.Connection, made: sqlite3.Connection) -> Iterator[str]:
    kinds = [database.text(row[0]) for row in old.execute("SELECT DISTINCT kind FROM facts NOT INDEXED").fetchall()]
    for kind in filter(None, kinds):
        for key, body in facts.all_of(old, kind):
            if body is None:
                yield f"the {kind} {key}".rstrip() + " is damaged and not copied"
            else:
                facts.put(made, kind, key, body)


def _events(old: sqlite3.Connection, made: sqlite3.Connection) -> Iterator[str]:
    offset, lost = 0, 0
    while found := journal.rows(old, offset):
        offset = found[-1].number
        for row in found:
            lost += row.body is None
            if row.body is not None:
                journal.append_body(made, json.dumps(row.body), row.number)
    if lost:
        yield f"{lost} event{'s are' if lost > 1 else ' is'} damaged and not copied"


def _checkpoints(old: sqlite3.Connection, made: sqlite3.Connection) -> Iterator[str]:
    with contextlib.suppress(sqlite3.DatabaseError):
        for number, found in reversed(checkpoints.listed(old)):
            if found is None:
                yield f"checkpoint {number} is damaged and not copied"
            else:
                checkpoints.insert(made, found)
        return
    yield "the checkpoints can't be read and are not copied"
