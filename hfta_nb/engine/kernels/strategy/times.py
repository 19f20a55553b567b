"""A file of times by computation, which several processes read and add to.

What is chosen by time rounds in its own way, so what the first process has measured holds for all others on the
machine: the file is only added to, under a lock, and what is there already stands. Therefore the name of a computation
tells all that is compared, its variants too: no times are ever replaced. The file has one JSON document a line, first
that of the machine.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import threading
from collections.abc import Collection, Iterator
from io import FileIO
from pathlib import Path
from typing import Any

from hfta_nb.records import regular_files

_FORMAT = 2
_TELLING = 256
"""Bytes after those of the machine that tell a file from another one: no two measure the same seconds."""

Times = dict[str, float | None]
"""Seconds by variant; None for a variant that failed or was not exact enough."""


class Kept:
    """Times by computation, read from a file and added to it. Problems with the file are no errors.

    Args:
        path: of the file; None to keep nothing.
        machine: describes the machine that the times hold for.

    Attributes:
        hopeless: computations that cannot be measured in this process.
    """

    def __init__(self, path: Path | None, machine: dict[str, Any]) -> None:
        self.path = path
        self._head = json.dumps({"format": _FORMAT, "machine": machine}).encode() + b"\n"
        self._times: dict[str, Times] = {}
        self._own: set[str] = set()
        self._begin, self._end, self._sum = b"", 0, hashlib.sha256()  # of what was read
        self._lock, self._warned = threading.RLock(), False
        self.hopeless: set[str] = set()
        self._read()

    def get(self, what: str) -> Times | None:
        """Known times."""
        if what not in self._times:
            self._read()  # another process may have measured it since
        return self._times.get(what)

    def all_of(self, kind: str) -> list[Times]:
        """The times of all computations whose names begin so."""
        self._read()
        return [times for what, times in self._times.items() if what.startswith(kind)]

    def own(self, what: str) -> bool:
        """True if this process has measured the times."""
        return what in self._own

    def put(self, what: str, times: Times, unless: Collection[str] = (), lasting: bool = True) -> Times:
        """Add times, unless another thread or process was first.

        Args:
            what: the computation.
            times: of it.
            unless: other computations whose times serve as well: if there are any, nothing is added.
            lasting: for other processes as well.

        Returns:
            The times that hold from now on, in all processes.
        """
        with self._lock, contextlib.ExitStack() as stack:
            file = None
            if lasting and self.path is not None:
                try:
                    file = stack.enter_context(_locked(self.path))
                except OSError as error:
                    self._warn(error)
                else:
                    self._read()
            for name in (what, *unless):
                if name in self._times:
                    return self._times[name]
            if file is not None:
                try:
                    self._append(file, json.dumps([what, times]).encode())
                except OSError as error:
                    self._warn(error)
            self._times[what] = times
            self._own.add(what)
            return times

    def _warn(self, error: OSError) -> None:
        """Tell people, once, that the next process will choose anew."""
        if not self._warned:
            self._warned = True
            logging.getLogger("hfta_nb").warning(
                "the times of kernels can't be kept (%s): each process chooses anew, so that results of the same code "
                "may differ by rounding. Make room in this folder, or set HFTA_NB_CACHE to one that can be written",
                error,
            )

    def fingerprint(self) -> str:
        """Stands for all that was measured until now, here and by others; empty if nothing is kept."""
        with self._lock:
            self._read()
            return f"{self.path.stem} {self._end} {self._sum.hexdigest()[:16]}" if self.path and self._end else ""

    def began_as(self, fingerprint: str) -> bool:
        """True if all that was measured when the fingerprint was taken still holds."""
        name, _, rest = fingerprint.partition(" ")
        end, _, found = rest.partition(" ")
        with contextlib.suppress(OSError, ValueError):
            if self.path is not None and name == self.path.stem:
                with regular_files.opened(self.path) as file:
                    return hashlib.sha256(file.read(int(end))).hexdigest()[:16] == found
        return False

    def _append(self, file: FileIO, line: bytes) -> None:
        size = os.fstat(file.fileno()).st_size
        if not self._end:  # nothing, or nothing that can be read
            file.truncate(0)
            line = self._head + line
        elif size > self._end:  # a process was ended while it wrote
            line = b"\n" + line
        line += b"\n"
        if file.write(line) != len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        self._read()

    def _read(self) -> None:
        """Take in what was added since."""
        if self.path is None:
            return
        with self._lock, contextlib.suppress(OSError), regular_files.opened(self.path) as file:
            size = os.fstat(file.fileno()).st_size
            if size < self._end or file.read(len(self._begin)) != self._begin:  # it was deleted and written anew
                self._begin, self._end, self._sum = b"", 0, hashlib.sha256()
                file.seek(0)
            if size == self._end:
                return
            if not self._end and file.read(len(self._head)) != self._head:
                return  # of another machine or format, or none of these files
            file.seek(self._end)
            found = file.read()
            found = found[: found.rfind(b"\n") + 1]
            for line in found.splitlines():
                entry = _entry(line)
                if entry is not None:
                    self._times.setdefault(*entry)  # what this process has taken holds for it
            self._begin = (self._begin + found)[: len(self._head) + _TELLING]
            self._end += len(found)
            self._sum.update(found)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[FileIO]:
    """A file, opened to add to it, that no other process adds to meanwhile, where the system has such locks.

    Raises:
        OSError: it can't be written.
    """
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        with regular_files.opened(path, "ab", buffering=0) as file:
            with contextlib.suppress(ImportError, OSError):
                import fcntl

                fcntl.flock(file, fcntl.LOCK_EX)
            there = False
            with contextlib.suppress(FileNotFoundError):
                there = os.path.samestat(os.fstat(file.fileno()), path.stat())
            if there:  # nobody has deleted it since
                yield file
                return


def _entry(line: bytes) -> tuple[str, Times] | None:
    """A computation and its times; None for a damaged line."""
    try:
        what, times = json.loads(line)
    except (ValueError, TypeError, RecursionError):
        return None
    return (what, times) if isinstance(what, str) and _are_times(times) else None


def _are_times(found: Any) -> bool:
    return isinstance(found, dict) and all(
        v is None or (isinstance(v, float) and 0 < v < float("inf")) for v in found.values()
    )
