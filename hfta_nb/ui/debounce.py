"""Schedules calls on the kernel's main thread, without starting a thread."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable


class Later:
    """Calls back on the event loop that was running at construction, or at once if there was none (a plain script).

    Callbacks run in the context of the construction: in a notebook, their output belongs to that cell.
    """

    def __init__(self) -> None:
        try:
            self._loop: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            self._loop = None
        self._context = contextvars.copy_context()

    @property
    def has_loop(self) -> bool:
        return self._loop is not None and not self._loop.is_closed()

    def soon(self, work: Callable[[], None]) -> None:
        """Call on the loop's thread as soon as it is free; from any thread."""
        if self._loop is None or self._loop.is_closed():
            work()
        else:
            self._loop.call_soon_threadsafe(work, context=self._context)

    def here(self, work: Callable[[], None]) -> None:
        """Call now, in the context of the construction; on the kernel's main thread."""
        self._context.copy().run(work)  # a copy, because the context may be entered already

    def after(self, delay_s: float, work: Callable[[], None]) -> None:
        """Call on the loop's thread after a delay; from any thread."""
        loop = self._loop
        if loop is None or loop.is_closed():
            work()
        else:
            loop.call_soon_threadsafe(lambda: loop.call_later(delay_s, work), context=self._context)


class Debounced:
    """Combines many calls into one, `delay_s` after the last.

    Args:
        later: schedules the call.
        delay_s: the delay after the last request.
        work: the function to call.
    """

    def __init__(self, later: Later, delay_s: float, work: Callable[[], None]) -> None:
        self._later, self._delay_s, self._work = later, delay_s, work
        self._calls = 0
        self._pending = False

    @property
    def pending(self) -> bool:
        """Whether a call is waiting."""
        return self._pending

    def __call__(self) -> None:
        self._calls += 1
        self._pending = True
        number = self._calls
        self._later.after(self._delay_s, lambda: self._due(number))

    def now(self) -> None:
        """Make the waiting call at once, if there is one."""
        if self._pending:
            self._pending = False
            self._work()

    def _due(self, number: int) -> None:
        if number == self._calls:
            self.now()
