"""Doing things a little later, and on the kernel's own thread, without starting a thread."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable


class Later:
    """Calls back on the event loop that was running when this was made; at once where none was (a plain script).

    What runs there sees the context of the place where this was made: in a notebook, its output belongs to that cell.
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
        """Call now, as if from the place where this was made; on the kernel's own thread."""
        self._context.copy().run(work)  # a copy: the context may be entered already

    def after(self, delay_s: float, work: Callable[[], None]) -> None:
        """Call on the loop's thread after a delay; from any thread."""
        loop = self._loop
        if loop is None or loop.is_closed():
            work()
        else:
            loop.call_soon_threadsafe(lambda: loop.call_later(delay_s, work), context=self._context)


class Debounced:
    """Many calls in a row become one, `delay_s` after the last.

    Args:
        later: where it is to happen.
        delay_s: how long nothing must be asked.
        work: what is to happen.
    """

    def __init__(self, later: Later, delay_s: float, work: Callable[[], None]) -> None:
        self._later, self._delay_s, self._work = later, delay_s, work
        self._asked = 0
        self._pending = False

    @property
    def pending(self) -> bool:
        """Whether something was asked for that has not been done yet."""
        return self._pending

    def __call__(self) -> None:
        self._asked += 1
        self._pending = True
        asked = self._asked
        self._later.after(self._delay_s, lambda: self._due(asked))

    def now(self) -> None:
        """Do what was asked for at once, if anything was."""
        if self._pending:
            self._pending = False
            self._work()

    def _due(self, asked: int) -> None:
        if asked == self._asked:
            self.now()
