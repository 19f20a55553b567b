"""A file of times by computation, which several processes read and add to.

What is chosen by time rounds in its own way, so what the first process has measured holds for all others on the
machine: the file is only added to, under a lock, and what is there already stands. It has one JSON document a line,
first that of the machine.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
from collections.abc import Collection, Iterator
from io import FileIO
from pathlib import Path
from typing import Any

from hfta_nb.records import regular_files

_FORMAT = 2

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
        self._end, self._sum = 0, hashlib.sha256()  # of what was read
        self._lock = threading.RLock()
        self.hopeless: set[str] = set()
        self._read()

    def get(self, what: str) -> Times | None:
        """Known times."""
        if what not in self._times:
            self._read()  # another process may have measured it since
        return self._times.get(what)

    def own(self, what: str) -> bool:
        """True if this process has measured the times."""
        return what in self._own

    def put(self, what: str, times: Times, needed: Collection[str] = (), lasting: bool = True) -> Times:
        """Add times, unless another process was first.

        Args:
            what: the computation.
            times: of it.
            needed: variants without which earlier times do not count.
            lasting: for other processes as well.

        Returns:
            The times that hold from now on, in all processes.
        """
        with self._lock, contextlib.ExitStack() as stack:
            file = None
            if lasting and self.path is not None:
                with contextlib.suppress(OSError):
                    file = stack.enter_context(_locked(self.path))
            if file is not None:
                self._read()
                there = self._times.get(what)
                if there is not None and set(needed) <= there.keys():
                    return there
                with contextlib.suppress(OSError):
                    self._append(file, json.dumps([what, times]).encode())
            self._times[what] = times
            self._own.add(what)
            return times

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
        file.write(line + b"\n")
        self._read()

    def _read(self) -> None:
        """Take in what was added since."""
        if self.path is None:
            return
        with self._lock, contextlib.suppress(OSError), regular_files.opened(self.path) as file:
            size = os.fstat(file.fileno()).st_size
            if size == self._end:
                return
            if size < self._end:  # it was deleted and written anew
                self._end, self._sum = 0, hashlib.sha256()
            if not self._end and file.read(len(self._head)) != self._head:
                return  # of another machine or format, or none of these files
            file.seek(self._end)
            found = file.read()
            found = found[: found.rfind(b"\n") + 1]
            for line in found.splitlines():
                entry = _entry(line)
                if entry is not None and entry[0] not in self._own:
                    self._times[entry[0]] = entry[1]
            self._end += len(found)
            self._sum.update(found)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[FileIO]:
    """A file, opened to add to it, that no other process adds to meanwhile, where the system has such locks.

    Raises:
        OSError: it can't be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        with regular_files.opened(path, "ab", buffering=0) as file:
            with contextlib.suppress(ImportError, OSError):
                import fcntl

                fcntl.flock(file, fcntl.LOCK_EX)
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):  # nobody has deleted it since
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
