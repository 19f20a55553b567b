"""What arguments of public functions may be: the one check at the border, before anything is done with them.

`takes` is put above a function (or a class's ``__init__``) with a `Kind` for each argument that has one. Bounds that
depend on other arguments, on the data or on the members are the function's own business; that it gets a number, a text,
a path, a function or a list at all is said here.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
import numbers
import operator
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ParamSpec, TypeVar

from hfta_nb.errors import HftaError

P = ParamSpec("P")
R = TypeVar("R")

MOST = 2**63
"""Whole numbers are below: what torch, SQLite and JSON readers take."""

MOST_ITEMS = 1_000_000
"""Of an iterator that is given for a list: one that goes on is taken to have no end."""

DEEPEST = 200
"""Lists and dicts within one another, at most: Python's own readers and writers end at a thousand calls."""

_ABSENT = object()


@dataclass(frozen=True)
class Kind:
    """What one argument may be.

    Attributes:
        what: what is said of anything else.
        accepted: in words.
        test: whether a value is of the kind; an exception in it says no.
        none: whether None is accepted as well.
    """

    what: str
    accepted: str
    test: Callable[[Any], Any]
    none: bool = False

    def accepts(self, value: Any) -> bool:
        if value is None:
            return self.none
        try:
            return bool(self.test(value))
        except Exception:  # of the value's own methods
            return False

    @property
    def or_none(self) -> Kind:
        return replace(self, accepted=f"{self.accepted}, or None", none=True)


def _axes(value: Any) -> int:
    found: int = getattr(value, "ndim", 0)
    return found


def whole(value: Any) -> bool:
    """Whether a value is a whole number, which may be one of NumPy's or torch's."""
    if isinstance(value, bool | type) or _axes(value) or "bool" in str(getattr(value, "dtype", "")):
        return False
    try:
        return -MOST <= operator.index(value) < MOST
    except Exception:  # it has no such method, or has no value (torch's "meta")
        return False


def number(value: Any) -> bool:
    """Whether a value is a real number that a float can hold (NaN and infinity among them)."""
    if isinstance(value, bool | str | bytes | type) or _axes(value):
        return False
    if isinstance(value, numbers.Complex) and not isinstance(value, numbers.Real):
        return False
    try:
        float(value)
    except Exception:  # it has no such method, or is beyond a float
        return False
    return True


_PLAIN: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    (bool, bool), (int, operator.index), (float, float.__pos__), (str, str.__str__)
)  # fmt: skip


def plain(value: Any) -> Any:
    """A number or text as one of Python's own, whose methods don't raise as those of a subclass may."""
    for kind, made in _PLAIN:
        if isinstance(value, kind):
            return made(value)
    return value


def _path(value: Any) -> bool:
    text = os.fspath(value)
    return isinstance(text, str) and "\0" not in text and bool(text)


def _items(value: Any) -> bool:
    if isinstance(value, str | bytes | Mapping):
        return False
    iter(value)
    return True


def _names(value: Any) -> bool:
    return _items(value) and all(isinstance(v, str) for v in value)


def _texts(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, Sequence) and all(isinstance(v, str) for v in value))


def _configurations(value: Any) -> bool:
    """Whether a value is a configuration (a dict, an instance of a dataclass), or a list of such."""
    one = isinstance(value, Mapping) or (dataclasses.is_dataclass(value) and not isinstance(value, type))
    return one or (isinstance(value, Iterable) and not isinstance(value, str | bytes))


def _state(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(key, str) for key in value)


WHOLE = Kind("not a whole number", "a whole number", whole)
NUMBER = Kind("not a number", "a number", number)
_LONGEST_S = 9e9
"""A lock waits no longer, in whole nanoseconds of 64 bits."""
SECONDS = Kind("not a time", "seconds, from 0 to 9e9", lambda v: number(v) and 0 <= v <= _LONGEST_S)
FLAG = Kind("not True or False", "True, False", lambda v: isinstance(v, bool))
TRUTH = Kind("neither on nor off", "True, False", lambda v: bool(v) or True)
TEXT = Kind("not a text", "a text", lambda v: isinstance(v, str))
PATH = Kind("not a path", "the name of a file or directory", _path)
FUNCTION = Kind("can't be called", "a function", callable)
DICT = Kind("not a dict", "a dict", lambda v: isinstance(v, Mapping))
ITEMS = Kind("not a list", "a list", _items)
NAMES = Kind("not a list of names", "a list of names", _names)
TEXTS = Kind("not a text or a list of texts", "a text, or a list of texts", _texts)
CONFIGURATIONS = Kind("no configurations", "a dict, an instance of a dataclass, or a list of these", _configurations)
STATE = Kind("not a state_dict", "what state_dict() gave", _state)


def one_of(*words: str) -> Kind:
    """One of these words."""
    return Kind("unknown choice", ", ".join(words), lambda v: isinstance(v, str) and v in words)


def instance(of: type | tuple[type, ...], accepted: str) -> Kind:
    """An instance of a class."""
    return Kind(f"not {accepted}", accepted, lambda v: isinstance(v, of))


def takes(error: type[HftaError], /, **kinds: Kind) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Check the arguments of a function before it is called.

    Args:
        error: what is raised, with the argument's name, what was got, and what is accepted.
        kinds: by the argument's name. Others are the function's own business.

    What is nested without end is refused as well, wherever the function meets it: not before, as that costs time.
    """

    def around(function: Callable[P, R]) -> Callable[P, R]:
        names = list(inspect.signature(function).parameters)
        places = [(names.index(name) if name in names else len(names), name, kind) for name, kind in kinds.items()]
        first = min((place for place, _, _ in places), default=len(names))

        @functools.wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            given = len(args)
            for place, name, kind in places if kwargs or given > first else ():  # not in each step of most loops
                value = args[place] if place < given else kwargs.get(name, _ABSENT)
                if kind.test in (_items, _names) and isinstance(value, Iterator):  # once, and without end
                    value = bounded(value, error, name)
                    args, kwargs = _replaced(args, kwargs, place, name, value)
                if value is not _ABSENT and not kind.accepts(value) and not _default(function, name, value):
                    raise error(kind.what, where=name, got=value, accepted=kind.accepted)
            try:
                return function(*args, **kwargs)
            except RecursionError:
                refuse_nested(error, {**dict(zip(names, args, strict=False)), **kwargs})
                raise

        return checked

    return around


def bounded(values: Iterable[Any], error: type[HftaError], where: str) -> list[Any]:
    """What an iterator yields.

    Raises:
        HftaError: of the class `error`; it goes on and on, or has no axis.
    """
    if not ITEMS.accepts(values) and not isinstance(values, str | bytes | Mapping):
        raise error("can't be gone through", where=where, got=values, accepted="a list")
    found = list(itertools.islice(values, MOST_ITEMS + 1))
    if len(found) > MOST_ITEMS:
        raise error("does not end", where=where, got=type(values).__name__, accepted=f"{MOST_ITEMS:,} values at most")
    return found


def _replaced(args: Any, kwargs: Any, place: int, name: str, value: Any) -> tuple[Any, Any]:
    """The arguments with another value for one of them."""
    if place < len(args):
        return (*args[:place], value, *args[place + 1 :]), kwargs
    return args, {**kwargs, name: value}


def check(error: type[HftaError], where: str, values: Mapping[str, Any], /, **kinds: Kind) -> None:
    """Check values by name, as of a dataclass: ``vars(self)``.

    Raises:
        HftaError: of the class `error`; one is not of its kind.
    """
    for name, kind in kinds.items():
        if name in values and not kind.accepts(values[name]):
            raise error(kind.what, where=f"{where}, {name}", got=values[name], accepted=kind.accepted)


def _default(function: Callable[..., Any], name: str, value: Any) -> bool:
    """Whether a value is the argument's default: what a function takes where nothing is given is always right."""
    parameter = inspect.signature(function).parameters.get(name)
    return parameter is not None and parameter.default is value


def refuse_nested(error: type[HftaError], given: Mapping[Any, Any]) -> None:
    """Refuse arguments, by name or place, that are nested too deeply.

    Raises:
        HftaError: of the class `error`; one is.
    """
    for name, value in given.items():
        if nested(value):
            raise error("lists or dicts that are nested too deeply", where=str(name), got=type(value).__name__,
                        accepted=f"{DEEPEST} levels at most") from None  # fmt: skip


def nested(value: Any, most: int = DEEPEST) -> bool:
    """Whether lists and dicts in a value are in one another more often than that."""
    level = [value]
    for _ in range(most):
        inner: list[Any] = []
        for one in level:
            if isinstance(one, Mapping):
                inner += one.values()
            elif isinstance(one, list | tuple | set | frozenset):
                inner += one
        level = [v for v in inner if isinstance(v, Mapping | list | tuple | set | frozenset)][:10_000]
        if not level:
            return False
    return True
