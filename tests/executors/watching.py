"""Watching runs and processes from a test."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import psutil

from hfta_nb import events as ev
from hfta_nb import executors
from hfta_nb.executors import RunHandle

DEADLINE_S = 60.0


def until(condition: Callable[[], object], what: str) -> None:
    """Poll, with a deadline."""
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.005)


def collected(handle: RunHandle) -> list[ev.Event]:
    """Events from now on, Heartbeats left out."""
    found: list[ev.Event] = []
    handle.subscribe(lambda e: None if isinstance(e, ev.Heartbeat) else found.append(e))
    return found


def ended(handle: RunHandle) -> RunHandle:
    """The handle, at its end."""
    handle.wait(DEADLINE_S)
    assert handle.ended, f"still {handle.state}"
    return handle


def run(study: Any, kind: Any = "worker", **options: Any) -> tuple[RunHandle, list[ev.Event]]:
    """Run a gated study to its end; its events, from the first."""
    study.gated = True
    handle = executors.start(study, kind=kind, **options)
    events = collected(handle)
    handle.control.resume()
    return ended(handle), events


def gone(pid: int | None) -> bool:
    """Whether a process has ended (a zombie has: nobody collected it, that is all)."""
    assert pid is not None
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
