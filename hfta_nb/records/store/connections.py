"""Connections to a run's database: each for a piece of work, and one for as long as the run is claimed."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from hfta_nb.errors import StoreError
from hfta_nb.records import regular_files
from hfta_nb.records.store import checkpoints, database, tensor_files
from hfta_nb.records.store.locks import LOCK, Hold, locked


class Access:
    """The way to the database of a run.

    Args:
        directory: of the run.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = directory / database.NAME
        self._held: Hold | None = None  # while the run is claimed
        self._writer: sqlite3.Connection | None = None  # likewise; and after that, where the database is gone from here
        self.source = directory
        self._turn = threading.RLock()

    @property
    def exists(self) -> bool:
        """Whether there is a study; an empty database, as another program leaves it that only looked, is none."""
        if self._writer is not None:
            return True
        kind = regular_files.irregular(self.path)
        if kind:
            raise StoreError(f"is {kind}, not a file", where=str(self.path), remedy="choose another directory")
        try:
            return self.path.is_file() and not (database.blank(self.path) and not checkpoints.any_in(self.directory))
        except OSError as error:
            raise StoreError(f"can't be looked at ({tensor_files.reason(error)})", where=str(self.path)) from error

    @property
    def written_s(self) -> float:
        """When something was last written, in seconds since the epoch; 0 where nothing was."""
        times: list[float] = []
        for name in (database.NAME, f"{database.NAME}-wal"):
            with contextlib.suppress(OSError):
                found = (self.directory / name).stat()
                if found.st_size:
                    times.append(found.st_mtime)
        return max(times, default=0.0)

    @contextlib.contextmanager
    def claimed(self, patience_s: float) -> Iterator[None]:
        """See `Store.claimed`."""
        with tensor_files.guarded(self.directory / LOCK):
            hold = Hold(self.directory)
        with contextlib.closing(hold):
            until = time.monotonic() + patience_s
            while not hold.alone():
                if time.monotonic() > until:
                    remedy = "wait until it has ended, or stop it there; Study.load(...) reads it meanwhile"
                    raise StoreError("the run is in progress elsewhere", where=str(self.directory), remedy=remedy)
                time.sleep(0.05)
            try:
                self._release()
                self._held = hold
                self.check()
                if self.exists:
                    self._hold()
                yield
            finally:
                with self._turn:
                    self._held = None
                    if hold.missing() is None:
                        self._release()
                    else:  # of what is gone from here this connection is all there is
                        self.source = hold.place

    @property
    def running(self) -> bool | None:
        """Whether the study is being run now, in this process or in another; None where the system can't tell."""
        return locked(self.directory)

    def check(self) -> None:
        """See that what is claimed is still where it was.

        Raises:
            StoreError: the directory, or its database, was removed or moved, or is another one.
        """
        gone = None if self._held is None else self._held.missing()
        if self._held is None or gone is None:
            return
        now = self._held.place
        what = "is gone, or another one is there, while the run goes on"
        moved = f"the directory is {now} now; " if now != self.directory else ""
        remedy = f"{moved}what trains is still in memory: study.save(DIR) writes it, and the files that are left, to "
        remedy += "another directory, and Study.load(DIR).run(resume=True) goes on there; "
        remedy += "weights of arrays that had ended are in files alone"
        raise StoreError(what, where=str(gone), remedy=remedy)

    def _release(self) -> None:
        writer, self._writer = self._writer, None
        self.source = self.directory
        if writer is not None:
            database.close(writer)

    def _hold(self) -> None:
        """Have the connection for as long as the run is claimed; a damaged database is not written to."""
        for left in self.directory.glob(f"{database.NAME}.*.tmp*"):  # by a process that was killed while it made one
            with contextlib.suppress(OSError):
                left.unlink()
        self._writer = self._opened()
        found = database.problems(self._writer)
        if found:
            raise StoreError(f"is damaged ({found})", where=str(self.path), remedy=database.SALVAGE)

    def _opened(self) -> sqlite3.Connection:
        """The connection that writes; while the run is claimed, of a file that is known again."""
        if self._held is None:
            return database.open_to_write(self.path)
        connection = database.open_to_write(self.path, ahead=True)
        self._held.note(self.path)
        return connection

    def require(self) -> None:
        """See that there is a study.

        Raises:
            StoreError: there is none.
        """
        if not self.exists:
            where, remedy = str(self.directory), f"there is no {database.NAME} in it"
            raise StoreError("no saved run here", where=where, remedy=remedy)

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A connection that reads, what this process has written as well."""
        with self._turn:
            if self._writer is not None:
                with database.typed(self.path):
                    yield self._writer
                return
        self.require()
        with contextlib.closing(database.open_to_read(self.path)) as connection, database.typed(self.path):
            yield connection

    @contextlib.contextmanager
    def writer(self) -> Iterator[sqlite3.Connection]:
        """A connection that writes, one thread at a time."""
        with self._turn, database.typed(self.path):
            if self._writer is None:
                self.require()
                connection = self._opened()
                if self._held is None:
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
