"""Waiting for a condition with a deadline: the only form of waiting in these tests."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import psutil

T = TypeVar("T")
INTERVAL_S = 0.1


def eventually(probe: Callable[[], T], what: str, timeout_s: float = 30.0) -> T:
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


def gone(pid: int) -> bool:
    """Whether a process has ended (a zombie has: nobody collected it, that is all)."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
