"""Who runs a study: a lock on a file that is never replaced.

The operating system lets go of it when the process ends, however it ends.
"""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

LOCK = "run.lock"
"""The file that whoever runs the study holds locked."""


def alone(file: BinaryIO) -> bool:
    """Lock a file as long as it is open; true as well where the system or its disk knows no locks."""
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def locked(path: Path) -> bool | None:
    """Whether somebody has locked this file; None where that can't be known."""
    try:
        import fcntl
    except ImportError:
        return None
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    except OSError:
        return None
    return False
