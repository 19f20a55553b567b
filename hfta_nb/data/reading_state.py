"""What reading changes in a data set, and how several readers of it each get what they would get alone."""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from hfta_nb.data.places import MISSING, Found, Place, find
from hfta_nb.data.randomness import Randomness
from hfta_nb.data.values_in_places import reduced, same
from hfta_nb.engine.random_streams import STREAMS, go_to, position_of
from hfta_nb.errors import DataError, DataWarning

T = TypeVar("T")

Values = dict[str, Any]
"""By the name of a place, what it holds."""

END = object()

UNLIKE = "samples differ each time that they are read"


class Held:
    """What the objects of a data set hold that reading changes: generators, counters, what `set_epoch` sets, caches.

    Such data gives what it gives in one order alone: that of the reader's own loop. Each `Reading` begins with what was
    held at first and goes on from where it was; where another has read meanwhile, that is put back before it goes on.

    Args:
        roots: the data set, its loader, the function that yields batches, by name.

    Attributes:
        names: of the places that are put back.
        draws: whether reading draws from the random numbers of torch, NumPy or Python.
        entropy: why it can't be read again alike; empty where it can.
    """

    def __init__(self, roots: Mapping[str, Any]) -> None:
        self.roots = dict(roots)
        found = find(self.roots)
        self._found: Found | None = found
        self.names = {name for name, place in found.places.items() if place.kind == "generator"}
        self.draws, self.entropy = False, ", ".join(found.entropy)
        self._epoch_aware, self._clocks, self._seen = bool(found.epoch_aware), bool(found.clocks), False
        self._first: Values | None = None
        self._once: dict[str, Place] = {}  # that were there: an attribute that has gone can be put back
        self._reader: Reading | None = None

    def __getstate__(self) -> dict[str, Any]:
        self.switch(None)
        return {**self.__dict__, "_found": None, "_first": None, "_once": {}, "_reader": None}

    @property
    def varies(self) -> bool:
        """Whether what is read may depend on what was read before; each reader then reads it in order, for itself."""
        return bool(self.names or self.entropy) or self._epoch_aware or self._seen

    @property
    def keeps(self) -> bool:
        """Whether reading, or `set_epoch`, was seen to change what is held."""
        return self._seen or self._epoch_aware

    @property
    def changeable(self) -> bool:
        """Whether samples are known not to be the same each time, or in doubt."""
        return self.keeps or self._clocks or self.draws or bool(self.entropy)

    @property
    def places(self) -> dict[str, Place]:
        """All places, as last looked for."""
        if self._found is None:  # in another process
            self._found = find(self.roots)
        return self._found.places

    def look(self) -> Values:
        """Everything that is held now."""
        self._find()
        return {name: place.get() for name, place in self.places.items()}

    def _find(self) -> None:
        self._found = find(self.roots)
        self._once |= {name: place for name, place in self.places.items() if place.kind == "name"}

    def _held(self, name: str) -> Any:
        place = self.places.get(name)
        return MISSING if place is None else place.get()

    def put(self, values: Values) -> None:
        """Put back what `look` gave."""
        self._find()
        come = (self.places.keys() | self._once.keys()) - values.keys()
        self._put({**dict.fromkeys(come, MISSING), **values})

    def _put(self, values: Mapping[str, Any]) -> None:
        inner = ("generator", "contents", "elements", "cache")
        for kinds in (("name",), inner):  # what is inside, once the right object is
            for name, value in values.items():
                place = self.places.get(name) or self._once.get(name)
                if place is None or place.kind not in kinds or (value is MISSING and place.kind != "name"):
                    continue
                if not same(place.get(), value):
                    place.put(value)
            self._found = find(self.roots)

    def moved(self, before: Values, after: Values) -> bool:
        """Whether reading what was read before has changed more than a cache or log, which grows."""
        return any(self._counts(name, before, after) for name in differing(before, after))

    def _counts(self, name: str, before: Values, after: Values) -> bool:
        if name not in before or name not in after:  # of something that has come or gone
            return False
        kind = self.places[name].kind
        return kind != "cache" and (kind != "contents" or len(before[name]) == len(after[name]))

    def drawn(self, before: Values, after: Values) -> bool:
        """Whether a generator has moved."""
        return any(p.kind == "generator" and n in differing(before, after) for n, p in self.places.items())

    def warn_of_changes(self, before: Values, where: str) -> None:
        """Warn if a whole pass has changed something, as a counter of passes does after the last batch."""
        after = self.look()
        if not self.varies and self.moved(before, after):
            changed = shown(n for n in differing(before, after) if n in before and self._counts(n, before, after))
            words = (
                f"{where}: a whole pass through it changes {changed}, which no checkpoint keeps: a run that is "
                "interrupted, or another array, goes on with what is there then. Let it follow from the number of the "
                "pass: a function batches(pass), or set_epoch(self, pass) of the data set or its sampler"
            )
            warnings.warn(DataWarning(words), stacklevel=2)

    def judge(self, read: Callable[[Any], Any], keys: Sequence[Any]) -> None:
        """Find out by reading some of it twice, in another order, whether what is read varies; then put all back.

        Args:
            read: reads one item; its random numbers are seeded by the place of its key.
            keys: of the items.
        """
        forward, backward = range(len(keys)), range(len(keys) - 1, -1, -1)
        begin = self.look()
        try:
            first, warm = self._read(read, keys, forward), self.look()
            second, end = self._read(read, keys, backward), self.look()
            changed = differing(begin, warm) | differing(warm, end)
            varies = not alike(first, second) or self.moved(warm, end) or self.drawn(begin, end)
            if len(keys) > 1 and not varies:
                self.put(begin)
                varies = not alike(first, self._read(read, keys, backward))
            if varies:
                self._seen = True
                self.names |= changed
                self.put(begin)
                if not alike(first, self._read(read, keys, forward)):
                    self.entropy = self.entropy or UNLIKE
        finally:
            self.put(begin)

    def _read(self, read: Callable[[Any], Any], keys: Sequence[Any], order: Sequence[int]) -> dict[int, Any]:
        found = {}
        for number in order:
            drawn = Randomness(number)
            mark = drawn.mark()
            with drawn.drawn():
                found[number] = read(keys[number])
            self.draws = self.draws or drawn.moved(mark)
        return found

    # Readers.

    def switch(self, reader: Reading | None) -> None:
        """Put in what a reader has reached; None for what was held at first."""
        if self._reader is reader:
            return
        now = self.take()
        if self._first is None:
            self._first = now
        if self._reader is not None:
            self._reader.kept = now
        self._reader = reader
        self._put(self._first if reader is None else {**self._first, **reader.kept})

    def take(self) -> Values:
        """What is held now, of all that is put back."""
        self._find()
        return {name: self._held(name) for name in sorted(self.names)}

    def go_to(self, values: Values) -> None:
        """Put in what `take` gave; what it does not have is as at first."""
        self._put({**(self._first or {}), **values})

    def add(self, names: Iterable[str]) -> None:
        """Put back these places as well, which nobody has changed here."""
        now = self.look()
        fresh = {name: now.get(name, MISSING) for name in set(names) - self.names}
        self.names |= fresh.keys()
        if self._first is not None:
            self._first |= fresh

    def grow(self, before: Values, after: Values) -> None:
        """Note places that have changed for the first time."""
        fresh = differing(before, after) - self.names
        self.names |= fresh
        if self._first is not None:
            self._first |= {name: before.get(name, MISSING) for name in fresh}


class Reading:
    """One reader's way through data that varies; it has begun with what was held at first."""

    def __init__(self, held: Held) -> None:
        self.held = held
        self.kept: Values = {}

    def taken(self) -> Values:
        """What it has reached."""
        self.held.switch(self)
        return self.held.take()

    def go_to(self, values: Values) -> None:
        """Go on from what `taken` gave."""
        self.held.switch(self)
        self.held.go_to(values)

    def items(self, reader: Generator[T, None, None]) -> Generator[T, None, None]:
        """What an iterator gives, read in turn with other readers; it is closed with this one."""
        with contextlib.closing(reader):
            if not self.held.varies:
                yield from reader
                return
            self.held.switch(self)
            before = self.held.look()
            try:
                while True:
                    self.held.switch(self)
                    item: Any = next(reader, END)
                    if item is END:
                        return
                    yield item
            finally:
                self.held.switch(self)
                self.held.grow(before, self.held.look())


def shown(names: Iterable[str]) -> str:
    """Names of places for people."""
    return ", ".join(sorted({name.rstrip("'").removesuffix("[...]") for name in names}))


def differing(a: Values, b: Values) -> set[str]:
    """The names of what is not the same in both."""
    return {name for name in a.keys() | b.keys() if not same(a.get(name, MISSING), b.get(name, MISSING))}


def alike(a: Any, b: Any) -> bool:
    """Whether two samples are equal: trees of tensors, arrays and anything that can be compared."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(alike(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(alike, a, b))
    if hasattr(a, "tobytes") and not isinstance(a, np.ndarray) and hasattr(b, "tobytes"):  # Pillow's
        return bool(a.tobytes() == b.tobytes())
    try:
        return same(a, b) or bool(a == b)
    except (TypeError, ValueError, RuntimeError):
        return False


# As plain data and tensors, for checkpoints.


def packed(values: Values) -> dict[str, Any]:
    """What a reader has reached, as a tree of plain data and tensors."""
    return {name: _packed(value) for name, value in values.items()}


def unpacked(tree: Mapping[str, Any], held: Held, where: str) -> Values:
    """What `packed` was given; a warning names what could not be kept."""
    lost = sorted(name for name, value in tree.items() if _lost(value))
    known = tuple(name.removesuffix("[...]") for name in tree if name in held.places)
    unknown = sorted(tree.keys() - held.places.keys() - held.names)
    unknown = [name for name in unknown if not name.startswith(known)]
    held.add(tree)
    if lost:
        kinds = ", ".join(f"{shown([name])} ({_lost(tree[name])})" for name in lost)
        words = f"{where}: {kinds} can't be kept in a checkpoint, so reading goes on with what is there now"
        warnings.warn(DataWarning(words), stacklevel=2)
    if unknown:
        remedy = "give the data as it was given before"
        raise DataError("does not hold what it held before", where=where, got=shown(unknown), remedy=remedy)
    return {name: _unpacked(value) for name, value in tree.items() if name not in lost}


def _packed(value: Any) -> Any:
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, Tensor):
        return {"kind": "tensor", "value": value.detach().cpu()}
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufc":
        flat = torch.frombuffer(bytearray(value.tobytes()), dtype=torch.uint8) if value.nbytes else torch.zeros(0)
        kind = "array" if isinstance(value, np.ndarray) else "number"
        return {"kind": kind, "value": flat, "dtype": value.dtype.str, "shape": list(value.shape)}
    if type(value) in (list, tuple, set):
        return {"kind": type(value).__name__, "value": [_packed(one) for one in value]}
    if type(value) is dict:
        return {"kind": "dict", "value": [[_packed(k), _packed(v)] for k, v in value.items()]}
    if value is MISSING:
        return {"kind": "missing"}
    if type(value) is itertools.count:
        return {"kind": "count", "value": _packed(list(reduced(value)[0]))}
    for kind, stream in _STREAMS.items():
        if type(value) is stream:
            numpys = type(value.bit_generator).__name__ if isinstance(value, np.random.Generator) else ""
            return {"kind": kind, "value": _packed(position_of(value)), "of": numpys}
    return {"kind": "other", "value": type(value).__name__}


def _lost(tree: Any) -> str:
    """The type of what could not be kept; empty if all was."""
    if isinstance(tree, list):
        return next(filter(None, map(_lost, tree)), "")
    if not isinstance(tree, dict):
        return ""
    return str(tree["value"]) if tree["kind"] == "other" else _lost(tree.get("value"))


def _unpacked(tree: Any) -> Any:
    if not isinstance(tree, dict):
        return tree
    kind, value = tree["kind"], tree.get("value", [])
    if kind == "missing":
        return MISSING
    if kind == "tensor":
        return value
    if kind in ("array", "number"):
        array = np.frombuffer(value.numpy().tobytes(), dtype=tree["dtype"]).reshape(tree["shape"]).copy()
        return array if kind == "array" else array[()]
    if kind == "dict":
        return {_unpacked(k): _unpacked(v) for k, v in value}
    if kind in ("list", "tuple", "set"):
        return {"list": list, "tuple": tuple, "set": set}[kind](map(_unpacked, value))
    if kind == "count":
        return itertools.count(*_unpacked(value))
    fresh = np.random.Generator(getattr(np.random, tree["of"])()) if kind == "numpy" else _STREAMS[kind]()
    go_to(fresh, _unpacked(value))
    return fresh


_STREAMS = dict(zip(("torch", "random", "random state", "numpy"), STREAMS, strict=True))
"""Kinds of random streams that a place holds, by the names that a checkpoint has."""
