"""``study.sqlite``: its tables, connections to it, and the sum of each row.

SQLite keeps no sums of its pages, so each row has one of its own: what was changed on the disk is found when it is
read. The file is never opened by other means than SQLite's, whose locks a second ``open`` and ``close`` in the same
process would drop.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from hfta_nb.errors import HftaError, StoreError
from hfta_nb.records import regular_files
from hfta_nb.records.store import tensor_files

NAME = "study.sqlite"

VERSION = 2
"""Of the layout, kept in ``user_version``; raised when an older program could no longer read it."""

APPLICATION = 0x48465441
"""Kept in ``application_id``: what `file` and others know the file by."""

TABLES = {
    # What is known once: of a kind, under a key.
    "facts": "CREATE TABLE facts (kind TEXT NOT NULL, key TEXT NOT NULL, body TEXT NOT NULL, sum TEXT NOT NULL, "
    "PRIMARY KEY (kind, key))",
    # What happened. Numbers rise and are never used again, so that who follows a run can ask for what is new.
    "events": "CREATE TABLE events (number INTEGER PRIMARY KEY AUTOINCREMENT, body TEXT NOT NULL, sum TEXT NOT NULL)",
    # A checkpoint is there once its row is. `event` is the last event that it knows of.
    "checkpoints": "CREATE TABLE checkpoints (number INTEGER PRIMARY KEY AUTOINCREMENT, event INTEGER NOT NULL, "
    "body TEXT NOT NULL, sum TEXT NOT NULL)",
}

BUSY_S = 10.0
"""Another process's transaction is waited for so long; none takes more than some milliseconds."""

_LEAST_PAGE_BYTES, _FIRST_PAGE_BYTES = 512, 65_536
"""Of a page of a database; a study has several pages."""

_ASKED = ("PRAGMA application_id", "PRAGMA user_version", "SELECT count(*) FROM sqlite_master")

_BESIDE = ("", "-wal", "-shm", "-journal")
"""What SQLite has open for a database."""

_DAMAGED = "is damaged"


def sum_of(*parts: str | int) -> str:
    """The sum of a row, from its table, its key and its body."""
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:32]


@contextlib.contextmanager
def typed(path: Path) -> Iterator[None]:
    """SQLite's errors, and those of what is read from it, as typed ones."""
    try:
        yield
    except sqlite3.Error as error:
        raise _typed(path, error) from error
    except HftaError:
        raise
    except (OverflowError, TypeError, ValueError, AttributeError, KeyError) as error:  # what a damaged row may give
        raise StoreError(f"{_DAMAGED} ({error})", where=str(path), remedy=SALVAGE) from error


SALVAGE = "Study.load(...).save(another directory) copies all that can still be read, to be carried on there"


def _typed(path: Path, error: sqlite3.Error) -> StoreError:
    code = getattr(error, "sqlite_errorcode", None) or 0
    main, words = code & 0xFF, str(error)
    if main == sqlite3.SQLITE_FULL or words == "database or disk is full":
        return tensor_files.full(path)
    if main == sqlite3.SQLITE_IOERR:
        return StoreError(f"can't be read or written ({words})", where=str(path), remedy="is the disk whole, or full?")
    if main in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreError("is being written to by another process", where=str(path), remedy="try again")
    if main in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
        return StoreError(f"can't be opened or written ({words})", where=str(path))
    if main == sqlite3.SQLITE_NOTADB:
        return StoreError("is damaged, or no study", where=str(path), got=words)
    return StoreError(f"{_DAMAGED} ({words})", where=str(path), remedy=SALVAGE)


def blank(path: Path) -> bool:
    """Whether nothing was ever written to a file, but what SQLite begins with."""
    with contextlib.suppress(FileNotFoundError):
        if path.with_name(path.name + "-wal").stat().st_size:
            return False
    size_bytes = path.stat().st_size
    if size_bytes > _FIRST_PAGE_BYTES or size_bytes % _LEAST_PAGE_BYTES:
        return False
    uri = _uri(path, "ro", "&immutable=1")  # which makes no files beside it
    # A damaged schema may be no UTF-8: whoever reads it says so.
    with contextlib.suppress(sqlite3.Error, ValueError), contextlib.closing(sqlite3.connect(uri, uri=True)) as found:
        application, version, tables = (found.execute(sql).fetchone()[0] for sql in _ASKED)
        return not (application or version or tables)
    return False


def open_to_read(path: Path) -> sqlite3.Connection:
    """A connection that reads.

    Raises:
        StoreError: there is no study here, it is of a later version, or damaged.
    """
    with typed(path):
        _check_regular(path)
        connection = sqlite3.connect(_uri(path, "ro"), uri=True, timeout=BUSY_S, isolation_level=None)
        try:
            _set_up(connection)
            _check(connection, path)
        except sqlite3.OperationalError:
            connection.close()
            if os.access(path.parent, os.W_OK) or path.with_name(NAME + "-wal").exists():
                raise
            # SQLite makes a small file beside the database even to read it. Nobody writes here: it isn't needed.
            connection = sqlite3.connect(_uri(path, "ro", "&immutable=1"), uri=True, isolation_level=None)
            _set_up(connection)
            _check(connection, path)
        except BaseException:
            connection.close()
            raise
        return connection


def open_to_write(path: Path, ahead: bool = False) -> sqlite3.Connection:
    """A connection that reads and writes, to be used from any thread, one at a time.

    Args:
        ahead: write to a journal ahead of the file (WAL), beside which others read: while a run is on. Without, a study
            is one file, which can be read where nothing can be written.

    Raises:
        StoreError: as for `open_to_read`, or it can't be written.
    """
    with typed(path):
        _check_regular(path)
        connection = sqlite3.connect(
            _uri(path, "rw"), uri=True, timeout=BUSY_S, isolation_level=None, check_same_thread=False
        )
        try:
            _set_up(connection)
            _check(connection, path)
            if ahead:  # on a network's disk there may be no such journal; then SQLite keeps the one that it has
                _write_ahead(connection)
            connection.execute("PRAGMA synchronous = NORMAL")  # but see `transaction`
        except BaseException:
            connection.close()
            raise
        return connection


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Wait here for others' transactions: where the kind of journal changes, SQLite itself does not."""
    until = time.monotonic() + BUSY_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchone()
            return
        except sqlite3.OperationalError as error:
            busy = (error.sqlite_errorcode & 0xFF) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
            if not busy or time.monotonic() > until:
                raise
        time.sleep(0.02)


def _check_regular(path: Path) -> None:
    for end in _BESIDE:
        one = path.with_name(path.name + end)
        kind = regular_files.irregular(one)
        if kind:
            raise StoreError(f"is {kind}, not a file", where=str(one), remedy="remove it, or choose another directory")


def fold_in(connection: sqlite3.Connection) -> None:
    """Take what was written ahead into the file, so that a journal that is damaged says little."""
    with contextlib.suppress(sqlite3.Error):
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()


def close(connection: sqlite3.Connection) -> None:
    """Close a connection that wrote ahead, and leave one file; with its journal where somebody reads just now."""
    with contextlib.suppress(sqlite3.Error):
        connection.execute("PRAGMA busy_timeout = 0")
        connection.execute("PRAGMA journal_mode = DELETE").fetchone()
    with contextlib.suppress(sqlite3.Error):
        connection.close()


@contextlib.contextmanager
def making(path: Path) -> Iterator[sqlite3.Connection]:
    """A new database, filled within and then put in its place whole, unless another process was faster."""
    spare = path.with_name(f"{NAME}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        with tensor_files.guarded(spare), typed(spare):
            with contextlib.closing(sqlite3.connect(spare, isolation_level=None)) as connection:
                _set_up(connection)
                create(connection)
                yield connection
            tensor_files.sync(spare)
            _move_blank(path)
            try:
                os.link(spare, path)  # which, unlike a replacement, fails where something is there by now
            except FileExistsError:
                pass  # another process was faster: its database stays, and this one is removed below
            except OSError:  # a disk that knows no links
                os.replace(spare, path)
            tensor_files.sync(path.parent)
    finally:
        for left in (spare, spare.with_name(spare.name + "-journal")):
            with contextlib.suppress(OSError, ValueError):
                left.unlink(missing_ok=True)


def _move_blank(path: Path) -> None:
    """Make room where there is an empty database of another program, and no other."""
    aside = path.with_name(f"{NAME}.{uuid.uuid4().hex[:8]}.tmp")
    with contextlib.suppress(FileNotFoundError):
        if blank(path):
            os.replace(path, aside)
            if not blank(aside):  # another process has made a study in the meantime
                os.link(aside, path)
            aside.unlink()


def create(connection: sqlite3.Connection) -> None:
    """Make the tables."""
    with transaction(connection):
        for sql in TABLES.values():
            connection.execute(sql)
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
        connection.execute(f"PRAGMA user_version = {VERSION}")


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection, lasting: bool = True) -> Iterator[None]:
    """All of what is written within, or nothing.

    Args:
        lasting: whether it is on the disk when this is left, whatever becomes of the power. What is not is on the disk
            with the next transaction that is, and a killed process loses none of it.
    """
    if lasting:
        connection.execute("PRAGMA synchronous = FULL")
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise
    finally:
        if lasting:
            with contextlib.suppress(sqlite3.Error):
                connection.execute("PRAGMA synchronous = NORMAL")


def problems(connection: sqlite3.Connection) -> str:
    """What SQLite finds wrong in the file as a whole, in words; empty where nothing is."""
    try:
        found = connection.execute("PRAGMA quick_check(1)").fetchall()
    except (sqlite3.Error, OverflowError) as error:
        return str(error)
    words = text(found[0][0]) if found else ""
    return "" if words == "ok" else words or "its check says nothing"


def text(value: object) -> str | None:
    """A cell as text; None where it is none."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return None
    return value if isinstance(value, str) else None


def _uri(path: Path, mode: str, more: str = "") -> str:
    return f"{path.absolute().as_uri()}?mode={mode}{more}"


def _set_up(connection: sqlite3.Connection) -> None:
    connection.text_factory = bytes  # a damaged text is to be read, and told of
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")


def _check(connection: sqlite3.Connection, path: Path) -> None:
    """See that this is a study, and of a version that this program knows."""
    [application] = connection.execute("PRAGMA application_id").fetchone()
    [version] = connection.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION:
        raise StoreError("is damaged, or no study", where=str(path), got=application, accepted=str(APPLICATION))
    if version > VERSION:
        raise StoreError(
            "a run of a later version",
            where=str(path),
            got=version,
            accepted=f"up to {VERSION}",
            remedy=f"needs a later hfta_nb, such as the one that wrote it{_writer(connection)}: pip install -U hfta_nb",
        )
    if version < VERSION:
        raise StoreError(
            "is damaged: there is no such version of it", where=str(path), got=version, accepted=str(VERSION)
        )
    # Nothing else is in a study: a trigger or a view, which would be run by reading or writing, least of all.
    found = connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    schema = {text(name): text(sql) for name, sql in found}
    schema.pop("sqlite_sequence", None)
    if schema != TABLES:
        raise StoreError(
            f"{_DAMAGED}: its tables are not those of a study", where=str(path), got=sorted(map(str, schema))
        )


def _writer(connection: sqlite3.Connection) -> str:
    """The version of hfta_nb that has written this, where that can be read."""
    with contextlib.suppress(sqlite3.Error, ValueError, TypeError, KeyError):
        [body] = connection.execute("SELECT body FROM facts WHERE kind = 'environment' ORDER BY key DESC").fetchone()
        return f" ({regular_files.parsed(body)['hfta_nb']})"
    return ""
