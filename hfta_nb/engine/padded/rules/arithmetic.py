"""Arithmetic of two tensors with broadcasting, and products of matrices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from hfta_nb.engine.padded.member_numbers import Varied
from hfta_nb.engine.padded.mode import PaddedMode, Rule
from hfta_nb.engine.padded.rules.elementwise import named
from hfta_nb.engine.padded.tags import Counts, Tag, full


def _joint(a: Any, b: Any) -> tuple[Tag, bool, bool] | None:
    """The result's tag, and for each operand whether its padding covers that of the result; None if sizes do not
    match."""
    tags = [full(v) if isinstance(v, Tensor) else () for v in (a, b)]
    shapes = [tuple(v.shape) if isinstance(v, Tensor) else () for v in (a, b)]
    ndim = max(len(t) for t in tags)
    lined = [(None,) * (ndim - len(t)) + tuple(t) for t in tags]
    sizes = [(1,) * (ndim - len(s)) + s for s in shapes]
    out = []
    for (s, t), (m, n) in zip(zip(*lined, strict=True), zip(*sizes, strict=True), strict=True):
        if s is not None and t is not None and s != t:
            return None
        # A padded dimension can be broadcast against one with a single entry, but against no other.
        if (s is None and t is not None and m != 1) or (t is None and s is not None and n != 1):
            return None
        out.append(s if s is not None else t)
    tag = tuple(out)
    return tag, lined[0] == tag, lined[1] == tag


def _operands(mode: PaddedMode, args: Any) -> tuple[Any, Any]:
    """Both operands, with a varied number as a tensor."""
    a, b = args[:2]
    if isinstance(a, Varied) and isinstance(b, Tensor):
        a = mode.numbers(a.values, b)
    if isinstance(b, Varied) and isinstance(a, Tensor):
        b = mode.numbers(b.values, a)
    return a, b


def _binary(clean: Callable[[bool, bool], bool], fill: tuple[float | None, float | None] = (None, None)) -> Rule:
    """A rule for a function of two tensors.

    Args:
        clean: decides from the operands' coverage whether the result's padding is zero without further work.
        fill: the value for the operands' padding for which value and slope are finite.
    """

    def rule(mode: PaddedMode, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if len(args) < 2 or any(isinstance(v, Varied | Tensor) for v in [*args[2:], *kwargs.values()]):
            return NotImplemented
        a, b = _operands(mode, args)
        found = _joint(a, b)
        if found is None or (isinstance(args[1], Varied) and not a.is_floating_point()):
            return NotImplemented
        tag, first, second = found
        operands = [
            mode.filled(v, full(v), f) if f is not None and isinstance(v, Tensor) else v
            for v, f in zip((a, b), fill, strict=True)
        ]
        out = function(*operands, *args[2:], **kwargs)
        return mode.result(out, tag, zero=not clean(first, second))

    return rule


def _masked(mode: PaddedMode, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """The rule for replacing entries by a number according to a mask."""
    if len(args) != 3 or kwargs or isinstance(args[2], Varied | Tensor):
        return NotImplemented
    found = _joint(args[0], args[1])
    return NotImplemented if found is None else mode.result(function(*args), found[0], zero=True)


def _written(rule: Rule, function: Callable[..., Any]) -> Rule:
    """The rule for the in-place form, which writes into its first operand."""

    def write(mode: PaddedMode, _: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        target = args[0]
        if not mode.context.batched(target):
            return NotImplemented
        out = rule(mode, function, args, kwargs)
        if out is NotImplemented or full(out) != full(target) or out.shape != target.shape:
            return NotImplemented
        target.copy_(out)
        return target

    return write


def _product(mode: PaddedMode, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    if len(args) != 2 or kwargs:
        return NotImplemented
    a, b = args
    if not (isinstance(a, Tensor) and isinstance(b, Tensor)) or min(a.ndim, b.ndim) < 2:
        return NotImplemented
    s, t = full(a), full(b)
    batch = _batch(s[:-2], t[:-2], a.shape[:-2], b.shape[:-2])
    if s[-1] != t[-2] or batch is None:
        return NotImplemented
    return mode.result(function(a, b), (*batch, s[-2], t[-1]))


def _batch(s: Tag, t: Tag, m: Sequence[int], n: Sequence[int]) -> Tag | None:
    ndim = max(len(s), len(t))
    out: list[Counts | None] = []
    for d in range(-ndim, 0):
        u, v = (tag[d] if -d <= len(tag) else None for tag in (s, t))
        wide = [shape[d] if -d <= len(shape) else 1 for shape in (m, n)]
        if u != v and not (u is None and wide[0] == 1) and not (v is None and wide[1] == 1):
            return None
        out.append(u if u is not None else v)
    return tuple(out)


def _einsum(mode: PaddedMode, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    equation, *operands = args
    if len(operands) == 1 and isinstance(operands[0], list | tuple):
        operands = list(operands[0])
    if not isinstance(equation, str) or "." in equation or "->" not in equation:
        return NotImplemented
    left, right = equation.replace(" ", "").split("->")
    counts: dict[str, Counts | None] = {}
    for letters, operand in zip(left.split(","), operands, strict=True):
        for letter, own in zip(letters, full(operand), strict=True):
            if counts.setdefault(letter, own) != own:
                return NotImplemented
    return mode.result(function(*args, **kwargs), [counts[letter] for letter in right])


_both: Callable[[bool, bool], bool] = lambda a, b: a and b  # noqa: E731
_either: Callable[[bool, bool], bool] = lambda a, b: a or b  # noqa: E731
_first: Callable[[bool, bool], bool] = lambda a, b: a  # noqa: E731
_never: Callable[[bool, bool], bool] = lambda a, b: False  # noqa: E731

_SUM, _PRODUCT = _binary(_both), _binary(_either)
_QUOTIENT, _TURNED = _binary(_first, (None, 1.0)), _binary(_never, (1.0, None))
_OTHER = _binary(_never, (0.5, 0.5))

_TABLE: dict[Rule, tuple[str, ...]] = {
    _SUM: (
        *("add", "__add__", "__radd__", "sub", "subtract", "__sub__", "__rsub__", "rsub"),
        *("maximum", "minimum", "fmax", "fmin"),
    ),
    _PRODUCT: ("mul", "multiply", "__mul__", "__rmul__"),
    _QUOTIENT: ("div", "divide", "true_divide", "__truediv__", "__div__"),
    _TURNED: ("__rtruediv__", "__rdiv__"),
    _OTHER: (
        *("pow", "__pow__", "__rpow__", "atan2", "hypot", "eq", "ne", "lt", "le", "gt", "ge"),
        *("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "logical_and", "logical_or", "logical_xor"),
    ),
}
_WRITING: dict[Callable[..., Any], tuple[str, ...]] = {
    torch.add: ("add_", "__iadd__"),
    torch.sub: ("sub_", "__isub__"),
    torch.mul: ("mul_", "__imul__"),
    torch.div: ("div_", "__itruediv__", "__idiv__"),
}

RULES: dict[object, Rule] = {function: rule for rule, names in _TABLE.items() for function in named(*names)}
RULES |= {
    getattr(Tensor, name): _written(RULES[function], function)
    for function, names in _WRITING.items()
    for name in names
    if hasattr(Tensor, name)
}
RULES |= dict.fromkeys(named("matmul", "__matmul__", "bmm", "mm"), _product)
RULES[torch.einsum] = _einsum
RULES |= dict.fromkeys((torch.masked_fill, Tensor.masked_fill), _masked)
