"""Tests in a child process without torch whether the processor can run a library that was just compiled.

The compiler uses all instructions of the processor that it detects (``-march=native``). A hypervisor or an emulator may
still reject an instruction, and a cache may have been filled by another machine. Such an instruction ends a process by
SIGILL.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_TIME_S = 30
_CODE = (
    "import ctypes, os, sys; found = ctypes.CDLL(sys.argv[1]).hfta_alive;"
    " found.restype = ctypes.c_float; found(); os._exit(0)"
)


def command() -> list[str]:
    """A command that exits with 0 if the library whose path is appended can be run."""
    return [sys.executable, "-I", "-S", "-c", _CODE]


def alive(library: Path) -> bool:
    """True if a process survives the library's ``hfta_alive``; False if that cannot be tested."""
    try:
        done = subprocess.run(
            [*command(), str(library)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            timeout=_TIME_S,
            check=False,
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return False
    return done.returncode == 0
