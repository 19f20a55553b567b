"""Records variants under trial on disk, so that a variant that ends its process is not tried again.

Variants that are tried in this process are known to be safe (`sandbox`). If one ends the process nevertheless, a
separate file of the process beside the kept times (`kept`) names it, and the next process that reads those times does
not try it again. The file is opened once and locked as long as the process lives; a trial costs two system calls.
Nothing is recorded if no times are kept.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from hfta_nb.engine.kernels.strategy.times import Kept
from hfta_nb.records import regular_files

_SUFFIX = ".trial"


def killed(known: Kept, what: str, way: str) -> bool:
    """True if a process ended during the trial of this variant of a computation."""
    return known.get(_killed(what, way)) is not None


def _killed(what: str, way: str) -> str:
    return f"ended a process: {way} of {what}"


@contextlib.contextmanager
def trying(known: Kept, what: str, way: str) -> Iterator[None]:
    """Record a variant as under trial within the context; of nested trials the innermost one counts.

    Args:
        known: the file of times.
        what: the computation.
        way: the variant, as in its times.
    """
    if known.path is None:
        yield
        return
    journal = _journal(known.path)
    entry = what, way
    journal.add(entry)
    try:
        yield
    finally:
        journal.remove(entry)


def take_up(known: Kept) -> None:
    """Record the variants that were under trial in processes that have ended since."""
    if known.path is None:
        return
    for what, way in _left_behind(known.path):
        known.put(_killed(what, way), {way: None})


def under_trial(folder: Path, pid: int) -> str:
    """The variant that an ended process was trying, in words; empty if there was none.

    Args:
        folder: the directory of its files.
        pid: its id.
    """
    with contextlib.suppress(OSError):
        for path in folder.glob(f"*.{pid}{_SUFFIX}"):
            if (entry := _entry(regular_files.text(path))) is not None:
                return f'"{entry[1]}" ({entry[0].partition(" ")[0]})'
    return ""


class _Journal:
    """The file of this process beside a file of times.

    Args:
        path: of the times.
    """

    def __init__(self, path: Path) -> None:
        self.pid, self._lock, self._entries = os.getpid(), threading.Lock(), list[tuple[str, str]]()
        self._file: int | None = None
        self._length = 0
        with contextlib.suppress(OSError, ImportError):
            path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(_path(path, self.pid), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            with contextlib.suppress(OSError):  # a disk without locks: then nobody reads it
                _claim(file)
            self._file = file

    def add(self, entry: tuple[str, str]) -> None:
        with self._lock:
            self._entries.append(entry)
            self._write()

    def remove(self, entry: tuple[str, str]) -> None:
        with self._lock:
            self._entries.remove(entry)
            self._write()

    def _write(self) -> None:
        if self._file is None:
            return
        data = b"\n"  # the rest of the previous entry is no JSON without its first character
        if self._entries:
            data = json.dumps(self._entries[-1]).encode().ljust(self._length)
            self._length = len(data)
        with contextlib.suppress(OSError):
            os.pwrite(self._file, data, 0)


_journals: dict[tuple[Path, int], _Journal] = {}
_opening = threading.Lock()


def _journal(path: Path) -> _Journal:
    of = path, os.getpid()  # a forked process does not have its parent's locks
    found = _journals.get(of)
    if found is None:
        with _opening:  # of two threads' files for one process, each would hide what the other one tries
            found = _journals.get(of) or _journals.setdefault(of, _Journal(path))
    return found


def _path(times: Path, pid: int | str) -> Path:
    return times.with_name(f"{times.stem}.{pid}{_SUFFIX}")


def _left_behind(times: Path) -> Iterator[tuple[str, str]]:
    """Entries of processes that have ended, whose files are removed."""
    own = _path(times, os.getpid()).name
    with contextlib.suppress(OSError, ImportError):
        for path in times.parent.glob(_path(times, "*").name):
            if path.name == own:  # closing it would release its lock
                continue
            with contextlib.suppress(OSError), path.open("r+", encoding="utf-8") as file:
                _claim(file.fileno())
                entry = _entry(file.read())
                path.unlink()
                if entry is not None:
                    yield entry


def _claim(file: int) -> None:
    """Lock a file for the lifetime of this process; forked processes do not share the lock.

    Raises:
        OSError: another process has locked it, or its disk does not support locks.
        ImportError: this system has no such locks.
    """
    import fcntl

    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _entry(text: str) -> tuple[str, str] | None:
    try:
        what, way = json.loads(text)
    except (ValueError, TypeError):
        return None
    return (what, way) if isinstance(what, str) and isinstance(way, str) else None
