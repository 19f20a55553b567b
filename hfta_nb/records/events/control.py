"""The mailbox of requests to a run."""

from __future__ import annotations

import dataclasses
import operator
import queue
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from hfta_nb.errors import EventError, StudyError
from hfta_nb.errors.border import CONFIGURATIONS, SECONDS, plain, refuse_nested, takes
from hfta_nb.records.events import requests
from hfta_nb.records.events.requests import Add, Clone, Delete, Extend, Pause, Pin, Request, Resume, Set, Stop
from hfta_nb.records.events.variants import Json, tuples


class Control:
    """The mailbox of requests: any thread may post, and the training loop reads between steps.

    While a run in this process reads it, a request that can't be answered raises an error where that is known at once:
    a variant that does not exist or has ended, an axis that does not exist, a value of a wrong type. What is known only
    between two steps, or in another process, is told by a `RequestRefused` event. Nothing is changed in either case.
    Once its run has ended, all but `stop` raises an error, until another run reads the mailbox.

    Example:
        >>> control = Control()
        >>> control.stop(3)
        >>> control.poll()
        [Stop(variant=3)]
    """

    def __init__(self) -> None:
        self._box: queue.SimpleQueue[Request] = queue.SimpleQueue()
        self._check: Callable[[Request], None] | None = None

    def post(self, request: Request) -> None:
        """Post a request.

        Raises:
            EventError: it is not a `Request`.
            HftaError: the run that reads the mailbox can't answer it; the message says why.
        """
        if not isinstance(request, Request) or type(request) is Request:
            accepted = ", ".join(sorted(c.__name__ for c in vars(requests).values() if _is_request(c)))
            raise EventError("not a request", got=request, accepted=accepted)
        if self._check is not None:
            self._check(request)
        self._box.put(request)

    def pause(self, variant: int | None = None) -> None:
        """Pause one variant, which frees its place in the array and keeps its state; or the whole run."""
        self.post(Pause(_one_or_all(variant), _key(variant)))

    def resume(self, variant: int | None = None) -> None:
        """Continue one variant that was paused, beside others where it fuses with them and fits; or the whole run."""
        self.post(Resume(_one_or_all(variant), _key(variant)))

    def stop(self, variant: int | None = None) -> None:
        """Stop one variant, or the whole run if none is given."""
        self.post(Stop(_one_or_all(variant)))

    def delete(self, variant: int) -> None:
        """Stop one variant, also one that has ended, and leave it out of the results."""
        self.post(Delete(_variant(variant), _new_key()))

    def pin(self, variant: int, pinned: bool = True) -> None:
        """Keep one variant from being pruned by a search, or replaced in a population; `pinned` False lets it go."""
        if not isinstance(pinned, bool):
            raise EventError("not True or False", where="pin, pinned", got=pinned)
        self.post(Pin(_variant(variant), pinned))

    def clone(self, variant: int, *, warm: bool = True, **changes: Any) -> None:
        """Train a new variant: a copy of an existing one, with other values of some axes.

        Args:
            variant: the variant to clone.
            warm: begin with its weights, buffers, optimizer, lr scheduler, epoch and random streams as they are now
                (``seed=`` gives new streams); otherwise begin at epoch 0, initialised by its seed.
            changes: new values of axes, as ``lr=3e-4``. An lr schedule goes on as if it had been planned with them.
                Where a value keeps the clone out of the variant's array (``batch_size``, ``optimizer``, ...), the clone
                trains in an array of its own.
        """
        if not isinstance(warm, bool):
            raise EventError("not True or False", where="clone, warm", got=warm)
        self.post(Clone(_variant(variant), _values(changes), warm, _new_key()))

    def set(self, variant: int, **changes: Any) -> None:
        """Change hyperparameters of one variant in place, from the next step on.

        Args:
            variant: the variant to change.
            changes: new values of axes of the optimizer, of clipping or of the lr schedule, as ``lr=1e-3``. A schedule
                goes on as if it had been planned with them from the start.
        """
        if not changes:
            raise EventError("changes nothing", where="set", accepted="an axis and its new value, as lr=1e-3")
        self.post(Set(_variant(variant), _values(changes), _new_key()))

    def extend(self, epochs: int, variant: int | None = None) -> None:
        """Train longer.

        Args:
            epochs: how many more epochs.
            variant: one variant; None for all, those included that have trained all their epochs.
        """
        if isinstance(epochs, bool) or not isinstance(epochs, int) or plain(epochs) < 1:
            raise EventError("not a number of epochs", where="extend", got=epochs, accepted="1, 2, 3, ...")
        self.post(Extend(plain(epochs), _one_or_all(variant), _new_key()))

    @takes(
        EventError,
        variants=CONFIGURATIONS,
    )
    def add(self, variants: Any) -> None:
        """Train further variants in this run. Invalid ones are reported by a `PhaseChanged` event and not trained.

        Args:
            variants: a dict of axes to values, an instance of a dataclass, or a list of these.
        """
        one = isinstance(variants, Mapping) or dataclasses.is_dataclass(variants)
        listed = [v if isinstance(v, Mapping) else _fields(v) for v in ([variants] if one else variants)]
        self.post(Add(tuple({str(k): tuples(v) for k, v in values.items()} for values in listed), _new_key()))

    def poll(self) -> list[Request]:
        """All new requests, oldest first; never blocks."""
        found: list[Request] = []
        while not self._box.empty():
            found.append(self._box.get())
        return found

    @takes(EventError, timeout_s=SECONDS)
    def wait(self, timeout_s: float) -> list[Request]:
        """Like `poll`, but wait up to `timeout_s` seconds for the first one."""
        try:
            first = self._box.get(timeout=timeout_s)
        except queue.Empty:
            return []
        return [first, *self.poll()]

    # For the run that reads it.

    def attach(self, check: Callable[[Request], None] | None) -> None:
        """Let requests be checked when they are posted; None for no longer."""
        self._check = check

    def close(self) -> None:
        """Refuse requests from now on, as the run has ended."""
        self._check = _refuse

    def put(self, request: Request) -> None:
        """Post a request that was checked already, or that a reader leaves to the next one."""
        self._box.put(request)


def _refuse(request: Request) -> None:
    """Raise an error that says what can be done with a run that has ended; stopping it once more is no error."""
    if isinstance(request, Stop):
        return
    kind = type(request)
    remedies = {Extend: "train on with study.run(epochs=...)", Add: "call study.add(...) and run the study again"}
    if kind in (Clone, Set):
        remedies[kind] = "add such a variant with study.add(...) and run the study again"
    variant = getattr(request, "variant", None)
    where = kind.__name__.lower() + ("" if variant is None else f" #{variant}")
    raise StudyError("the run has ended", where=where, remedy=remedies.get(kind, ""))


def _is_request(found: Any) -> bool:
    return isinstance(found, type) and issubclass(found, Request) and found is not Request


def _new_key() -> str:
    return uuid.uuid4().hex


def _key(variant: int | None) -> str:
    """A request to the whole run needs none: it may arrive twice."""
    return "" if variant is None else _new_key()


def _variant(value: Any) -> int:
    try:
        number = -1 if isinstance(value, bool) else operator.index(value)  # a table's index has numpy's integers
    except TypeError:
        number = -1
    if number < 0:
        raise EventError("not a variant's number", got=value, accepted="0, 1, 2, ...")
    return number


def _one_or_all(value: Any) -> int | None:
    return None if value is None else _variant(value)


def _values(changes: Mapping[str, Any]) -> dict[str, Json]:
    refuse_nested(EventError, changes)
    return {name: _value(name, tuples(value)) for name, value in changes.items()}


def _value(name: str, value: Any) -> Json:
    if isinstance(value, tuple):
        return tuple(_value(name, v) for v in value)
    if value is None or isinstance(value, bool | int | float | str):
        return plain(value)  # type: ignore[no-any-return]
    accepted = "a number, a text, True, False, None, or a list of these"
    raise EventError("not a value of an axis", where=name, got=value, accepted=accepted)


def _fields(variant: Any) -> dict[str, Any]:
    if not dataclasses.is_dataclass(variant) or isinstance(variant, type):
        raise EventError("not a configuration", got=variant, accepted="a dict or an instance of a dataclass")
    return {f.name: getattr(variant, f.name) for f in dataclasses.fields(variant)}
