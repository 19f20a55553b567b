"""Waiting for a condition with a deadline, and the processes of a test."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import TypeVar

import psutil

T = TypeVar("T")
INTERVAL_S = 0.02


def eventually(probe: Callable[[], T], what: str = "a condition", timeout_s: float = 60.0) -> T:
    """The first true value that `probe` gives.

    Args:
        probe: looked at again and again; an exception of its own counts as a failure at once.
        what: completes the sentence "waited for ..." in the message.
        timeout_s: how long to wait at most.

    Raises:
        AssertionError: none came in time; tells the last value.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        value = probe()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout_s:g} s for {what}; last seen: {value!r}")
        time.sleep(INTERVAL_S)


def gone(pid: int | None) -> bool:
    """Whether a process has ended (a zombie has: nobody collected it, that is all)."""
    assert pid is not None
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def descendants(text: str) -> list[psutil.Process]:
    """The running processes begun by this one, directly or not, whose command lines contain this text."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended meanwhile, or is a zombie
            found += [process] if text in " ".join([process.name(), *process.cmdline()]) else []
    return found
