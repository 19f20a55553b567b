"""What objects hold that reading them may change: random generators, counters, caches, wherever they are kept.

A *place* is where a value is held: an attribute, a slot, a cell of a closure, a global name that the user's own
function uses, the contents of a list, dict or set, the elements of a small array, the position of a generator.
"""

from __future__ import annotations

import copy
import dis
import functools
import io
import itertools
import os
import random
import types
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from hfta_nb.data.values_in_places import PLAIN, to_keep
from hfta_nb.engine.random_streams import STREAMS, go_to, position_of
from hfta_nb.errors import DataWarning
from hfta_nb.errors.user_frames import is_own

MOST = 20_000
"""Objects that are looked at."""

MOST_ELEMENTS = 1000
"""Elements of a container that are looked into."""

SMALL_BYTES = 2**20
"""Arrays up to this size are compared by their elements; of larger ones it is taken that reading changes nothing."""

LOADER = ("dataset", "sampler", "batch_sampler", "collate_fn", "generator", "worker_init_fn")
"""What a `DataLoader` holds of the user's."""

ENTROPY = frozenset({"secrets", "uuid"})
CLOCKS = frozenset({"time", "datetime"})
"""Modules whose functions give something else each time."""

MISSING = object()
"""In place of a value where there is none."""

_CLOSED = (types.ModuleType, io.IOBase, types.CodeType, types.GeneratorType)
_GLOBALS = ("LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL", "LOAD_NAME", "STORE_NAME")


@dataclass(frozen=True)
class Place:
    """A place.

    Attributes:
        kind: "generator", "name" (one value), "contents" (of a container), "elements" (of an array) or "cache" (of
            `functools.lru_cache`, which can be emptied only).
        get: takes down what it holds, so that later changes leave that alone.
        put: puts that back.
    """

    kind: str
    get: Callable[[], Any]
    put: Callable[[Any], Any]


@dataclass
class Found:
    """The places below some roots.

    Attributes:
        places: by name, such as ``dataset.transform.rng``.
        epoch_aware: names of objects that have `set_epoch`.
        entropy: what gives something else each time, whatever is put back: ``os.urandom``, ``secrets``, ``uuid``.
        clocks: names of functions that ask for the time.
    """

    places: dict[str, Place]
    epoch_aware: list[str]
    entropy: list[str]
    clocks: list[str]

    def note(self, name: str, place: Place) -> None:
        """Add a place; two of one name are told apart."""
        while name in self.places:
            name += "'"
        self.places[name] = place


def find(roots: Mapping[str, Any]) -> Found:
    """Look for places below these objects."""
    found = Found({}, [], [], [])
    seen = {id(one) for one in _everybodys()}
    alive: list[Any] = []  # so that no id is used twice
    queue: deque[tuple[str, Any]] = deque(roots.items())
    while queue and len(alive) < MOST:
        where, value = queue.popleft()
        if isinstance(value, PLAIN) or id(value) in seen or isinstance(value, _CLOSED):
            continue
        seen.add(id(value))
        alive.append(value)
        if isinstance(value, random.SystemRandom):
            found.entropy.append(where)
        elif (generator := _generator(value)) is not None:
            found.note(where, generator)
        elif isinstance(value, Tensor | np.ndarray):
            if _bytes(value) <= SMALL_BYTES:
                found.note(f"{where}[...]", _array(value))
        else:
            queue.extend(_inner(where, value, found))
    return found


def _everybodys() -> list[Any]:
    """Generators that everybody draws from: see `randomness`."""
    numpys = np.random.mtrand._rand
    return [numpys, numpys._bit_generator, random._inst, torch.default_generator, *torch.cuda.default_generators]


def _generator(value: Any) -> Place | None:
    if isinstance(value, np.random.BitGenerator):
        return Place("generator", lambda: value.state, functools.partial(setattr, value, "state"))
    if isinstance(value, STREAMS):
        return Place("generator", functools.partial(position_of, value), functools.partial(go_to, value))
    return None


def _bytes(array: Tensor | np.ndarray[Any, Any]) -> int:
    return array.numel() * array.element_size() if isinstance(array, Tensor) else array.nbytes


def _array(value: Any) -> Place:
    if isinstance(value, Tensor):

        def put(kept: Any) -> None:
            with torch.no_grad():
                value.copy_(kept)

        return Place("elements", value.detach().clone, put)
    return Place("elements", value.copy, lambda kept: np.copyto(value, kept) if value.flags.writeable else None)


def _inner(where: str, value: Any, found: Found) -> Iterator[tuple[str, Any]]:
    """What an object holds, to be looked at next; its own places go to `found`."""
    if isinstance(value, types.FunctionType):
        yield from _of_function(where, value, found)
    elif isinstance(value, types.MethodType):
        yield from ((where, value.__self__), (where, value.__func__))
    elif isinstance(value, types.BuiltinFunctionType):
        yield where, value.__self__
    elif isinstance(value, type):
        yield from _of_class(value, found)
    elif isinstance(value, functools.partial):
        yield from ((where, value.func), (where, value.args), (where, value.keywords))
    elif isinstance(value, DataLoader):
        yield from ((name if where == "loader" else f"{where}.{name}", getattr(value, name)) for name in LOADER)
        yield from _of_loader(where, value, found)
    elif isinstance(value, tuple | frozenset):
        yield from _elements(where, enumerate(value))
    elif isinstance(value, dict):
        found.note(f"{where}[...]", Place("contents", lambda: dict(value), functools.partial(_refill, value)))
        yield from _elements(where, value.items())
    elif isinstance(value, list | set | deque | bytearray):
        found.note(f"{where}[...]", Place("contents", lambda: copy.copy(value), functools.partial(_refill, value)))
        yield from _elements(where, enumerate(value))
    elif isinstance(value, functools._lru_cache_wrapper) and _own(value.__wrapped__.__code__.co_filename):
        found.note(where, _cache(where, value))
    if not isinstance(value, types.FunctionType | type | DataLoader | types.BuiltinFunctionType):
        yield from _of_object(where, value, found)


def _of_loader(where: str, loader: DataLoader[Any], found: Found) -> Iterator[tuple[str, Any]]:
    """What a loader of a user's own class has beside those of torch's."""
    if type(loader) is DataLoader:
        return
    held = vars(loader)
    for name in held.keys() - vars(DataLoader([0])).keys():  # type: ignore[arg-type]
        found.note(f"{where}.{name}", _name(held, name))
        yield f"{where}.{name}", held[name]
    yield from _of_class(type(loader), found)


def _cache(where: str, function: Any) -> Place:
    """What a function remembers; the number of values, and of those that were made, stand for the values."""

    def get() -> tuple[int, int]:
        info = function.cache_info()
        return info.currsize, info.misses

    def put(kept: tuple[int, int]) -> None:
        function.cache_clear()
        if kept[0]:
            words = f"{where}: what functools.lru_cache kept can't be put back, so that it is made anew"
            warnings.warn(DataWarning(words), stacklevel=2)

    return Place("cache", get, put)


def _elements(where: str, pairs: Any) -> Iterator[tuple[str, Any]]:
    with_names = ((f"{where}[{key!r}]", value) for key, value in itertools.islice(pairs, MOST_ELEMENTS))
    return iter([(name, value) for name, value in with_names if not isinstance(value, PLAIN)])


def _refill(container: Any, kept: Any) -> None:
    container.clear()
    (container.extend if hasattr(container, "extend") else container.update)(kept)


def _of_object(where: str, value: Any, found: Found) -> Iterator[tuple[str, Any]]:
    if callable(getattr(type(value), "set_epoch", None)):
        found.epoch_aware.append(where)
    held = getattr(value, "__dict__", None)
    if isinstance(held, dict):
        for name, inner in list(held.items()):
            found.note(f"{where}.{name}", _name(held, name))
            yield f"{where}.{name}", inner
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            slot = kind.__dict__.get(name if not name.startswith("__") else f"_{kind.__name__.lstrip('_')}{name}")
            if isinstance(slot, types.MemberDescriptorType):
                found.note(f"{where}.{name}", _slot(slot, value))
                yield f"{where}.{name}", _slot(slot, value).get()
    yield type(value).__qualname__.rpartition(".")[2], type(value)


def _of_class(kind: type, found: Found) -> Iterator[tuple[str, Any]]:
    for base in kind.__mro__:
        if not _of_user(base):
            continue
        for name, value in list(vars(base).items()):
            where = f"{base.__qualname__.rpartition('.')[2]}.{name}"
            inner = value.__func__ if isinstance(value, staticmethod | classmethod) else value
            inner = inner.fget if isinstance(inner, property) else inner
            if name.startswith("__") and not isinstance(inner, types.FunctionType):
                continue
            if not callable(inner) and not isinstance(inner, types.MemberDescriptorType | functools.cached_property):
                found.note(where, _attribute_of_class(base, name))
            yield where, inner


@functools.lru_cache(1024)
def _of_user(kind: type) -> bool:
    module = str(kind.__module__)
    codes = [f.__code__.co_filename for f in vars(kind).values() if isinstance(f, types.FunctionType)]
    return module == "__main__" or any(map(_own, codes))


def _attribute_of_class(kind: type, name: str) -> Place:
    def put(value: Any) -> None:
        if value is not MISSING:
            setattr(kind, name, to_keep(value))
        elif name in vars(kind):
            delattr(kind, name)

    return Place("name", lambda: to_keep(vars(kind).get(name, MISSING)), put)


def _of_function(where: str, function: types.FunctionType, found: Found) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        place = _cell(cell)
        found.note(f"{where}({name})", place)
        yield f"{where}({name})", place.get()
    for defaults in (function.__defaults__ or (), function.__kwdefaults__ or {}):
        yield where, defaults
    for name, value in list(vars(function).items()):
        found.note(f"{where}.{name}", _name(vars(function), name))
        yield f"{where}.{name}", value
    scope, own = function.__globals__, _own(function.__code__.co_filename)
    read, names = _names(function.__code__)
    for name in read:
        value = scope.get(name, MISSING)
        if value is MISSING or name.startswith("__"):
            continue
        if not own:
            if _generator(value) is not None:
                yield f"{scope.get('__name__')}.{name}", value
            continue
        _note_entropy(function.__qualname__, name, value, names, found)
        if isinstance(value, types.ModuleType):
            if _own(getattr(value, "__file__", None) or "<built-in>"):
                for inner in sorted(names & vars(value).keys()):
                    found.note(f"{name}.{inner}", _name(vars(value), inner))
                    yield f"{name}.{inner}", vars(value)[inner]
            continue
        if not callable(value):
            found.note(name, _name(scope, name))
        yield name, value


@functools.lru_cache(4096)
def _own(file: str) -> bool:
    """Whether code is the user's, who may also have typed it."""
    return is_own(file) or file in ("<stdin>", "<string>")


def _note_entropy(where: str, name: str, value: Any, names: frozenset[str], found: Found) -> None:
    where = where.rpartition("<locals>.")[2]
    module = value.__name__ if isinstance(value, types.ModuleType) else str(getattr(value, "__module__", ""))
    if value is os.urandom or module in ENTROPY:
        found.entropy.append(f"{where}, {name}")
    elif value is os and "urandom" in names:
        found.entropy.append(f"{where}, os.urandom")
    elif module in CLOCKS:
        found.clocks.append(f"{where}, {name}")


@functools.lru_cache(4096)
def _names(code: types.CodeType) -> tuple[tuple[str, ...], frozenset[str]]:
    """The global names that a function uses, and all names in it."""
    steps = [step for inner in _codes(code) for step in dis.get_instructions(inner)]
    read = dict.fromkeys(str(step.argval) for step in steps if step.opname in _GLOBALS)
    return tuple(read), frozenset(name for inner in _codes(code) for name in inner.co_names)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _name(scope: dict[str, Any], name: str) -> Place:
    def put(value: Any) -> None:
        if value is MISSING:
            scope.pop(name, None)
        else:
            scope[name] = to_keep(value)

    return Place("name", lambda: to_keep(scope.get(name, MISSING)), put)


def _slot(slot: types.MemberDescriptorType, holder: Any) -> Place:
    def get() -> Any:
        try:
            return to_keep(slot.__get__(holder))
        except AttributeError:
            return MISSING

    def put(value: Any) -> None:
        if value is not MISSING:
            slot.__set__(holder, to_keep(value))
        elif get() is not MISSING:
            slot.__delete__(holder)

    return Place("name", get, put)


def _cell(cell: types.CellType) -> Place:
    def get() -> Any:
        try:
            return to_keep(cell.cell_contents)
        except ValueError:  # not filled yet
            return MISSING

    def put(value: Any) -> None:
        if value is not MISSING:
            cell.cell_contents = to_keep(value)

    return Place("name", get, put)
