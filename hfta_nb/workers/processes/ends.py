"""How a process ended, and how often another one goes on."""

from __future__ import annotations

import signal

RESTARTS = 3
"""How often another worker goes on with what one has died of, without progress in between, unless a user decides."""

_CRASHES = ("SIGSEGV", "SIGBUS", "SIGABRT", "SIGILL", "SIGFPE")


def is_crash(code: int) -> bool:
    """Whether an exit code is that of a crash, which computing may have caused."""
    try:
        return code < 0 and signal.Signals(-code).name in _CRASHES
    except ValueError:
        return False


def in_words(code: int) -> str:
    """How a process ended, in words, from its exit code."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        return f"was ended by signal {-code}"
    if name == "SIGKILL":
        return "was killed (SIGKILL): by a user, or by the system because memory ran out"
    meaning = f"{name}, {signal.strsignal(-code)}"
    return f"crashed ({meaning})" if name in _CRASHES else f"was ended by a signal ({meaning})"
