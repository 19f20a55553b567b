"""Follows one run: handles each event, and decides when to redraw the screen."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from hfta_nb import events as ev
from hfta_nb.ui.debounce import Later

PERIOD_S = 0.5
"""Shortest time between two redraws of tables and numbers."""

_ROWS_PER_S = 400


class Follower:
    """Calls back for each event of a run, on the thread that reads events.

    Args:
        handle: the run (`hfta_nb.study.executors.RunHandle`).
        on_event: called for each event.
        refresh: called to redraw the screen, at once or after the shortest time since the last redraw.
        later: schedules the last redraw of a burst of events.
    """

    def __init__(
        self, handle: Any, on_event: Callable[[ev.Event], None], refresh: Callable[[], None], later: Later
    ) -> None:
        self._on_event, self._refresh, self._later = on_event, refresh, later
        self._drawn_s = -1e9
        self._due = False
        self._rows = max(1, len(handle.history.members))
        self._unsubscribe: Callable[[], None] | None = handle.subscribe(self._receive)

    @property
    def period_s(self) -> float:
        """The time between redraws, longer for long tables."""
        return max(PERIOD_S, self._rows / _ROWS_PER_S)

    def close(self) -> None:
        """Stop following."""
        unsubscribe, self._unsubscribe = self._unsubscribe, None
        if unsubscribe is not None:
            unsubscribe()

    def _receive(self, event: ev.Event) -> None:
        if isinstance(event, ev.RunStarted):
            self._rows = len(event.variants)
        self._on_event(event)
        user_warnings = isinstance(event, ev.RunStarted | ev.RunChanged)
        if user_warnings or time.monotonic() - self._drawn_s >= self.period_s:
            self._draw()
        elif not self._due and self._later.has_loop:
            self._due = True
            self._later.after(self.period_s, self._draw_late)

    def _draw(self) -> None:
        self._drawn_s = time.monotonic()
        self._refresh()

    def _draw_late(self) -> None:
        self._due = False
        if self._unsubscribe is not None and time.monotonic() - self._drawn_s >= 0.9 * self.period_s:
            self._draw()
