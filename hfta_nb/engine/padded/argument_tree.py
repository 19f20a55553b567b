"""Flattens the arguments of a function, including the numbers in sizes and slices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

Rebuild = Callable[[Iterator[Any]], Any]


def take_apart(tree: Any) -> tuple[list[Any], Rebuild]:
    """The leaves, and a function that builds a tree of the same structure from an iterator of leaves."""
    leaves: list[Any] = []
    return leaves, _visit(tree, leaves)


def _visit(tree: Any, leaves: list[Any]) -> Rebuild:
    if isinstance(tree, Tensor):
        leaves.append(tree)
        return next
    if isinstance(tree, list | tuple):
        return _sequence(type(tree), [_visit(v, leaves) for v in tree])
    if isinstance(tree, dict):
        return _mapping(list(tree), [_visit(v, leaves) for v in tree.values()])
    if isinstance(tree, slice):
        return _sequence(_slice, [_visit(v, leaves) for v in (tree.start, tree.stop, tree.step)])
    leaves.append(tree)
    return next


def _slice(parts: list[Any]) -> slice:
    return slice(*parts)


def _sequence(kind: Any, parts: list[Rebuild]) -> Rebuild:
    named = hasattr(kind, "_fields")

    def rebuild(left: Iterator[Any]) -> Any:
        values = [part(left) for part in parts]
        return kind(*values) if named else kind(values)

    return rebuild


def _mapping(keys: list[Any], parts: list[Rebuild]) -> Rebuild:
    return lambda left: {k: part(left) for k, part in zip(keys, parts, strict=True)}
