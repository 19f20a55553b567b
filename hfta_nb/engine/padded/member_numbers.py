"""Numbers that differ between members: sizes, head counts, dropout rates.

While members of different architectures run as one, the model's Python code sees a single number in place of each
member's own. Such a number is an `int` or `float` that tracks every member's value through arithmetic, so that its
final use can be computed with the true values.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

from hfta_nb.engine.rules import Disagreement


class Varied:
    """A number with one value per member.

    Attributes:
        values: per member of the block under way, in order.
    """

    values: tuple[Any, ...]

    def __hash__(self) -> int:
        return hash(self.values)

    def __reduce__(self) -> tuple[Any, ...]:
        return (vary, (self.values,))

    def __deepcopy__(self, memo: Any) -> Any:
        return self

    def __bool__(self) -> bool:
        return bool(agreed([bool(v) for v in self.values], "is zero or not", self.values))


class VariedInt(Varied, int):
    """As an `int`, it is the largest value: the size of a tensor that is padded for all members."""

    def __new__(cls, values: Sequence[int]) -> VariedInt:
        number = int.__new__(cls, max(values))
        number.values = tuple(values)
        return number

    def __float__(self) -> float:
        return math.nan  # a result without the members' values must not look valid


class VariedFloat(Varied, float):
    """As a `float`, it is not a number, so that arithmetic that drops the members' values is noticed."""

    def __new__(cls, values: Sequence[float]) -> VariedFloat:
        number = float.__new__(cls, math.nan)
        number.values = tuple(values)
        return number


def vary(values: Sequence[Any]) -> Any:
    """One value if all members agree, otherwise a varied number."""
    first = values[0]
    if all(type(v) is type(first) and v == first for v in values):
        return first
    whole = all(isinstance(v, int) for v in values)
    return VariedInt(values) if whole else VariedFloat([float(v) for v in values])


def value_of(number: Any, row: int) -> Any:
    """A member's value of a number."""
    return number.values[row] if isinstance(number, Varied) else number


def agreed(values: Sequence[Any], what: str, got: Sequence[Any]) -> Any:
    """The one value of all members.

    Raises:
        Disagreement: members have different values, so that their code takes different paths.
    """
    if any(v != values[0] for v in values):
        raise Disagreement(f"the model asks whether a number {what}, and the members' differ: {list(got)}")
    return values[0]


def _arithmetic(function: Callable[..., Any], turned: bool = False) -> Callable[..., Any]:
    def compute(self: Varied, other: Any = None) -> Any:
        if not isinstance(other, int | float):
            return NotImplemented
        others = other.values if isinstance(other, Varied) else (other,) * len(self.values)
        pairs = zip(others, self.values, strict=True) if turned else zip(self.values, others, strict=True)
        return vary([function(a, b) for a, b in pairs])

    return compute


def _comparison(function: Callable[..., Any]) -> Callable[..., Any]:
    def compare(self: Varied, other: Any) -> Any:
        if not isinstance(other, int | float):
            return NotImplemented
        others = other.values if isinstance(other, Varied) else (other,) * len(self.values)
        found = [bool(function(a, b)) for a, b in zip(self.values, others, strict=True)]
        return agreed(found, f"is {function.__name__} another", self.values)

    return compare


def _unary(function: Callable[..., Any]) -> Callable[..., Any]:
    def compute(self: Varied, *args: Any) -> Any:
        return vary([function(v, *args) for v in self.values])

    return compute


_BINARY: dict[str, Callable[..., Any]] = {
    **{n: getattr(operator, n) for n in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")},
    "divmod": divmod,
}
_UNARY: dict[str, Callable[..., Any]] = {"neg": operator.neg, "abs": abs, "round": round}
for _kind in (VariedInt, VariedFloat):
    for _name, _function in _BINARY.items():
        setattr(_kind, f"__{_name}__", _arithmetic(_function))
        setattr(_kind, f"__r{_name}__", _arithmetic(_function, turned=True))
    for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
        setattr(_kind, f"__{_name}__", _comparison(getattr(operator, _name)))
    for _name, _function in _UNARY.items():
        setattr(_kind, f"__{_name}__", _unary(_function))
    setattr(_kind, "__hash__", Varied.__hash__)  # noqa: B010
