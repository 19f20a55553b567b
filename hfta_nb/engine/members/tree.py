"""Flattens the inputs and outputs of a model into leaves, and rebuilds them.

Handles more than `torch.utils._pytree`: dataclasses, unregistered subclasses of dict and tuple (Hugging Face's
`ModelOutput`, `PackedSequence`), and any other object with tensors in its attributes. An overlooked tensor would leave
`vmap` with its member axis hidden.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hfta_nb.engine.members.per_member import PerMember

Rebuild = Callable[[Iterator[Any]], Any]
_MAX_DEPTH = 8


def flatten(tree: Any, sizes: bool = False) -> tuple[list[Any], Rebuild]:
    """The leaves, and a function that builds a tree of the same structure from an iterator of leaves.

    Args:
        sizes: the numbers in slices and in a `torch.Size` are leaves too.
    """
    leaves: list[Any] = []
    return leaves, _visit(tree, leaves, sizes, 0)


def unflatten(rebuild: Rebuild, leaves: Any) -> Any:
    return rebuild(iter(leaves))


def tensor_map(function: Callable[[Tensor], Any], tree: Any) -> Any:
    """The tree with `function` applied to its tensors."""
    leaves, rebuild = flatten(tree)
    return rebuild(function(v) if isinstance(v, Tensor) else v for v in leaves)


def _visit(tree: Any, leaves: list[Any], sizes: bool, depth: int) -> Rebuild:
    if isinstance(tree, Tensor | PerMember | nn.Module | type) or depth > _MAX_DEPTH:
        leaves.append(tree)
        return next
    if isinstance(tree, Mapping) and not _frozen(tree):
        return _mapping(tree, leaves, sizes, depth)
    if isinstance(tree, list | tuple) and (sizes or not isinstance(tree, torch.Size)):
        return _sequence(tree, leaves, sizes, depth)
    if isinstance(tree, slice) and sizes:
        bounds = _sequence((tree.start, tree.stop, tree.step), leaves, sizes, depth)
        return lambda left: slice(*bounds(left))
    if _holds_tensors(tree):
        return _object(tree, leaves, sizes, depth)
    leaves.append(tree)
    return next


def _mapping(tree: Mapping[Any, Any], leaves: list[Any], sizes: bool, depth: int) -> Rebuild:
    keys = list(tree)
    parts = [_visit(tree[k], leaves, sizes, depth + 1) for k in keys]
    plain = type(tree) is dict

    def rebuild(left: Iterator[Any]) -> Any:
        values = {k: part(left) for k, part in zip(keys, parts, strict=True)}
        if plain:
            return values
        new = copy.copy(tree)
        for k, v in values.items():
            new[k] = v  # type: ignore[index]
        return new

    return rebuild


def _sequence(tree: Any, leaves: list[Any], sizes: bool, depth: int) -> Rebuild:
    parts = [_visit(v, leaves, sizes, depth + 1) for v in tree]
    kind = type(tree)

    def rebuild(left: Iterator[Any]) -> Any:
        values = [part(left) for part in parts]
        if kind in (list, tuple):
            return kind(values)
        if hasattr(kind, "_fields"):
            return kind(*values)
        # torch.return_types take one iterable, like tuples and lists.
        return kind(values)

    return rebuild


def _object(tree: Any, leaves: list[Any], sizes: bool, depth: int) -> Rebuild:
    held = _attributes(tree) or {}
    names = list(held)
    parts = [_visit(held[n], leaves, sizes, depth + 1) for n in names]

    def rebuild(left: Iterator[Any]) -> Any:
        new = copy.copy(tree)
        for name, part in zip(names, parts, strict=True):
            object.__setattr__(new, name, part(left))
        return new

    return rebuild


def _frozen(tree: Mapping[Any, Any]) -> bool:
    return not hasattr(tree, "__setitem__")


def _attributes(value: Any) -> dict[str, Any] | None:
    """The attributes of an object, or the fields of a dataclass with slots; None if it has neither."""
    if hasattr(value, "__dict__"):
        held: dict[str, Any] = vars(value)
        return held
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return None


def _holds_tensors(value: Any, depth: int = 0) -> bool:
    if isinstance(value, Tensor | PerMember):
        return True
    if depth > _MAX_DEPTH or isinstance(value, nn.Module | type | str | int | float | bytes) or callable(value):
        return False
    if isinstance(value, Mapping):
        return any(_holds_tensors(v, depth + 1) for v in value.values())
    if isinstance(value, list | tuple):
        return any(_holds_tensors(v, depth + 1) for v in value)
    attributes = _attributes(value)
    return attributes is not None and any(_holds_tensors(v, depth + 1) for v in attributes.values())


def versions(leaves: Sequence[Any]) -> list[int]:
    """For each tensor, how often it has been changed in place; 0 for those of inference mode, which can't be told."""
    return [v._version if isinstance(v, Tensor) and not v.is_inference() else 0 for v in leaves]
