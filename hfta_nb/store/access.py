"""Connections to a run's database: each for a piece of work, and one for as long as the run is claimed."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from hfta_nb.errors import StoreError
from hfta_nb.store import database, files, layout1
from hfta_nb.store.locks import LOCK, alone, locked


class Access:
    """The way to the database of a run.

    Args:
        directory: of the run.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = directory / database.NAME
        self._claimed = False
        self._writer: sqlite3.Connection | None = None  # while the run is claimed
        self._turn = threading.RLock()

    @property
    def made(self) -> bool:
        """Whether there is a database."""
        try:
            return self.path.is_file()
        except OSError as error:
            raise StoreError(f"can't be looked at ({files.reason(error)})", where=str(self.path)) from error

    @property
    def exists(self) -> bool:
        """Whether there is a study, of this layout or an older one."""
        return self.made or layout1.is_there(self.directory)

    @property
    def written_s(self) -> float:
        """When something was last written, in seconds since the epoch; 0 where nothing was."""
        times: list[float] = []
        for name in (database.NAME, f"{database.NAME}-wal", layout1.EVENTS):
            with contextlib.suppress(OSError):
                found = (self.directory / name).stat()
                if found.st_size and not (times and name == layout1.EVENTS):
                    times.append(found.st_mtime)
        return max(times, default=0.0)

    @contextlib.contextmanager
    def claimed(self, patience_s: float) -> Iterator[None]:
        """See `Store.claimed`."""
        with files.guarded(self.directory / LOCK) as lock:
            file = lock.open("ab")
        with file:
            until = time.monotonic() + patience_s
            while not alone(file):
                if time.monotonic() > until:
                    remedy = "wait until it has ended, or stop it there; Study.load(...) reads it meanwhile"
                    raise StoreError("the run is in progress elsewhere", where=str(self.directory), remedy=remedy)
                time.sleep(0.05)
            try:
                self._claimed = True
                if self.exists:
                    self._hold()
                yield
            finally:
                with self._turn:
                    self._claimed = False
                    writer, self._writer = self._writer, None
                    if writer is not None:
                        database.close(writer)

    @property
    def running(self) -> bool | None:
        """Whether the study is being run now, in this process or in another; None where the system can't tell."""
        return locked(self.directory / LOCK)

    def _hold(self) -> None:
        """Have the connection for as long as the run is claimed; a damaged database is not written to."""
        self._convert()
        for left in self.directory.glob(f"{database.NAME}.*.tmp*"):  # by a process that was killed while it made one
            with contextlib.suppress(OSError):
                left.unlink()
        self._writer = database.open_to_write(self.path, ahead=True)
        found = database.problems(self._writer)
        if found:
            raise StoreError(f"is damaged ({found})", where=str(self.path), remedy=database.SALVAGE)

    def _convert(self) -> None:
        if not self.made:
            layout1.convert(self.directory)

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A connection that reads, what this process has written as well."""
        with self._turn:
            if self._writer is not None:
                with database.typed(self.path):
                    yield self._writer
                return
        if not self.made:
            layout1.read_study(self.directory)  # there is a run, or it is said that there is none
            try:
                self._convert()
            except StoreError:  # a directory that can't be written to
                with contextlib.closing(layout1.in_memory(self.directory)) as connection:
                    yield connection
                return
        with contextlib.closing(database.open_to_read(self.path)) as connection, database.typed(self.path):
            yield connection

    @contextlib.contextmanager
    def writer(self) -> Iterator[sqlite3.Connection]:
        """A connection that writes, one thread at a time."""
        with self._turn, database.typed(self.path):
            if self._writer is None:
                self._convert()
                connection = database.open_to_write(self.path, ahead=self._claimed)
                if not self._claimed:
                    with contextlib.closing(connection):
                        yield connection
                    return
                self._writer = connection
            yield self._writer

    @contextlib.contextmanager
    def writing(self, lasting: bool = True) -> Iterator[sqlite3.Connection]:
        """A transaction; see there."""
        with self.writer() as connection, database.transaction(connection, lasting):
            yield connection
