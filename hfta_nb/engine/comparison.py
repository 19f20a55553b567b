"""Whether two ways to compute one thing come to the same; else what differs, by how much, and for which member.

A member among others and its plain module alone, a call as it was recorded and as it is replayed, a step in another
layout, compiled or captured, a kernel and a more exact one, a run and a loop of one's own: each computes something
twice, and `compare` is the judge of all of them. It looks at each tensor by itself, and at each member's row of it, so
that a small gradient counts as much as a large one. Where rounding alone may change a value by more than its
tolerance, a second right result tells by how much: of parameters whose last bits have changed (`nudge`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import hypot, inf, isfinite, nan
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from hfta_nb.engine.distances import Change, Measured, measure
from hfta_nb.engine.equality import same_bits, same_value

Values = Mapping[str, Any]
"""What a run comes to, by name: tensors, and other values and containers that can be compared."""

Tolerance = Callable[[Tensor], float]
"""The difference that is allowed for a tensor, relative to its largest value: as a rule, from its dtype."""

HALVES = (torch.float16, torch.bfloat16)

_FACTOR, _OF_HALF = 32.0, 2.0
"""A value may differ this many times as much as a right one does when last bits change. Sums of many terms round more
than their factors, but products of 16-bit numbers are added in float32."""

_NEAR_OF_HALF = 8.0
"""How many times the tolerance of the largest value of its kind what comes from 16-bit numbers may differ: in a deep
network their rounding is a fifth of a gradient."""

_DRAWS = 3
"""How many right results tell what rounding does: one alone may by chance be where the first was."""

_ROUNDINGS = 64.0
"""What should be zero may be this many roundings of the largest value of its kind, which is the first word of its name:
such values come about together."""

_NOISE = 64 * 2.0**-52
"""Values smaller than this, relative to the largest of their kind, are what rounding in float64 leaves of zero, such as
the gradient of a norm over one feature."""

_MAX_DEPTH = 8
_COMPARED = (int, float, complex, str, bytes, bool, type(None), np.ndarray, torch.Generator)


@dataclass(frozen=True)
class Difference:
    """A value that differs by more than rounding.

    Attributes:
        name: of the value.
        member: whose row differs most, where rows are members; else None.
        off: the largest difference, infinite where one of the two is not finite; NaN for what is not measured.
        size: the largest expected value.
    """

    name: str
    member: int | None = None
    off: float = nan
    size: float = nan

    @property
    def words(self) -> str:
        """By how much; empty for what is not measured."""
        if self.off == inf:
            return f"not finite where values alone reach {self.size:.2g}"
        return f"off by {self.off:.2g} where values reach {self.size:.2g}" if isfinite(self.off) else ""

    def __str__(self) -> str:
        place = self.name if self.member is None else f"{self.name} of member {self.member}"
        return f"{place}, {self.words}" if self.words else place


class _Leaf(NamedTuple):
    name: str
    found: Any
    expected: Any

    @property
    def kind(self) -> str:
        return self.name.partition(" ")[0]

    @property
    def tensor(self) -> Tensor:
        """What is expected of a leaf that is measured."""
        return self.expected.after if isinstance(self.expected, Change) else self.expected


class _Off(NamedTuple):
    """A pair of values that differ.

    Attributes:
        measured: the differences; None for what is not measured.
        bounds: of each difference, what is no rounding whatever another right result says; negative where a difference
            is within the tolerance.
        half: the value comes from 16-bit numbers.
    """

    leaf: _Leaf
    measured: Measured | None = None
    bounds: Sequence[float] = ()
    half: bool = False

    @property
    def far(self) -> bool:
        """No other result can explain it."""
        if self.measured is None:
            return False
        return all(d > bound for d, bound in zip(self.measured.differences, self.bounds, strict=True) if bound >= 0)

    def beyond(self, allowed: Sequence[float]) -> _Off | None:
        """With what is allowed as within the tolerance; None if all is."""
        assert self.measured is not None  # as the caller has seen
        each = zip(self.measured.differences, self.bounds, allowed, strict=True)
        bounds = [bound if d > min(bound, a) else _WITHIN for d, bound, a in each]
        return self._replace(bounds=bounds) if any(bound >= 0 for bound in bounds) else None


_WITHIN = -1.0


def compare(
    found: Values,
    expected: Values,
    tolerance: Tolerance,
    members: int = 0,
    again: Callable[[int], Values] | None = None,
    factor: float | None = None,
    near: bool = False,
    half: bool = False,
    diverging: bool = False,
) -> list[Difference]:
    """What differs by more than rounding, in the order of `expected`.

    Args:
        found: what one way comes to; what goes beyond the names of `expected` is not looked at.
        expected: what the other way comes to, which is trusted.
        tolerance: of a tensor that is expected.
        members: tensors with so many rows are compared row by row.
        again: computes another right result, given its number, asked for where something differs by more than its
            tolerance.
        factor: how many times as much as `again` a value may differ.
        near: no value may differ by more than the tolerance of the largest of its kind (of what comes from 16-bit
            numbers, eight times that), whatever `again` says.
        half: values of wider dtypes come from 16-bit numbers too, as under autocast.
        diverging: expected tensors that are not finite are left out; else such entries must be the same.
    """
    leaves = [leaf for name, value in expected.items() for leaf in _leaves(name, found.get(name), value)]
    numbers = [leaf for leaf in leaves if _measurable(leaf)]
    far = dict(zip(map(id, numbers), measure([(a, b) for _, a, b in numbers], members), strict=True))
    size, length = dict[str, float](), dict[str, float]()
    for leaf in numbers:
        size[leaf.kind] = max(size.get(leaf.kind, 0.0), *far[id(leaf)].size)
        length[leaf.kind] = max(length.get(leaf.kind, 0.0), *far[id(leaf)].length)
    off = []
    for leaf in leaves:
        one = far.get(id(leaf))
        if one is None:
            if not _same(leaf):
                off.append(_Off(leaf))
        elif one.finite or not diverging:
            rows = len(one.off)
            most = [*[size[leaf.kind]] * rows, *[length[leaf.kind]] * 2 * rows]
            relative, of_half = tolerance(leaf.tensor), half or leaf.tensor.dtype in HALVES
            least = relative if of_half else _ROUNDINGS * torch.finfo(leaf.tensor.dtype).eps
            allowed = [max(relative * s or least * m, _NOISE * m) for s, m in zip(one.scales, most, strict=True)]
            limit = (_NEAR_OF_HALF if of_half else 1.0) * relative
            bounds = [max(a, limit * m) if near else inf for a, m in zip(allowed, most, strict=True)]
            exceeding = _Off(leaf, one, bounds, of_half).beyond(allowed)
            if exceeding is not None:
                off.append(exceeding)
    for number in range(_DRAWS):
        if again is None or all(one.far for one in off):
            break
        off = _beyond(off, again(number), expected, tolerance, members, factor)
    return [_difference(one) for one in off]


def _beyond(
    off: Sequence[_Off], again: Values, expected: Values, tolerance: Tolerance, members: int, factor: float | None
) -> list[_Off]:
    """What is further off than `factor` times as much as another right result."""
    others = {leaf.name: leaf for name in expected for leaf in _leaves(name, again.get(name), expected[name])}
    left: list[_Off | None] = []
    for one in off:
        other = others.get(one.leaf.name)
        if other is None or not _measurable(other):
            left.append(one if other is not None and _same(other) else None)
            continue
        [beside] = measure([(other.found, other.expected)], members)
        if one.measured is None:
            allowed = [tolerance(other.tensor) * size for size in beside.scales]
            varies = any(d > a for d, a in zip(beside.differences, allowed, strict=True))
            left.append(None if varies else one)
        else:
            times = factor or (_OF_HALF if one.half else _FACTOR)
            left.append(one.beyond([times * d for d in beside.differences]))
    return [one for one in left if one is not None]


def _difference(one: _Off) -> Difference:
    if one.measured is None:
        return Difference(one.leaf.name)
    off, size = one.measured.off, one.measured.size
    rows = [i % len(off) for i, bound in enumerate(one.bounds) if bound >= 0]
    row = max(rows, key=off.__getitem__)
    return Difference(one.leaf.name, row if len(off) > 1 else None, off[row], size[row])


def _leaves(name: str, found: Any, expected: Any) -> Iterator[_Leaf]:
    """The pairs of values that are compared, those within containers of one structure each by itself."""
    if not (_comparable(found) and _comparable(expected)):
        return
    if isinstance(found, Change) and isinstance(expected, Change):
        whole = found if expected.after.is_floating_point() else found.after
        yield _Leaf(name, whole, expected if whole is found else expected.after)
    elif isinstance(found, list | tuple) and isinstance(expected, list | tuple) and len(found) == len(expected):
        for i, (a, b) in enumerate(zip(found, expected, strict=True)):
            yield from _leaves(f"{name}[{i}]", a, b)
    elif isinstance(found, dict) and isinstance(expected, dict) and found.keys() == expected.keys():
        for key, value in expected.items():
            yield from _leaves(f"{name}[{key!r}]", found[key], value)
    elif isinstance(found, float) and isinstance(expected, float):  # which may come from numbers in float32
        yield _Leaf(name, *(torch.tensor(v, dtype=torch.float32) for v in (found, expected)))
    else:
        yield _Leaf(name, found, expected)


def _comparable(value: Any, depth: int = 0) -> bool:
    if isinstance(value, Tensor):
        return value.layout is torch.strided and not value.is_quantized
    if isinstance(value, list | tuple | dict):
        inner = value.values() if isinstance(value, dict) else value
        return depth < 4 and len(value) < 1000 and all(_comparable(v, depth + 1) for v in inner)
    return isinstance(value, _COMPARED)


def _measurable(leaf: _Leaf) -> bool:
    """True if two values are numbers of which a difference may be rounding."""
    if isinstance(leaf.found, Change) is not isinstance(leaf.expected, Change):
        return False
    a, b = (v.after if isinstance(v, Change) else v for v in (leaf.found, leaf.expected))
    if not isinstance(a, Tensor) or not isinstance(b, Tensor) or a.is_meta:
        return False
    return a.shape == b.shape and a.dtype == b.dtype and (b.is_floating_point() or b.is_complex())


def _same(leaf: _Leaf) -> bool:
    """True if two values that are not measured are the same."""
    a, b = leaf.found, leaf.expected
    if a is None or b is None:  # a gradient of zero may be None
        value = b if a is None else a
        return value is None or (isinstance(value, Tensor) and not value.any())
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.dtype == b.dtype and same_bits(a.detach(), b.detach())
    return same_value(a, b)


# Running twice.


class Streams(Protocol):
    """The random streams of members."""

    @property
    def states(self) -> Sequence[Mapping[str, Tensor]]:
        """Their states, by type of device."""

    def rows(self) -> list[Tensor]:
        """Their states."""

    def put(self, rows: Sequence[Tensor]) -> None:
        """Set all states, of the generators that there are."""


class Saved:
    """Tensors and random streams, saved in memory of their own; a call puts them back.

    Attributes:
        values: of the tensors.
    """

    def __init__(self, tensors: Iterable[Tensor], streams: Streams) -> None:
        self._tensors, self._streams = list(tensors), streams
        self.values, self._states = [t.clone() for t in self._tensors], [state.clone() for state in streams.rows()]

    @torch.no_grad()
    def __call__(self) -> None:
        if self._tensors:
            torch._foreach_copy_(self._tensors, self.values)
        self._streams.put(self._states)


@torch.no_grad()
def nudge(tensors: Iterable[Tensor], rounding: Callable[[Tensor], float], generator: torch.Generator) -> None:
    """Change the last bit of each number, up or down."""
    for tensor in tensors:
        if tensor.is_floating_point():
            signs = torch.randint(0, 2, tensor.shape, generator=generator).to(tensor) * 2 - 1
            tensor.mul_(1 + rounding(tensor) * signs)


def streams_by_member(streams: Streams) -> dict[str, Tensor]:
    """The states of the members' random streams, by name."""
    return {f"stream ({kind}) of member {i}": s[kind].clone() for i, s in enumerate(streams.states) for kind in s}


def other_than(
    found: Values,
    expected: Values,
    tolerance: Tolerance,
    members: int,
    again: Callable[[int], Values],
    kinks: bool = False,
    near: bool = True,
    half: bool = False,
) -> str:
    """How a second way to run something differs from the first, in words; empty if they are equal up to rounding.

    Args:
        found, expected: what they come to.
        tolerance, near, half: see `compare`.
        members: of the array.
        again: runs the first way with the last bits of parameters changed, each number in another way.
        kinks: allow for units that rounding turns on or off, with their samples' share of the gradients.
    """
    off = compare(found, expected, tolerance, members, again, near=near, half=half)
    if not off or (kinks and _near(found, expected, off)):
        return ""
    return f"{'draws other random' if off[0].name.startswith('stream') else 'gives other'} numbers: {off[0]}"


def _near(found: Values, expected: Values, off: Sequence[Difference]) -> bool:
    """True if what differs are gradients, each by a small part of it, all together by less."""
    if not all(one.name.startswith("gradient") and isfinite(one.off) for one in off):
        return False
    if any(_length(found[one.name] - expected[one.name]) > _OF_ONE * _length(expected[one.name]) for one in off):
        return False
    names = [name for name in expected if name.startswith("gradient")]
    apart = hypot(*(_length(found[name] - expected[name]) for name in names))
    return apart <= _KINKS * hypot(*(_length(expected[name]) for name in names))


def _length(tensor: Tensor) -> float:
    return float(tensor.double().nan_to_num(nan=0.0).norm())


_KINKS, _OF_ONE = 0.01, 0.1
"""The allowed length of the difference that such units make in all gradients, and in one of them, relative to their
lengths."""
