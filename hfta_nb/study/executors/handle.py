"""The handle of a run, wherever it executes."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TypeAlias

from hfta_nb.errors import WorkerError
from hfta_nb.records import events as ev
from hfta_nb.records.events import Control, Event, Request
from hfta_nb.records.history import History
from hfta_nb.workers.processes.log import Log

Callback: TypeAlias = Callable[[Event], None]

_logger = logging.getLogger("hfta_nb")
# Without a handler Python prints log messages, and a thread's output lands in an arbitrary cell.
_logger.addHandler(logging.NullHandler())

OUTPUT = "output.log"
"""What a run that goes on without its kernel prints, in its directory."""

GRACE_S = 1.0
"""How long a closed run may take to end by itself."""


class RunHandle:
    """A run, as a user interface needs it.

    Attributes:
        control: mailbox for requests, from any thread; they are forwarded to the run.
        history: the state from the events received so far. A resumed run and a check begin with the recorded state.
            Hold `lock` while reading more than one attribute.
        lock: guards `history` and the list of subscribers.
        pid: of the worker process; None for a run in this process.
        restarts: how often the run has continued in another worker process after a crash.
    """

    def __init__(
        self,
        send: Callable[[Request], None] = lambda request: None,
        history: History | None = None,
        kill: Callable[[], None] = lambda: None,
    ) -> None:
        self.control: _RemoteControl = _RemoteControl(send)
        self.history = history or History()
        self.lock = threading.RLock()
        self.pid: int | None = None
        self.restarts = 0
        self._log, self._kill = Log(), kill
        self._state = ev.WAITING
        self._error: WorkerError | None = None
        self._subscribers: dict[object, Callback] = {}
        self._ended = threading.Event()
        self._delivering: int | None = None

    @property
    def state(self) -> str:
        """WAITING until the first event, RUNNING, PAUSED; in the end STOPPED, COMPLETE, FAILED, or INTERRUPTED
        where the process is gone."""
        return self._state

    @property
    def ended(self) -> bool:
        """Whether the last event is in `history`. Subscribers may still be processing it; `wait` waits for them as
        well."""
        return self._state in ev.FINAL_STATES

    @property
    def error(self) -> WorkerError | None:
        """Why the run failed; None otherwise."""
        return self._error

    @property
    def log(self) -> str:
        """The end of the run's output; empty for a run in this process."""
        return self._log.text

    def subscribe(self, callback: Callback) -> Callable[[], None]:
        """Call back for each further event, until the last one, a `RunChanged` with the final state.

        Args:
            callback: called with each event, on a thread that reads from the worker; it should be short and must not
                print. Its errors are logged (logger "hfta_nb") and otherwise ignored.

        Returns:
            A function that ends the subscription; it may be called from the callback, and repeatedly.

        To see every event exactly once, hold `lock` while you read `history` and subscribe.
        """
        key = object()
        with self.lock:
            self._subscribers[key] = callback

        def unsubscribe() -> None:
            with self.lock:
                self._subscribers.pop(key, None)

        return unsubscribe

    def wait(self, timeout_s: float | None = None) -> str:
        """Wait until the run has ended and all subscribers have seen its last event.

        Args:
            timeout_s: the longest time to wait; None for no limit. In a callback it does not wait at all.

        Returns:
            The final state, or the current one after a timeout.
        """
        if threading.get_ident() != self._delivering:
            self._ended.wait(timeout_s)
        return self._state

    def close(self, grace_s: float = GRACE_S) -> None:
        """End the run if it is in progress: request a stop, then end the worker. Saved results stay.

        Args:
            grace_s: how long to wait for the run to stop by itself.
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

    # For the executors only.

    def joins(self, log: Log) -> None:
        """Called where the run is on already, as the history says."""
        self._log = log
        if self.history.state in (ev.RUNNING, ev.PAUSED):
            self._state = self.history.state

    def moves(self, why: str) -> None:
        """Called when the worker process is gone and another one continues the run.

        Args:
            why: the reason, which is shown and logged.
        """
        self.restarts += 1
        _logger.warning(why)
        self.deliver(ev.PhaseChanged(time.time(), 0, "starting again", why))

    def moved(self, send: Callable[[Request], None], log: Log, pid: int, kill: Callable[[], None]) -> None:
        """Called when the run is in a worker process, the first or another one; earlier requests also apply there."""
        self._log, self.pid, self._kill = log, pid, kill
        self.control.redirect(send)

    def deliver(self, event: Event) -> None:
        """Add an event of the run, and pass it on."""
        with self.lock:
            try:
                self.history.add(event)
            except Exception:
                _logger.exception("event does not fit the history: %r", event)
            if isinstance(event, ev.RunChanged):
                self._state = event.state
            elif self._state == ev.WAITING:
                self._state = ev.RUNNING
            callbacks = tuple(self._subscribers.values())
        self._delivering = threading.get_ident()
        try:
            for callback in callbacks:
                try:
                    callback(event)
                except BaseException:
                    # One thread reads for all subscribers, so an error of a callback must not stop it.
                    _logger.exception("a subscriber failed on %s", type(event).__name__)
        finally:
            self._delivering = None

    def finish(self, error: WorkerError | None = None, event: ev.RunChanged | None = None) -> None:
        """Called when the run is over.

        Args:
            error: why it failed, if it did.
            event: the last event, unless already delivered.
        """
        if error is None and event is not None and event.state == ev.FAILED:
            error = WorkerError(f"the run failed: {event.reason}", remedy=remedy(self.history))
        self._error = error
        self.control.close()
        if event is not None:
            self.deliver(event)
        self._ended.set()
        with self.lock:
            self._subscribers.clear()


class _RemoteControl(Control):
    """A mailbox that forwards its requests to the run."""

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
        """Send to another destination from now on, beginning with earlier requests that still apply."""
        with self._lock:
            self._send = send
            pauses: list[Request] = [r for r in self._posted if r in (ev.Pause(), ev.Resume())]  # of the whole run
            self._posted = [r for r in dict.fromkeys(self._posted) if r not in pauses] + pauses[-1:]
            for request in self._posted:
                send(request)


def remedy(history: History) -> str:
    """What to do after a run has failed."""
    if history.checkpoint is None:
        return "nothing was saved yet: run it again"
    return f"resume from the last checkpoint (epoch {history.checkpoint.epoch})"
