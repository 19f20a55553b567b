"""The sizes of modules that are to share an array, and what can be told from them without merging the modules."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar

from torch import nn
from torch.nn.parameter import is_lazy

from hfta_nb.engine.array import Blueprint
from hfta_nb.train.plan.building import parameters_of

Shapes = tuple[tuple[str, tuple[int, ...]], ...]
"""Names and shapes of a module's parameters."""


T = TypeVar("T")


def of_module(look: Callable[[nn.Module], T]) -> Callable[[nn.Module], T]:
    """Look at a module once: those of a plan do not change, and each is compared with all that come."""
    found: dict[int, tuple[weakref.ref[nn.Module], T]] = {}  # by number: a module may define its own equality

    @wraps(look)
    def once(module: nn.Module) -> T:
        number = id(module)
        known = found.get(number)
        if known is None or known[0]() is not module:
            known = found[number] = weakref.ref(module, lambda _: found.pop(number, None)), look(module)
        return known[1]

    return once


@dataclass(frozen=True)
class Union:
    """How modules fit into one array.

    Attributes:
        parameters: of a member, with its padding.
    """

    parameters: int


def union(whole: Blueprint | None, modules: Sequence[nn.Module]) -> Union:
    """How modules fit; without a blueprint, of such that are alike but for sizes."""
    if whole is not None:
        return Union(parameters_of(whole.skeleton))
    sizes: dict[str, list[int]] = {}
    for module in modules:
        for name, shape in shapes_of(module):
            known = sizes.setdefault(name, [0] * len(shape))
            sizes[name] = [max(n, m) for n, m in zip(shape, known, strict=True)]
    return Union(sum(math.prod(shape) for shape in sizes.values()))


def alike_but_for_sizes(modules: Sequence[nn.Module]) -> bool:
    """Whether modules have the same submodules, and parameters of the same names and dimensions."""
    first = _names(modules[0])
    return all(_names(module) == first for module in modules[1:])


def plainly_merged(a: nn.Module, b: nn.Module) -> bool:
    """Whether two such modules are sure to fit into one array: they differ in plain numbers, or bare functions."""
    for mine, theirs in zip(a.modules(), b.modules(), strict=True):
        if type(mine) is not type(theirs):
            if any(m._parameters or m._buffers or m._modules for m in (mine, theirs)):
                return False
            continue
        left, right = vars(mine), vars(theirs)
        if left.keys() != right.keys():
            return False
        for name, value in left.items():
            other = right[name]
            if name in ("_parameters", "_buffers", "_modules") or value is other:
                continue
            if type(value) is not type(other) or not isinstance(value, _PLAIN):
                return False
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not (number or _equal(value, other)):
                return False
    return bool(_trained(a) == _trained(b))


def _equal(a: Any, b: Any) -> bool:
    """Whether two values are sure to be equal; tensors without data within them can't be compared."""
    try:
        return bool(a == b)
    except (RuntimeError, NotImplementedError):
        return False


_PLAIN = (bool, int, float, str, tuple, dict, set)
"""Attributes of torch's own modules; containers must be equal."""


def _trained(module: nn.Module) -> Any:
    kept = [m._non_persistent_buffers_set for m in module.modules()]
    return kept, [(p.dtype, p.requires_grad) for p in module.parameters()], [t.dtype for t in module.buffers()]


@of_module
def _names(module: nn.Module) -> Any:
    parts = [(path, bool(m._parameters) and type(m)) for path, m in module.named_modules()]
    return parts, [(name, is_lazy(t) or t.ndim) for name, t in [*module.named_parameters(), *module.named_buffers()]]


@of_module
def shapes_of(module: nn.Module) -> Shapes:
    return tuple((name, () if is_lazy(p) else tuple(p.shape)) for name, p in module.named_parameters())
