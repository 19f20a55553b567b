"""Listens to one run: what each event means to the screen, and when the screen is drawn again."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from hfta_nb import events as ev
from hfta_nb.ui.debounce import Later

PERIOD_S = 0.5
"""Shortest time between two drawings of tables and numbers."""

_ROWS_PER_S = 400


class Follower:
    """Calls back for the events of a run, from the thread that reads them.

    Args:
        handle: the run (`hfta_nb.executors.RunHandle`).
        heard: called for each event.
        refresh: called when the screen should be drawn again: at once where the last time is long enough ago, else
            when it is.
        later: where the last drawing of a burst of events is done, when no further event comes.
    """

    def __init__(
        self, handle: Any, heard: Callable[[ev.Event], None], refresh: Callable[[], None], later: Later
    ) -> None:
        self._heard, self._refresh, self._later = heard, refresh, later
        self._drawn_s = -1e9
        self._due = False
        self._rows = max(1, len(handle.history.members))
        self._unsubscribe: Callable[[], None] | None = handle.subscribe(self._receive)

    @property
    def period_s(self) -> float:
        """A long table is drawn less often."""
        return max(PERIOD_S, self._rows / _ROWS_PER_S)

    def close(self) -> None:
        """Listen no longer."""
        unsubscribe, self._unsubscribe = self._unsubscribe, None
        if unsubscribe is not None:
            unsubscribe()

    def _receive(self, event: ev.Event) -> None:
        if isinstance(event, ev.RunStarted):
            self._rows = len(event.variants)
        self._heard(event)
        telling = isinstance(event, ev.RunStarted | ev.RunChanged)
        if telling or time.monotonic() - self._drawn_s >= self.period_s:
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
