"""Who runs a study: locks on its directory, and on a file there.

The operating system lets go of them when the process ends, however it ends. A file can be removed and made again, which
would be another lock: so the directory itself is locked as well, and what it is, is compared with what is at its path.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import IO

from hfta_nb.records import regular_files

LOCK = "run.lock"
"""The file that whoever runs the study holds locked; on disks that lock no directories it is all there is."""

_Identity = tuple[int, int]


class Hold:
    """The directory of a run, for as long as it is open.

    Args:
        directory: which is there.

    Raises:
        OSError: it, or the file of the lock, can't be opened.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._file: IO[bytes] = regular_files.opened(directory / LOCK, "ab")
        self._folder: int | None = None
        with contextlib.suppress(PermissionError):  # Windows opens no directories
            self._folder = os.open(directory, os.O_RDONLY)
        self._known: dict[Path, _Identity | None] = {}
        if self._folder is not None:
            self._known[directory] = _of(os.fstat(self._folder))

    def alone(self) -> bool:
        """Lock both; whether nobody else has either. True as well where the system or its disk knows no locks."""
        folder = _lock(self._folder)
        file = _lock(self._file.fileno()) if folder is not False else False
        if folder is None:
            self.note(self.directory / LOCK)
        if folder and file is False:
            _unlock(self._folder)
        return file is not False

    def note(self, path: Path) -> None:
        """Know what is at a path from now on."""
        self._known[path] = _at(path)

    def missing(self) -> Path | None:
        """The first path at which there is no longer what was there; None where all are as they were."""
        return next((path for path, known in self._known.items() if known is None or _at(path) != known), None)

    @property
    def place(self) -> Path:
        """Where the directory is now, as far as the system tells: it may have been moved."""
        with contextlib.suppress(OSError):
            found = Path(os.readlink(f"/proc/self/fd/{self._folder}"))
            if self._folder is not None and _at(found) == _of(os.fstat(self._folder)):
                return found
        return self.directory

    def close(self) -> None:
        self._file.close()
        if self._folder is not None:
            os.close(self._folder)
            self._folder = None


def locked(directory: Path) -> bool | None:
    """Whether somebody holds this directory; None where that can't be known."""
    try:
        import fcntl
    except ImportError:
        return None
    held: bool | None = False
    for path in (directory, directory / LOCK):
        try:
            handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            try:
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            finally:
                os.close(handle)
        except FileNotFoundError:
            continue
        except BlockingIOError:
            return True
        except OSError:
            held = None
    return held


def _lock(handle: int | None) -> bool | None:
    """Whether a lock was free, and is now this process's; None where there are none."""
    try:
        import fcntl
    except ImportError:
        return None
    if handle is None:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _unlock(handle: int | None) -> None:
    import fcntl

    assert handle is not None  # it was locked
    fcntl.flock(handle, fcntl.LOCK_UN)


def _at(path: Path) -> _Identity | None:
    try:
        return _of(os.stat(path))
    except OSError:
        return None


def _of(found: os.stat_result) -> _Identity:
    return found.st_dev, found.st_ino
