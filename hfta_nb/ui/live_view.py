"""The live view: curves of all members and the device's utilization, drawn in the browser during a run."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from threading import RLock
from typing import Any, Protocol

import anywidget
import traitlets

from hfta_nb import events as ev
from hfta_nb.figures.colors import swept
from hfta_nb.records.history import History
from hfta_nb.records.pace import Pace
from hfta_nb.ui.front_end import source
from hfta_nb.ui.live_state import LiveState, metrics, split_metric
from hfta_nb.ui.subshells import follow_page, greet_pages

PERIOD_S = 0.2
"""Shortest time between two messages to the front end while attached to a run."""

_UNHEARD_PERIOD_S = 1.0
_UNHEARD_POINTS = 50_000
_BACKLOG = 2048


class Handle(Protocol):
    """The part of `hfta_nb.study.executors.RunHandle` that `LiveView.attach` needs."""

    history: History
    lock: Any

    def subscribe(self, callback: Callable[[ev.Event], None]) -> Callable[[], None]: ...


class LiveView(anywidget.AnyWidget):  # type: ignore[misc]
    """Member curves on the left, utilization and memory of the device on the right.

    Feed it with `start` and `add` and call `flush` at most five times a second, or `attach` it to a run.
    Every control of its toolbar is a trait, synced both ways.

    Attributes:
        metric: the drawn metric without its split: "loss", "accuracy", ... "val_loss" is accepted as well.
        x_axis: "epoch", "step" or "time" (seconds since the run started).
        log_x, log_y: whether that axis is logarithmic.
        smoothing: weight of the past in exponential smoothing, 0 (none) to 0.99.
        split: "both", "train" or "validation".
        color_by: the axis that sets the colour; empty for the member (with more than 12 members, for the first axis).
        selected: ids of the selected members.
        running: whether the run is in progress.
        rungs: epochs at which trials are pruned, or members replaced.

    Example:
        >>> LiveView()
        LiveView()
    """

    _esm = source("live_view.js")
    _css = source("live_view.css")

    metric = traitlets.Unicode("").tag(sync=True)
    x_axis = traitlets.Enum(["epoch", "step", "time"], "epoch").tag(sync=True)
    log_x = traitlets.Bool(False).tag(sync=True)
    log_y = traitlets.Bool(False).tag(sync=True)
    smoothing = traitlets.Float(0.0, min=0.0, max=0.99).tag(sync=True)
    split = traitlets.Enum(["both", "train", "validation"], "both").tag(sync=True)
    color_by = traitlets.Unicode("").tag(sync=True)
    selected = traitlets.List(traitlets.Int()).tag(sync=True)
    running = traitlets.Bool(False).tag(sync=True)
    rungs = traitlets.List(traitlets.Int()).tag(sync=True)

    def __init__(self, **traits: Any) -> None:
        # The lock guards the attributes below. It is never held while a trait is set, because observers may do
        # anything.
        self._lock = RLock()
        self._state = LiveState()
        self._pending: deque[ev.Event] = deque()
        self._serial = 0
        self._answered = False
        self._flushed_s, self._pace = -1e9, Pace(0.0)
        self._unsubscribe: Callable[[], None] | None = None
        follow_page()
        greet_pages()
        super().__init__(**traits)
        self.on_msg(self._on_message)

    def __repr__(self) -> str:
        # anywidget's own contains an address, which must not be saved in a notebook.
        return "LiveView()"

    @traitlets.observe("selected")  # type: ignore[untyped-decorator]
    def _choose(self, change: Any) -> None:
        with self._lock:
            more = self._state.choose(change["new"])
        if more:
            self.flush()

    @traitlets.validate("metric")  # type: ignore[untyped-decorator]
    def _strip_split(self, proposal: Any) -> str:
        return split_metric(proposal["value"])[0]

    def start(self, run: ev.RunStarted | History) -> None:
        """Lay out for a run from its first event or its history, and send the layout.

        Args:
            run: the first event of a run, or the history of a run.
        """
        with self._lock:
            self._pending.clear()
            if isinstance(run, History):
                self._state.seed(run)
            else:
                self._state = LiveState()
                self._state.chosen = tuple(self.selected)
                self._state.add(run)
        self.flush()

    def add(self, event: ev.Event) -> None:
        """Add an event; nothing is sent before `flush`. Cheap; may be called on any thread."""
        self._pending.append(event)
        if len(self._pending) > _BACKLOG:
            with self._lock:
                self._drain()

    def flush(self) -> None:
        """Send new data to the front end. May be called on any thread, at most `1 / PERIOD_S` times a second.

        Until a front end has answered, everything is sent each time (while it is small), because a busy kernel can't
        receive the request of a view that has just opened.
        """
        with self._lock, self._pace.drawing():
            self._flushed_s = time.monotonic()
            self._send_update(full=not self._answered and self._state.points <= _UNHEARD_POINTS)
        self._update_traits()

    def attach(self, handle: Handle) -> None:
        """Follow a run: show its history, then each event until it ends.

        Args:
            handle: the run's handle, from `hfta_nb.study.executors.start`.
        """
        self.detach()
        with handle.lock, self._lock:
            self._pending.clear()
            self._state.seed(handle.history)
            self._unsubscribe = handle.subscribe(self._receive)
        self.flush()
        if self._state.history.state in ev.FINAL_STATES:
            self.detach()

    def detach(self) -> None:
        """Stop following the run; the picture stays."""
        unsubscribe, self._unsubscribe = self._unsubscribe, None
        if unsubscribe is not None:
            unsubscribe()

    def close(self) -> None:
        """Close the view and stop following the run."""
        self.detach()
        super().close()

    def _receive(self, event: ev.Event) -> None:
        self.add(event)
        period_s = PERIOD_S if self._answered else _UNHEARD_PERIOD_S
        user_warnings = isinstance(event, ev.RunStarted | ev.RunChanged)
        if user_warnings or (self._pace.due and time.monotonic() - self._flushed_s >= period_s):
            self.flush()
        if isinstance(event, ev.RunChanged) and event.state in ev.FINAL_STATES:
            self.detach()

    def _on_message(self, _widget: Any, content: Any, _buffers: Any) -> None:
        if isinstance(content, dict) and content.get("kind") == "hello":
            with self._lock:
                self._answered = True
                self._send_update(full=False)  # pages that have the rest pass over the answer
                self._send_update(full=True, answer=True)

    def _drain(self) -> None:
        while self._pending:
            self._state.add(self._pending.popleft())

    def _send_update(self, full: bool, answer: bool = False) -> None:
        self._drain()
        message = self._state.take(full)
        if message is None:
            if answer:  # or the front end asks on
                self.send({"kind": "nothing"})
            return
        header, buffers = message
        self._serial += 1
        self.send({"kind": "update", "serial": self._serial, "answer": answer, **header}, buffers)

    def _update_traits(self) -> None:
        history = self._state.history
        run = history.run
        if run is None:
            return
        names = [m["name"] for m in metrics(run.metrics)]
        if self.metric not in names:
            self.metric = split_metric(run.monitor)[0]
        if self.color_by and self.color_by not in swept(run.axes):
            self.color_by = ""
        known = [i for i in self.selected if i in history.members]
        if known != self.selected:
            self.selected = known
        running = history.state not in ev.FINAL_STATES and history.state != ev.WAITING
        if running != self.running:
            self.running = running
