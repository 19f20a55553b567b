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

from hfta_nb.engine.equality import same_bits, same_entries, same_value

Values = Mapping[str, Any]
"""What a run comes to, by name: tensors, and other values and containers that can be compared."""

Tolerance = Callable[[Tensor], float]
"""The difference that is allowed for a tensor, relative to its largest value: as a rule, from its dtype."""

_FACTOR = 32.0
"""A value may differ this many times as much as a right one does when last bits change."""

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


class Measured(NamedTuple):
    """How far two tensors are from each other.

    Attributes:
        off: by row, the largest difference; infinite where one of two entries is not finite.
        size: by row, the largest finite value that is expected.
        finite: all that is expected is finite.
    """

    off: Sequence[float]
    size: Sequence[float]
    finite: bool = True

    def beyond(self, allowed: Sequence[float]) -> Measured:
        """Differences that are allowed as 0."""
        return self._replace(off=[a if a > b else 0.0 for a, b in zip(self.off, allowed, strict=True)])

    @property
    def least(self) -> float:
        """The smallest difference."""
        return min((a for a in self.off if a), default=0.0)


class _Leaf(NamedTuple):
    name: str
    found: Any
    expected: Any

    @property
    def kind(self) -> str:
        return self.name.partition(" ")[0]


class _Off(NamedTuple):
    """A pair of values that differ.

    Attributes:
        measured: the differences beyond the tolerance, others as 0; None for what is not measured.
        limit: a difference beyond this is no rounding.
    """

    leaf: _Leaf
    measured: Measured | None = None
    limit: float = inf


def compare(
    found: Values,
    expected: Values,
    tolerance: Tolerance,
    members: int = 0,
    again: Callable[[], Values] | None = None,
    factor: float = _FACTOR,
    near: bool = False,
    least: Callable[[str], float] = lambda kind: 0.0,
    diverging: bool = False,
) -> list[Difference]:
    """What differs by more than rounding, in the order of `expected`.

    Args:
        found: what one way comes to; what goes beyond the names of `expected` is not looked at.
        expected: what the other way comes to, which is trusted.
        tolerance: of a tensor that is expected.
        members: tensors with so many rows are compared row by row.
        again: computes another right result, asked for where something differs by more than its tolerance.
        factor: how many times as much as `again` a value may differ.
        near: no value may differ by more than the tolerance of the largest of its kind, whatever `again` says.
        least: of a kind, the difference that is allowed whatever the size of a tensor, relative to the largest value of
            the kind: where roundings are so large that changing last bits does not tell of them.
        diverging: expected tensors that are not finite are left out; else such entries must be the same.
    """
    leaves = [leaf for name, value in expected.items() for leaf in _leaves(name, found.get(name), value)]
    numbers = [leaf for leaf in leaves if _measurable(leaf)]
    far = dict(zip(map(id, numbers), measure([(a, b) for _, a, b in numbers], members), strict=True))
    largest: dict[str, float] = {}
    for leaf in numbers:
        largest[leaf.kind] = max(largest.get(leaf.kind, 0.0), *far[id(leaf)].size)
    off = []
    for leaf in leaves:
        one = far.get(id(leaf))
        if one is None:
            if not _same(leaf):
                off.append(_Off(leaf))
        elif one.finite or not diverging:
            relative, most = tolerance(leaf.expected), largest[leaf.kind]
            last, allowed = _ROUNDINGS * torch.finfo(leaf.expected.dtype).eps * most, least(leaf.kind) * most
            excess = one.beyond([max(relative * size or last, allowed, _NOISE * most) for size in one.size])
            if any(excess.off):
                off.append(_Off(leaf, excess, relative * most if near else inf))
    if again is not None and any(o.measured is None or o.measured.least <= o.limit for o in off):
        off = _beyond(off, again(), expected, tolerance, members, factor)
    return [_difference(leaf, one) for leaf, one, _ in off]


def _beyond(
    off: Sequence[_Off], again: Values, expected: Values, tolerance: Tolerance, members: int, factor: float
) -> list[_Off]:
    """What is further off than `factor` times as much as another right result."""
    others = {leaf.name: leaf for name in expected for leaf in _leaves(name, again.get(name), expected[name])}
    left = []
    for leaf, one, limit in off:
        other = others.get(leaf.name)
        if other is None or not _measurable(other):
            if other is not None and _same(other):
                left.append(_Off(leaf, one, limit))
            continue
        [beside] = measure([(other.found, other.expected)], members)
        if one is None:
            if not any(beside.beyond([tolerance(other.expected) * size for size in beside.size]).off):
                left.append(_Off(leaf))
            continue
        excess = one.beyond([min(factor * a, limit) for a in beside.off])
        if any(excess.off):
            left.append(_Off(leaf, excess, limit))
    return left


def _difference(leaf: _Leaf, one: Measured | None) -> Difference:
    if one is None:
        return Difference(leaf.name)
    row = max(range(len(one.off)), key=one.off.__getitem__)
    return Difference(leaf.name, row if len(one.off) > 1 else None, one.off[row], one.size[row])


@torch.no_grad()
def measure(pairs: Sequence[tuple[Tensor, Tensor]], members: int = 0) -> list[Measured]:
    """How far the first tensor of each pair is from the second one, with few waits for the device.

    Args:
        pairs: of one shape and dtype each.
        members: see `compare`.
    """
    rows = [members if members and b.ndim and len(b) == members else 1 for _, b in pairs]
    bounds = []
    for (found, expected), count in zip(pairs, rows, strict=True):
        a, b = (_wide(t.detach()).reshape(count, -1) for t in (found, expected))
        bounds += [v.abs().amax(1).double() if v.numel() else v.new_zeros(count).double() for v in (a - b, b)]
    values = _listed(bounds)
    result = []
    for (found, expected), off, size in zip(pairs, values[::2], values[1::2], strict=True):
        one = Measured(off, size)
        if not all(map(isfinite, (*off, *size))):
            one = _with_infinite(found, expected, len(off))._replace(finite=all(map(isfinite, size)))
        result.append(one)
    return result


def _with_infinite(found: Tensor, expected: Tensor, count: int) -> Measured:
    """As `measure`, where some entries are not finite: such as are the same in both do not differ."""
    a, b = (_wide(t.detach()).reshape(count, -1) for t in (found, expected))
    away = torch.where(same_entries(a, b), 0.0, (a - b).abs()).nan_to_num(nan=inf, posinf=inf)
    size = torch.where(b.isfinite(), b.abs(), 0.0)
    return Measured(away.amax(1).tolist(), size.amax(1).tolist())


def _wide(tensor: Tensor) -> Tensor:
    """In a dtype in which the difference of two values is a number."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _listed(bounds: Sequence[Tensor]) -> list[list[float]]:
    """Vectors as lists, by one transfer from each device."""
    found: list[list[float]] = [[] for _ in bounds]
    for device in {bound.device for bound in bounds}:
        places = [i for i, bound in enumerate(bounds) if bound.device == device]
        values = iter(torch.cat([bounds[i] for i in places]).tolist())
        for i in places:
            found[i] = [next(values) for _ in range(len(bounds[i]))]
    return found


def _leaves(name: str, found: Any, expected: Any) -> Iterator[_Leaf]:
    """The pairs of values that are compared, those within containers of one structure each by itself."""
    if not (_comparable(found) and _comparable(expected)):
        return
    if isinstance(found, list | tuple) and isinstance(expected, list | tuple) and len(found) == len(expected):
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
    a, b = leaf.found, leaf.expected
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


def saved(tensors: Iterable[Tensor], streams: Streams) -> Callable[[], None]:
    """Save tensors and random streams, in memory of their own; the returned function puts them back."""
    kept, states = [(t, t.clone()) for t in tensors], [state.clone() for state in streams.rows()]

    @torch.no_grad()
    def put_back() -> None:
        if kept:
            torch._foreach_copy_([t for t, _ in kept], [value for _, value in kept])
        streams.put(states)

    return put_back


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
    again: Callable[[], Values],
    kinks: bool = False,
    near: bool = True,
    least: Callable[[str], float] = lambda kind: 0.0,
) -> str:
    """How a second way to run something differs from the first, in words; empty if they are equal up to rounding.

    Args:
        found, expected: what they come to.
        tolerance, near, least: see `compare`.
        members: of the array.
        again: runs the first way with the last bits of parameters changed.
        kinks: allow for units that rounding turns on or off, with their samples' share of the gradients.
    """
    off = compare(found, expected, tolerance, members, again, near=near, least=least)
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
