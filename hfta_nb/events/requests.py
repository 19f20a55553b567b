"""What a person asks of a run, and the mailbox that it is left in."""

from __future__ import annotations

import queue
from dataclasses import dataclass

from hfta_nb.errors import EventError


@dataclass(frozen=True, slots=True)
class Request:
    """Something a person asks of a run."""


@dataclass(frozen=True, slots=True)
class Pause(Request):
    """Halt between two steps, keeping everything."""


@dataclass(frozen=True, slots=True)
class Resume(Request):
    """Carry on after a pause."""


@dataclass(frozen=True, slots=True)
class Stop(Request):
    """Stop one variant, or the whole run when `variant` is None. What was learnt so far is kept."""

    variant: int | None = None


class Control:
    """The mailbox of requests: anybody posts, from any thread; the training loop reads between steps.

    Example:
        >>> control = Control()
        >>> control.post(Stop(variant=3))
        >>> control.poll()
        [Stop(variant=3)]
    """

    def __init__(self) -> None:
        self._box: queue.SimpleQueue[Request] = queue.SimpleQueue()

    def post(self, request: Request) -> None:
        """Leave a request.

        Raises:
            EventError: it is not a `Request`.
        """
        if not isinstance(request, Request):
            raise EventError("not a request", got=request, accepted="Pause, Resume, Stop")
        self._box.put(request)

    def pause(self) -> None:
        self.post(Pause())

    def resume(self) -> None:
        self.post(Resume())

    def stop(self, variant: int | None = None) -> None:
        """Stop one variant, or all of them when none is named."""
        self.post(Stop(variant))

    def poll(self) -> list[Request]:
        """All requests since the last look, oldest first; never blocks."""
        found: list[Request] = []
        while not self._box.empty():
            found.append(self._box.get())
        return found

    def wait(self, timeout_s: float) -> list[Request]:
        """Like `poll`, but wait up to `timeout_s` seconds for the first one."""
        try:
            first = self._box.get(timeout=timeout_s)
        except queue.Empty:
            return []
        return [first, *self.poll()]
