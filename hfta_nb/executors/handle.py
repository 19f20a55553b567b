"""A run as its owner sees it, wherever it is done."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TypeAlias

from hfta_nb import events as ev
from hfta_nb.errors import WorkerError
from hfta_nb.events import Control, Event, Request
from hfta_nb.executors.log import Log
from hfta_nb.history import History

Callback: TypeAlias = Callable[[Event], None]

_logger = logging.getLogger("hfta_nb")
# Without a handler Python would print what is logged, and what a thread prints lands in whatever cell ran last.
_logger.addHandler(logging.NullHandler())

GRACE_S = 1.0
"""How long a run that is closed has to come to an end by itself."""


class RunHandle:
    """Everything a user interface needs of a run.

    Attributes:
        control: post requests here, from any thread; they go to wherever the run is.
        history: what the events received so far amount to. A resumed run and a check begin with what was recorded
            before. Hold `lock` while reading more than one thing of it.
        lock: guards `history` and the list of subscribers.
        pid: of the worker process; None for a run in this process.
        restarts: how often the run has gone on in another worker process, after one had crashed.
    """

    def __init__(
        self,
        send: Callable[[Request], None],
        history: History | None = None,
        *,
        log: Log | None = None,
        pid: int | None = None,
        kill: Callable[[], None] | None = None,
    ) -> None:
        self.control: _RemoteControl = _RemoteControl(send)
        self.history = history or History()
        self.lock = threading.RLock()
        self.pid = pid
        self.restarts = 0
        self._log = log or Log()
        self._kill = kill or (lambda: None)
        self._state = ev.WAITING
        self._error: WorkerError | None = None
        self._subscribers: dict[object, Callback] = {}
        self._ended = threading.Event()
        self._delivering: int | None = None

    @property
    def state(self) -> str:
        """WAITING until the first event, RUNNING, PAUSED; in the end STOPPED, COMPLETE or FAILED."""
        return self._state

    @property
    def ended(self) -> bool:
        """Whether the last event is in `history`. Subscribers may be at it still; `wait` waits for them as well."""
        return self._state in ev.FINAL_STATES

    @property
    def error(self) -> WorkerError | None:
        """Why the run failed; None otherwise."""
        return self._error

    @property
    def log(self) -> str:
        """The end of what the run printed; empty for a run in this process."""
        return self._log.text

    def subscribe(self, callback: Callback) -> Callable[[], None]:
        """Have each event from now on, until the last one, which is a `RunChanged` with the final state.

        Args:
            callback: called with each event, on a thread that reads from the worker; it should be short, and must not
                print. What it raises is logged (logger "hfta_nb") and otherwise ignored.

        Returns:
            What ends the subscription; may be called from the callback, and again.

        To miss nothing and see nothing twice, hold `lock` while you read `history` and subscribe.
        """
        key = object()
        with self.lock:
            self._subscribers[key] = callback

        def unsubscribe() -> None:
            with self.lock:
                self._subscribers.pop(key, None)

        return unsubscribe

    def wait(self, timeout_s: float | None = None) -> str:
        """Wait for the end of the run; all subscribers have seen its last event then.

        Args:
            timeout_s: how long at most; None for as long as it takes. Within a callback it does not wait at all.

        Returns:
            The final state; the present one if the time was up.
        """
        if threading.get_ident() != self._delivering:
            self._ended.wait(timeout_s)
        return self._state

    def close(self, grace_s: float = GRACE_S) -> None:
        """End the run if it is still on: by asking it to stop, then by ending the worker. What was saved stays.

        Args:
            grace_s: how long to wait for it to stop by itself.
        """
        if self.ended:
            return
        self.control.stop()
        self.wait(grace_s)
        if not self.ended:
            self._kill()
            self.wait(grace_s)

    def __repr__(self) -> str:
        return f"RunHandle(state={self._state!r})"

    # For the executors.

    def moves(self, why: str) -> None:
        """Its worker process is gone, and another one is to go on with the run.

        Args:
            why: told to whoever looks on, and in the log of the package.
        """
        self.restarts += 1
        _logger.warning(why)
        self.deliver(ev.PhaseChanged(time.time(), 0, "starting again", why))

    def moved(self, send: Callable[[Request], None], log: Log, pid: int, kill: Callable[[], None]) -> None:
        """The run is in another worker process, which has been told of it; what was asked so far holds there too."""
        self._log, self.pid, self._kill = log, pid, kill
        self.control.redirect(send)

    def deliver(self, event: Event) -> None:
        """Take in an event of the run, and pass it on."""
        self._deliver(event, event.state if isinstance(event, ev.RunChanged) else None)

    def finish(self, error: WorkerError | None = None, event: ev.RunChanged | None = None) -> None:
        """The run is over.

        Args:
            error: why it failed, if it did.
            event: the last event, unless it was delivered before.
        """
        if error is None and event is not None and event.state == ev.FAILED:
            error = WorkerError(f"the run failed: {event.reason}", remedy=remedy(self.history))
        self._error = error
        if event is not None:
            self.deliver(event)
        self._ended.set()
        with self.lock:
            self._subscribers.clear()

    def _deliver(self, event: Event, state: str | None) -> None:
        with self.lock:
            try:
                self.history.add(event)
            except Exception:
                _logger.exception("event does not fit the history: %r", event)
            self._state = state or (ev.RUNNING if self._state == ev.WAITING else self._state)
            callbacks = tuple(self._subscribers.values())
        self._delivering = threading.get_ident()
        try:
            for callback in callbacks:
                try:
                    callback(event)
                except BaseException:
                    # The thread reads for everybody: whatever a callback does, the events must go on.
                    _logger.exception("a subscriber failed on %s", type(event).__name__)
        finally:
            self._delivering = None


class _RemoteControl(Control):
    """A mailbox whose requests go to wherever the run is."""

    def __init__(self, send: Callable[[Request], None]) -> None:
        super().__init__()
        self._send = send
        self._lock = threading.Lock()
        self._posted: list[Request] = []

    def post(self, request: Request) -> None:
        super().post(request)
        with self._lock:
            for checked in self.poll():
                self._posted.append(checked)
                self._send(checked)

    def redirect(self, send: Callable[[Request], None]) -> None:
        """Send to somewhere else from now on, first of all what was asked before and still holds."""
        with self._lock:
            self._send = send
            pauses: list[Request] = [request for request in self._posted if isinstance(request, ev.Pause | ev.Resume)]
            self._posted = [r for r in dict.fromkeys(self._posted) if r not in pauses] + pauses[-1:]
            for request in self._posted:
                send(request)


def remedy(history: History) -> str:
    """What to do after a run has failed."""
    if history.checkpoint is None:
        return "nothing was saved yet: run it again"
    return f"resume from the last checkpoint (epoch {history.checkpoint.epoch})"
