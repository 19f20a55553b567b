"""Measures the rates of a planned study's arrays, in the worker process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hfta_nb import events as ev
from hfta_nb.study import Study, executors

Tell = Callable[[Mapping[int, ev.RateMeasured], str, str], None]
"""Called with what was measured so far, by array; with the state of measuring; and with the reason of a failure."""


class Measuring:
    """One measurement after another; a new one replaces the earlier one.

    Args:
        kind: kind of executor.
        tell: called from any thread.
    """

    def __init__(self, kind: str, tell: Tell) -> None:
        self._kind, self._tell = kind, tell
        self._handle: Any = None
        self._unsubscribe: Callable[[], None] = lambda: None

    @property
    def on(self) -> bool:
        """Whether something is measured."""
        return self._handle is not None

    def begin(self, study: Study) -> Any:
        """Measure a study's arrays; returns the handle.

        Raises:
            WorkerError: something in the study can't be sent to a process.
        """
        self.leave()
        handle = executors.start(study, kind=self._kind, job="profile")
        with handle.lock:  # so that no event is missed in between
            self._handle = handle
            self._unsubscribe = handle.subscribe(lambda event: self._on_event(handle, event))
            ended = handle.ended
        if ended:
            self._ended(handle, handle.state, handle.history.reason)
        return handle

    def leave(self) -> None:
        """Stop at once."""
        handle, self._handle = self._handle, None
        self._unsubscribe()
        if handle is not None:
            handle.close(grace_s=0.0)  # nothing of it is kept, so that there is nothing to wait for

    def _on_event(self, handle: Any, event: ev.Event) -> None:
        if handle is not self._handle:
            return
        if isinstance(event, ev.RunChanged) and event.state in ev.FINAL_STATES:
            self._ended(handle, event.state, event.reason)
        elif isinstance(event, ev.RateMeasured):
            self._tell(handle.history.rates, ev.RUNNING, "")

    def _ended(self, handle: Any, state: str, reason: str) -> None:
        self._handle = None
        self._unsubscribe()
        self._tell(handle.history.rates, state, reason)
