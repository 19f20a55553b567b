"""Requests to a run, and their mailbox."""

from __future__ import annotations

import dataclasses
import queue
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hfta_nb.errors import EventError
from hfta_nb.events.records import Json, tuples


@dataclass(frozen=True, slots=True)
class Request:
    """A request to a run."""


@dataclass(frozen=True, slots=True)
class Pause(Request):
    """Pause between two steps, keeping everything."""


@dataclass(frozen=True, slots=True)
class Resume(Request):
    """Continue after a pause."""


@dataclass(frozen=True, slots=True)
class Stop(Request):
    """Stop one variant, or the whole run when `variant` is None. What was learnt so far is kept."""

    variant: int | None = None


@dataclass(frozen=True, slots=True)
class Prune(Request):
    """End one variant as not worth its time, unless it is pinned."""

    variant: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Pin(Request):
    """Keep one variant from being pruned; or let it be pruned again."""

    variant: int
    pinned: bool = True


@dataclass(frozen=True, slots=True)
class Add(Request):
    """Train further variants.

    Attributes:
        variants: the values per axis of each variant.
        key: identifies the request, which has an effect only once, however often it arrives.
    """

    variants: tuple[dict[str, Json], ...] = field(hash=False)
    key: str = ""


class Control:
    """The mailbox of requests: any thread may post, and the training loop reads between steps.

    Example:
        >>> control = Control()
        >>> control.post(Stop(variant=3))
        >>> control.poll()
        [Stop(variant=3)]
    """

    def __init__(self) -> None:
        self._box: queue.SimpleQueue[Request] = queue.SimpleQueue()

    def post(self, request: Request) -> None:
        """Post a request.

        Raises:
            EventError: it is not a `Request`.
        """
        if not isinstance(request, Request):
            raise EventError("not a request", got=request, accepted="Add, Pause, Pin, Prune, Resume, Stop")
        self._box.put(request)

    def pause(self) -> None:
        self.post(Pause())

    def resume(self) -> None:
        self.post(Resume())

    def stop(self, variant: int | None = None) -> None:
        """Stop one variant, or the whole run if none is given."""
        self.post(Stop(variant))

    def pin(self, variant: int, pinned: bool = True) -> None:
        """Keep one variant from being pruned by a search; `pinned` False lets it be pruned again."""
        self.post(Pin(variant, pinned))

    def add(self, variants: Any) -> None:
        """Train further variants in this run. Invalid ones are reported by a `PhaseChanged` event and not trained.

        Args:
            variants: a dict of axes to values, an instance of a dataclass, or a list of these.
        """
        one = isinstance(variants, Mapping) or dataclasses.is_dataclass(variants)
        listed = [v if isinstance(v, Mapping) else _fields(v) for v in ([variants] if one else variants)]
        self.post(Add(tuple({str(k): tuples(v) for k, v in values.items()} for values in listed), uuid.uuid4().hex))

    def poll(self) -> list[Request]:
        """All new requests, oldest first; never blocks."""
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


def _fields(variant: Any) -> dict[str, Any]:
    if not dataclasses.is_dataclass(variant) or isinstance(variant, type):
        raise EventError("not a configuration", got=variant, accepted="a dict or an instance of a dataclass")
    return {f.name: getattr(variant, f.name) for f in dataclasses.fields(variant)}
