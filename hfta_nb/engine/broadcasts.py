"""Refuses, in a loss or metric of the user's, a broadcast of an output ``[N, 1]`` against a target ``[N]``.

Torch computes ``[N, N]`` then, every output against every target, and a model that learns by it learns the mean. Nobody
means that who writes ``output - target``; who means all pairs gives one of the two another axis (``y[None, :]``).
"""

from __future__ import annotations

import inspect
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from hfta_nb.engine.members.tree import flatten
from hfta_nb.errors import BroadcastError
from hfta_nb.errors.caught_warnings import caught_warnings
from hfta_nb.errors.user_frames import user_frame

_DROPPING = frozenset(("squeeze", "view", "view_as", "reshape", "reshape_as", "flatten", "ravel"))
"""Functions that take an axis of length 1 away. One that is added is meant; see `_Watching._take`."""

_CHOOSING = frozenset(("__getitem__", "select", "unbind"))
"""Functions that take one entry of an axis."""

_PAIRS = frozenset(("einsum", "tensordot", "outer"))
"""Functions that say themselves which axes belong together."""

_REDUCING = frozenset(("dist", "pairwise_distance", "cosine_similarity", "allclose"))
"""Functions that broadcast and give fewer numbers, and that have no ``reduction``."""

MOST_SHAPES = 64
"""So many patterns of shapes are looked at for each function."""

_checked: weakref.WeakKeyDictionary[Any, set[Any]] = weakref.WeakKeyDictionary()


def called(function: Callable[..., Any], output: Any, target: Any, name: str = "", key: Any = None) -> Any:
    """``function(output, target)``; the first call for each shape looks for such a broadcast.

    Args:
        function: a loss or metric.
        output, target: as it takes them.
        name: of it, for the error.
        key: what stands for the function from call to call; itself by default.

    Raises:
        BroadcastError: there is one.
    """
    leaves = [flatten(tree)[0] for tree in (output, target)]
    with torch._C.DisableTorchFunction():
        handed = [[(v, v.shape) for v in part if isinstance(v, Tensor) and v.ndim] for part in leaves]
    shapes = _pattern([[shape for _, shape in part] for part in handed])
    try:
        known = _checked.setdefault(function if key is None else key, set())
    except TypeError:  # neither weak references nor hashes are for all objects
        known = set()
    if shapes in known or len(known) >= MOST_SHAPES or not all(handed):
        return function(output, target)
    try:
        with _Watching([v for v, _ in handed[0]], [v for v, _ in handed[1]]):
            result = function(output, target)
    except BroadcastError as error:
        if error.where:
            raise
        line = user_frame(error)
        name = name or getattr(function, "__name__", type(function).__name__)
        raise error.at(name if line is None else f"{name}, {line}") from None
    known.add(shapes)
    return result


def _pattern(shapes: Iterable[Iterable[Iterable[int]]]) -> tuple[Any, ...]:
    """Which axes have the same length, and which have length 1: shapes that agree in this broadcast alike."""
    known = {1: 1}
    return tuple(tuple(tuple(known.setdefault(n, -len(known)) for n in shape) for shape in part) for part in shapes)


class _Watching(TorchFunctionMode):
    """Follows outputs and targets through the functions of torch that a loss calls.

    Args:
        outputs, targets: as the loss gets them.
    """

    def __init__(self, outputs: list[Tensor], targets: list[Tensor]) -> None:
        super().__init__()
        self._sources: dict[int, tuple[weakref.ref[Tensor], frozenset[int]]] = {}
        for number, tensor in enumerate((*outputs, *targets)):
            self._note(tensor, frozenset([number]))

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunction():
            given = list(_tensors((args, kwargs)))
            known = [(t, source) for t in given if (source := self._known(t))]
            suspects = _suspects(func, known)
            for suspect in suspects:
                if _reduces(func, args, kwargs, suspect.shape):  # before torch warns of it
                    raise suspect.error(func)
        result = func(*args, **kwargs)
        if known:
            with torch._C.DisableTorchFunction():
                made = list(_tensors(result))
                for suspect in suspects:
                    if any(t.shape == suspect.shape for t in made):
                        raise suspect.error(func)
                for tensor in made:
                    self._take(func, given, known, tensor)
        return result

    def _known(self, tensor: Tensor) -> frozenset[int]:
        """Which outputs and targets a tensor comes from; none where an axis was added since."""
        entry = self._sources.get(id(tensor))
        return entry[1] if entry is not None and entry[0]() is tensor else frozenset()

    def _note(self, tensor: Tensor, source: frozenset[int]) -> None:
        self._sources[id(tensor)] = weakref.ref(tensor), source

    def _take(
        self, func: Callable[..., Any], given: list[Tensor], known: list[tuple[Tensor, frozenset[int]]], made: Tensor
    ) -> None:
        """Note what a result comes from, if it still has the axes that were handed over."""
        alike = made.ndim == max(t.ndim for t in given)
        first = known[0][0]
        fewer = _name(func) in _DROPPING and made.numel() == first.numel()
        chosen = _name(func) in _CHOOSING and made.shape[:1] == first.shape[:1]
        dropped = made.ndim < first.ndim and (fewer or chosen)
        if made.ndim and (alike or dropped):
            self._note(made, frozenset().union(*(source for _, source in known)))


class _Suspect(NamedTuple):
    """Two tensors of which a function may compute all pairs.

    Attributes:
        pair: their shapes.
        shape: what they broadcast to.
    """

    pair: tuple[torch.Size, torch.Size]
    shape: torch.Size

    def error(self, func: Callable[..., Any]) -> BroadcastError:
        one, other = (list(shape) for shape in self.pair)
        return BroadcastError(
            f"{_name(func)} broadcasts {one} and {other} to {list(self.shape)}, each of one with all of the other",
            accepted="one shape for both",
            remedy="write output.squeeze(-1), or target.unsqueeze(-1); all pairs, if they are meant, are output and "
            "target[None]; losses by name, such as loss='mse', fit targets to outputs",
        )


def _suspects(func: Callable[..., Any], known: list[tuple[Tensor, frozenset[int]]]) -> list[_Suspect]:
    """The pairs among a function's arguments that differ by axes of length 1, and do not come from the same."""
    found = []
    for number, (a, of_a) in enumerate(known):
        for b, of_b in known[number + 1 :]:
            grown = _grown(a.shape, b.shape)
            if grown is not None and of_a != of_b and _name(func) not in _PAIRS:
                found.append(_Suspect((a.shape, b.shape), grown))
    return found


def _grown(a: torch.Size, b: torch.Size) -> torch.Size | None:
    """What two shapes broadcast to, if they differ by axes of length 1 and it has more entries than both."""
    if len(a) == len(b) or [n for n in a if n != 1] != [n for n in b if n != 1]:
        return None
    try:
        both: torch.Size = torch.broadcast_shapes(a, b)  # type: ignore[no-untyped-call]
    except RuntimeError:  # torch tells of it
        return None
    return both if both.numel() > a.numel() else None


def _reduces(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], shape: torch.Size) -> bool:
    """True if a function gives the mean or sum of entries of this shape."""
    if _name(func) in _REDUCING:
        return True
    try:
        bound = inspect.signature(func).bind(*args, **kwargs)
        if "reduction" not in inspect.signature(func).parameters:
            return False
        bound.arguments["reduction"] = "none"
        with caught_warnings():
            warnings.simplefilter("ignore")
            made = func(**{name: _bare(value) for name, value in bound.arguments.items()})
        return bool(made.shape == shape)
    except (TypeError, ValueError, RuntimeError):  # torch tells of it
        return False


def _bare(value: Any) -> Any:
    """A tensor's shape and dtype without its values."""
    return torch.empty(value.shape, dtype=value.dtype, device="meta") if isinstance(value, Tensor) else value


def _tensors(tree: Any) -> Iterator[Tensor]:
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, tuple | list):
        for value in tree:
            yield from _tensors(value)
    elif isinstance(tree, dict):
        yield from _tensors(tuple(tree.values()))


def _name(func: Callable[..., Any]) -> str:
    return str(getattr(func, "__name__", func))
