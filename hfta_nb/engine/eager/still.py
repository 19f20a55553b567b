"""What functions reach and keep holds for their next call as long as nothing of it has changed, which is quick to see.

A search through functions and copies of what they keep take longer than a step of a small model. Most losses and
metrics keep nothing, and reach the same at every call.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from operator import is_
from typing import TYPE_CHECKING, Any, NamedTuple

from hfta_nb.engine.eager.function_values import Version
from hfta_nb.engine.eager.holders import GONE, Holder, Items
from hfta_nb.engine.eager.shared_memory import Key, Watched

if TYPE_CHECKING:
    from hfta_nb.engine.eager.reach import Reach

_MOST = 8
"""Of so many functions it is kept what they reach."""
Place = tuple[Holder, Any]
"""A holder, and the name of a value in it."""


class Read:
    """What a search depends on beside the values of holders.

    Attributes:
        entries: dicts, of classes and modules, with what they held.
        names: global variables, with what they were.
        attributes: objects and functions, an attribute's name, and its value.
        all: the search has met nothing else that may change, and has not ended early.
    """

    def __init__(self) -> None:
        self.entries: list[tuple[Mapping[Any, Any], dict[Any, Any]]] = []
        self.names: list[tuple[Mapping[str, Any], str, Any]] = []
        self.attributes: list[tuple[Any, str, Any]] = []
        self.all = True

    def of_names(self, scope: Mapping[str, Any], names: Iterable[str]) -> None:
        self.names += [(scope, name, scope.get(name, GONE)) for name in names]

    def of_entries(self, *held: Mapping[Any, Any]) -> None:
        self.entries += [(each, dict(each)) for each in held]

    def of_attributes(self, owner: Any, *names: str) -> None:
        self.attributes += [(owner, name, getattr(owner, name, GONE)) for name in names]

    def holds(self) -> bool:
        return (
            all(scope.get(name, GONE) is value for scope, name, value in self.names)
            and all(getattr(owner, name, GONE) is value for owner, name, value in self.attributes)
            and all(_same(now, before) for now, before in self.entries)
        )


class Start(NamedTuple):
    """What there is before a call.

    Attributes:
        before: the values by place.
        contents: their content; see `contents_of`.
        work: what the call works on in place of some.
        now: the values that the call finds.
        views: the tensors that share memory.
        watched: the tensors that the call finds.
    """

    before: dict[Place, Any]
    contents: dict[Place, Any]
    work: dict[Place, Any]
    now: dict[Place, Any]
    views: set[Key]
    watched: Watched


class Still:
    """What some functions reached, and what there was before a call of them that has changed nothing."""

    def __init__(self, reach: Reach, start: Start) -> None:
        self.reach, self.start = reach, start
        self._entries = [(holder, _entries(holder)) for holder in reach.holders]
        # Of what has no version and no holder, as an array, only a copy tells whether it has changed.
        compared = [(start.before[p], c) for p, c in start.contents.items() if not isinstance(c, Version)]
        flat = all(isinstance(c, list | tuple) and all(map(is_, v, c)) for v, c in compared)
        self.possible = flat and reach.read.all and not reach.stuck

    def holds(self) -> bool:
        """True if the functions reach the same as then, with the same content."""
        return (
            all(holder.shown is None and _same(_entries(holder), then) for holder, then in self._entries)
            and self.reach.read.holds()
            and not self.start.watched.written(self.start.watched.values)
        )


class Stills:
    """What calls of functions have found, for the next call of each."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, ...], Still] = {}
        self._now: Still | None = None
        self._start: Start | None = None

    def known(self, functions: tuple[Any, ...]) -> Reach | None:
        """What functions reach that are called now, if that holds."""
        still = self._known.get(tuple(map(id, functions)))
        self._now = still if still is not None and still.holds() else None
        return None if self._now is None else self._now.reach

    def begin(self, given: Mapping[Place, Any]) -> Start | None:
        """What there is before the call, if that is known."""
        return None if given or self._now is None else self._now.start

    def unchanged(self, start: Start) -> bool:
        """True if the call that has begun so has changed nothing, where that is quick to see."""
        return self._now is not None and self._now.start is start and self._now.holds()

    def note(self, start: Start | None) -> None:
        """Note how a call has begun that has changed nothing; None of another."""
        self._start, self._now = start, None

    def end(self, functions: tuple[Any, ...], reach: Reach) -> None:
        """The call of these functions is over."""
        key = tuple(map(id, functions))
        if self._now is None:
            self._known.pop(key, None)
            if self._start is not None and (still := Still(reach, self._start)).possible:
                self._known[key] = still  # `reach` keeps the functions, so that no others get their ids
                while len(self._known) > _MOST:
                    del self._known[next(iter(self._known))]
        self._now = self._start = None


def values_of(holders: Iterable[Holder]) -> dict[Place, Any]:
    """What holders hold now, by place."""
    return {(holder, name): value for holder in holders for name, value in holder.values().items()}


def _entries(holder: Holder) -> Collection[Any]:
    return list(holder.owner) if isinstance(holder, Items) else holder.values()


def _same(now: Any, then: Any) -> bool:
    """True if two dicts or lists hold the same objects."""
    if isinstance(now, list):
        return len(now) == len(then) and all(map(is_, now, then))
    return len(now) == len(then) and all(map(is_, now, then)) and all(map(is_, now.values(), then.values()))
