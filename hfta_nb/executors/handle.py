"""What a user interface holds of a run, wherever it runs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from hfta_nb import events as ev
from hfta_nb.errors import WorkerError
from hfta_nb.events import Control, Event, Request
from hfta_nb.history import History

_log = logging.getLogger(__name__)

Callback = Callable[[Event], None]


class RemoteControl(Control):
    """A mailbox whose requests go to wherever the run is."""

    def __init__(self, send: Callable[[Request], None]) -> None:
        super().__init__()
        self._send = send

    def post(self, request: Request) -> None:
        """Send a request on its way; without effect once the run has ended."""
        if not isinstance(request, Request):
            super().post(request)  # raises, with the words
        self._send(request)


class RunHandle:
    """A run under way, or over.

    Attributes:
        control: where requests are posted, from any thread.
        history: the run so far; hold `lock` while reading more than one thing of it.
        error: why it failed, if it did.
        pid: of the process that does the work.
    """

    def __init__(self, send: Callable[[Request], None], history: History | None = None) -> None:
        self.control = RemoteControl(send)
        self.history = history or History()
        self.lock = threading.RLock()
        self.error: WorkerError | None = None
        self.pid: int | None = None
        self._log: Callable[[], str] = lambda: ""
        self._close: Callable[[], None] = lambda: None
        self._state = ev.WAITING
        self._ended = threading.Event()
        self._callbacks: list[Callback] = []

    @property
    def state(self) -> str:
        """WAITING before the first event, RUNNING, PAUSED, or how it ended: COMPLETE, STOPPED, FAILED."""
        return self._state

    @property
    def ended(self) -> bool:
        return self._ended.is_set()

    @property
    def log(self) -> str:
        """The end of what the run printed."""
        return self._log()

    def subscribe(self, callback: Callback) -> Callable[[], None]:
        """Call back for each event, on a thread that reads them; keep it short, and do not print.

        Returns:
            What ends the subscription.
        """
        self._callbacks.append(callback)

        def unsubscribe() -> None:
            if callback in self._callbacks:
                self._callbacks.remove(callback)

        return unsubscribe

    def wait(self, timeout_s: float | None = None) -> str:
        """Wait for the end, at most so long; an interrupt ends the waiting, not the run.

        Returns:
            The state.
        """
        self._ended.wait(timeout_s)
        return self._state

    def close(self) -> None:
        """End the run at once, and the process that does it. What was saved stays."""
        if not self.ended:
            self._close()

    # For executors.

    def deliver(self, event: Event) -> None:
        """Take an event in and pass it on."""
        with self.lock:
            self.history.add(event)
            if isinstance(event, ev.RunChanged):
                self._state = event.state
            elif self._state == ev.WAITING:
                self._state = ev.RUNNING
        for callback in list(self._callbacks):
            try:
                callback(event)
            except Exception:  # a view that fails must not take the run with it
                _log.exception("a callback for %s failed", type(event).__name__)

    def finish(self, error: WorkerError | None, event: ev.RunChanged | None = None) -> None:
        """The run is over; `event` tells of a failure that the run itself could not tell of."""
        if self.ended:
            return
        self.error = error
        if event is not None:
            self.deliver(event)
        with self.lock:
            if error is not None:
                self._state = ev.FAILED
            elif self._state not in ev.FINAL_STATES:
                self._state = ev.COMPLETE
        self._ended.set()
