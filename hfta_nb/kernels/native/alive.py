"""Whether the processor can run a library that was just compiled, tried in a child process without torch.

The compiler is told to use all that it takes the processor for (``-march=native``). A hypervisor or an emulator may
refuse an instruction all the same, or a cache may lie on another machine's disk: that ends a process by SIGILL.
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
    """What ends well if the library whose path is put behind it can be run."""
    return [sys.executable, "-I", "-S", "-c", _CODE]


def alive(library: Path) -> bool:
    """Whether a process survives running a library, by its ``hfta_alive``; False where it can't be found out."""
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
