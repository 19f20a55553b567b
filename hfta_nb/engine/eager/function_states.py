"""What losses, metrics and other functions keep between calls (counters, averages, lists), one per member.

A loss may count its calls or keep an average: in an attribute, a closure, a global variable, a list. Alone, each member
has a loss of its own, called once a step. Here one function stands for all. So the values that it changes are taken
out after each block of members, kept per member, and put in again before the member's next call, as the attributes of
the model are, and shown between calls (`shown_attributes`): what hooks of the model collect has the member axis.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from hfta_nb.engine.eager.attributes import MISSING
from hfta_nb.engine.eager.fingerprint import fingerprint
from hfta_nb.engine.eager.function_values import FunctionValues, Version, is_replaced, memo_of, position, put_back, same
from hfta_nb.engine.eager.holders import GONE, Holder
from hfta_nb.engine.eager.joined_values import joined
from hfta_nb.engine.eager.mutable_values import copy_value, is_mutable
from hfta_nb.engine.eager.reach import Reach
from hfta_nb.engine.eager.shared_memory import Key, Watched, overlapping, parts, view_error
from hfta_nb.engine.eager.shown_attributes import divided, together
from hfta_nb.engine.equality import same_value
from hfta_nb.engine.members.held_values import walk
from hfta_nb.engine.members.tree import flatten
from hfta_nb.engine.rules.rule_mode import Context, Disagreement
from hfta_nb.errors import FusionError

Place = tuple[Holder, Any]
"""A holder, and the name of a value in it."""

_MOST_BYTES = 2**26
"""Larger tensors are not copied before each call; that a function changes one in place is an error."""
_MOST_PLACES = 256
"""With more places than this, those of functions that nobody has any more are dropped."""


class FunctionStates:
    """What functions keep for each member.

    Args:
        members: their number.
        shows: between calls, functions show the members' values.

    Attributes:
        values: by place, one per member; members whose call has not changed it have none.
        aside: the same of metrics in training while there is a validation, and the other way round; see `validating`.
        called: the functions of the call under way.
        writes: some of their code seems to change what it keeps.
        in_backward: some of their code seems to do so in the backward; see `functions_in_backward`.
    """

    def __init__(self, members: int, shows: bool = True) -> None:
        self.values, self.aside, self.shows = FunctionValues(members), FunctionValues(members), shows
        self.called: tuple[Any, ...] = ()
        self._model: nn.Module | None = None
        self._altered: set[Place] = set()
        self._now: list[Holder] = []
        self.writes = self.in_backward = False
        self._copies: tuple[Watched, list[tuple[str, Any, int]]] = Watched({}), []
        self._stuck: list[tuple[Any, str, Any]] = []
        self._own: dict[Place, Any] = {}
        self._shown: dict[Place, tuple[Any, list[Any]]] = {}
        self._seen: dict[Place, Any] = {}
        self._views: set[Key] = set()  # that calls have made, and whose members' copies are apart

    @contextmanager
    def used(self, functions: tuple[Any, ...], model: nn.Module | None = None) -> Iterator[None]:
        """The context of a call of functions and hooks, for members of a model that tracks its own attributes."""
        if not functions or self.called:
            yield
            return
        self.called, self._model, self._altered = functions, model, set()
        reach = self._reached(functions)
        self._now, self.writes, self.in_backward = reach.holders, reach.writes, reach.in_backward
        self._stuck = [(v, label, position(v)) for v, label in reach.stuck]
        for holder in self._now:
            self._take_written(holder)
        if len(self.values.values) > _MOST_PLACES:
            self._forget()
        try:
            yield
        finally:
            if self.values.values and self.shows:
                self._settle()
            for holder in self._now:
                self._show(holder)
            self.called, self._now, self._stuck, self._model, self._copies = (), [], [], None, (Watched({}), [])
            self.writes = self.in_backward = False

    @property
    def holders(self) -> list[Holder]:
        """What the functions of this call reach."""
        return self._now

    def owners(self, functions: tuple[Any, ...]) -> list[Any]:
        """The objects, cells and containers whose values some functions may change."""
        return [holder.owner for holder in self._reached(functions).holders] if functions else []

    @contextmanager
    def of_one(self, functions: tuple[Any, ...], model: nn.Module | None = None) -> Iterator[None]:
        """The context of a call of the only member; see `used`."""
        with self.used(functions, model), self.alone(0):
            yield

    @contextmanager
    def validating(self, losses: tuple[Any, ...]) -> Iterator[None]:
        """The context of a validation, in which metrics keep other values than in training; losses keep the same."""
        self._switch(losses)
        try:
            yield
        finally:
            self._switch(losses)

    def _switch(self, losses: tuple[Any, ...]) -> None:
        now, aside = self.values.values, self.aside.values
        if now or aside:
            shared = set(map(id, self._reached(losses).holders))
            common = {place: v for place, v in now.items() if id(place[0]) in shared}
            self.aside.values = {place: v for place, v in now.items() if place not in common}
            self.values.values = {**common, **aside}

    def remember(self, functions: tuple[Any, ...]) -> str:
        """Where some functions keep something that their calls have changed; empty if they keep nothing."""
        if not self.values.values:
            return ""
        reached = set(map(id, self._reached(functions).holders))
        return next((h.path(name) for h, name in self.values.values if id(h) in reached), "")

    def of(self, member: int) -> dict[Place, Any]:
        """What the functions of this call keep for a member."""
        now = set(map(id, self._now))
        return {place: v for place, v in self.values.of(member).items() if id(place[0]) in now} if now else {}

    def copied(self, values: Mapping[Place, Any]) -> dict[Place, Any]:
        """Copies of values of the functions of this call."""
        now = set(map(id, self._now))
        return self.values.copies({place: v for place, v in values.items() if id(place[0]) in now})

    def outcome(self, values: Mapping[Place, Any]) -> dict[str, Any]:
        """Values by how a person reaches them, to be compared."""
        return {f"value of {holder.path(name)}": value for (holder, name), value in values.items()}

    @contextmanager
    def alone(self, member: int) -> Iterator[None]:
        """The context of a call for one member."""
        if not self._now:
            yield
            return
        changes: dict[Place, Any] = {}
        with self.tracked(self.of(member), changes):
            yield
        self.values.keep(member, changes)

    @contextmanager
    def together(self, context: Context, padded: bool) -> Iterator[None]:
        """The context of a call for several members at once.

        Raises:
            Disagreement: their values can't be combined, or have become those of several calls.
        """
        if not self._now:
            yield
            return
        rows = [self.of(i) for i in context.indices]
        own = {place: place[0].values().get(place[1], GONE) for row in rows for place in row}  # of members that begin
        known = dict[Any, Any]()
        given = {
            (h, n): joined([row.get((h, n), at) for row in rows], context, (h.path(n),), self.values.copied, known)
            for (h, n), at in own.items()
        }
        changes: dict[Place, Any] = {}
        with self.tracked(given, changes):
            yield
        if changes and context.apart:
            raise Disagreement("a metric that runs once per member keeps values")
        if padded and any(isinstance(v, Tensor) for v in walk(changes.values())):
            raise Disagreement("a function keeps tensors, which members of other sizes can't share")
        self.values.keep_block(context.indices, changes, context)

    @contextmanager
    def tracked(self, given: Mapping[Place, Any], changes: dict[Place, Any]) -> Iterator[None]:
        """Set values within the context, and restore the old ones on exit.

        Args:
            given: values to set first.
            changes: receives those with a new object, or with changed content.

        Raises:
            FusionError: something has changed that can't be kept per member.
        """
        before = values_of(self._now)
        contents = self.contents(before, given)
        # The originals may be part of a graph, and are what other members begin with.
        work = {place: content for place, content in contents.items() if is_replaced(content)}
        for (holder, name), value in {**work, **given}.items():
            holder.put(name, value)
        start = values_of(self._now) if work or given else before
        views = self._views | overlapping(parts(before))
        watched = Watched(parts(start))
        try:
            yield
        finally:
            with _disable_current_modes():  # what is compared here is no part of a recorded call
                written = self._after_call(watched, views)
                self._note_copies({**work, **given})
                changed, now = dict[Place, Any](), values_of(self._now)
                for place in {**now, **start}:
                    value, content = now.get(place, GONE), before[place] if place in work else contents.get(place)
                    if place in given or not same(value, start.get(place, GONE), place in contents, content):
                        changed[place] = value
                into = {place for place, _ in watched.written(watched.values)}
                kept = {p for p, v in changed.items() if isinstance(v, Tensor) and v is given.get(p) and p not in into}
                self._altered |= changed.keys() - kept
                changes.update(self.values.copies(changed))
                for place in {**changed, **work}:
                    if place in contents and place not in work:
                        before[place] = put_back(before[place], contents[place])
                    place[0].put(place[1], before.get(place, GONE))
        self._check(contents)
        if written:
            raise view_error("a function that is called for each member", ", ".join(written))

    def _after_call(self, watched: Watched, views: set[Key]) -> list[str]:
        """Note the views that a call leaves. Returns which of all were written into."""
        now = parts(values_of(self._now))
        made = overlapping(now)
        self._views = made | {k for k in self._views if k in now and now[k] is watched.values.get(k)}
        return sorted({h.path(name) for (h, name), _ in watched.written(views | made)})

    def _note_copies(self, copies: Mapping[Place, Any]) -> None:
        """Note the values that a call has worked on, which its backward may still refer to."""
        if self.in_backward:
            sizes = [(h.path(n), v, len(v)) for (h, n), v in copies.items() if isinstance(v, list | dict | set | deque)]
            self._copies = Watched(parts(copies)), sizes

    def changed_copies(self) -> list[str]:
        """Where the values that the last call of a block has worked on have been written into since."""
        tensors, sizes = self._copies
        written = [h.path(name) for (h, name), _ in tensors.written(tensors.values)]
        return written + [label for label, value, size in sizes if len(value) != size]

    def contents(self, values: Mapping[Place, Any], given: Mapping[Place, Any]) -> dict[Place, Any]:
        """Copies of the values whose content may change; of tensors that no code seems to change, versions."""
        found, memo = dict[Place, Any](), memo_of(values.values())
        for place, value in values.items():
            if place in given or not is_mutable(value):
                continue
            learned = isinstance(value, nn.Parameter) and value.requires_grad
            if isinstance(value, Tensor) and (learned or not self.writes or value.nbytes > _MOST_BYTES):
                found[place] = Version(value)
            elif memo.get(id(value)) is not value:
                with suppress(TypeError):
                    found[place] = copy_value(value, memo)
        return found

    def _check(self, contents: Mapping[Place, Any]) -> None:
        """Raise an error where something has changed that has no copy."""
        label = stuck = next((label for v, label, at in self._stuck if position(v) != at), "")
        for (holder, name), content in contents.items():
            if isinstance(content, Version) and content.changed():
                label = holder.path(name)
        if label:
            raise FusionError(
                "a function that is called for each member changes a value that can't be kept for each",
                where=label,
                accepted="numbers, tensors, lists, dicts, objects that copy.deepcopy copies",
                remedy="take its next value outside, and give it with the target: array.backward(loss, x, (y, value))"
                if stuck
                else "keep it in a module: losses = hfta.fuse([MyLoss() for _ in range(M)])",
            )

    def _forget(self) -> None:
        """Drop what functions keep that were made for one call, as a closure in a loop is."""
        now = set(map(id, self._now))
        for place in [p for p in self.values.values if id(p[0]) not in now and sys.getrefcount(p[0].owner) <= 2]:
            for known in (self.values.values, self._own, self._shown, self._seen):
                known.pop(place, None)

    # Between calls.

    def _reached(self, functions: tuple[Any, ...]) -> Reach:
        """What functions reach, with their own values in place."""
        while True:
            reach = Reach(functions, self._model)
            shown = [h for h in reach.holders if h.shown is not None]
            if not shown:
                return reach
            for holder in shown:
                holder.shown._hide(holder)

    def _settle(self) -> None:
        """Let tables that a model's code keeps in classes and global variables (of positions, of masks) be what the
        next call begins with, which is then recorded: those that members agree in, and that a call has not changed."""
        classes = tuple(f for f in self.called if isinstance(f, type))
        others = set(map(id, self._reached(tuple(f for f in self.called if f not in classes)).holders))
        settling = {id(h) for h in self._reached(classes).holders if id(h) not in others} if classes else set()
        for place in [p for p in self.values.values if id(p[0]) in settling and p not in self._altered]:
            first, *rest = self.values.values[place]
            if isinstance(first, Tensor) and not first.requires_grad and all(same_value(first, v) for v in rest):
                del self.values.values[place]
                self._seen.pop(place, None)
                place[0].put(place[1], first.detach().clone())

    def _hide(self, holder: Holder) -> None:
        """Put a holder's own values back; what the user has written meanwhile is the members'."""
        holder.shown, now = None, holder.values()
        for place in [p for p in self._own if p[0] is holder]:
            own, (shown, leaves) = self._own.pop(place), self._shown.pop(place)
            value = now.get(place[1], GONE)
            if fingerprint(value) != shown:
                self.values.assign({place: divided(value, leaves, self.values.members)})
                self._note(place, value)
            else:
                holder.put(place[1], own)

    def _take_written(self, holder: Holder) -> None:
        """Give all members what the user has written while another array showed its values."""
        now = holder.values()
        for place in [p for p in self._seen if p[0] is holder]:
            value = now.get(place[1], GONE)
            known, content = self._seen[place]
            # Another array's call may have changed a tensor in place, and put its content back.
            if fingerprint(value) != known and not same_value(value, content):
                self.values.assign({place: [value] * self.values.members})

    def _show(self, holder: Holder) -> None:
        """Let a holder show the members' values."""
        now = holder.values()
        for place, values in self.values.values.items():
            if place[0] is not holder or all(v is MISSING for v in values):
                continue
            own = now.get(place[1], GONE)
            self._note(place, own)
            if not self.shows:
                continue
            self._own[place] = own
            holder.put(place[1], shown := together(values))
            self._shown[place] = fingerprint(holder.values().get(place[1], GONE)), flatten(shown)[0]
            holder.shown = self

    def _note(self, place: Place, value: Any) -> None:
        """Note a holder's own value, so that what the user writes there is noticed."""
        self._seen[place] = fingerprint(value), self.values.copied(value)

    # Members.

    def select(self, indices: Sequence[int]) -> FunctionStates:
        """Those of some members, copied."""
        other = FunctionStates(len(indices), self.shows)
        other.values, other.aside = self.values.select(indices), self.aside.select(indices)
        other._seen, other._views = dict(self._seen), set(self._views)
        return other

    def copy_member(self, src: int, dst: int) -> None:
        """Copy those of a member to another."""
        for values in (self.values, self.aside):
            values.copy_member(src, dst)

    def take(self, index: int, source: FunctionStates, src: int) -> None:
        """Copy those of a member of another array to a member."""
        for own, given in ((self.values, source.values), (self.aside, source.aside)):
            own.drop(index)
            own.keep(index, given.select([src]).of(0))
        self._seen = {**source._seen, **self._seen}
        self._views |= source._views

    @classmethod
    def joined(cls, a: FunctionStates, b: FunctionStates) -> FunctionStates:
        """Those of the members of both."""
        count = a.values.members
        other = cls(count + b.values.members, a.shows)
        for index in range(other.values.members):
            other.take(index, *((a, index) if index < count else (b, index - count)))
        return other

    def snapshot(self) -> FunctionValues:
        """A copy of the values, for `restore`."""
        return self.values.copy()

    def restore(self, values: FunctionValues) -> None:
        """Put back what `snapshot` gave."""
        shown = {id(h): h for h, _ in self._own} if not self.called else {}
        for holder in shown.values():
            self._hide(holder)
        self.values = values.copy()
        for holder in shown.values():
            self._show(holder)


def values_of(holders: Iterable[Holder]) -> dict[Place, Any]:
    """What holders hold now, by place."""
    return {(holder, name): value for holder in holders for name, value in holder.values().items()}
