"""Watching runs and processes from a test."""

from __future__ import annotations

from typing import Any

from hfta_nb import events as ev
from hfta_nb.study import executors
from hfta_nb.study.executors import RunHandle

DEADLINE_S = 60.0


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
