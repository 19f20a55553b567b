"""Trees of tensors and plain data: the tensors go into a file of their own, and the rest into JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

_TENSOR = "__tensor__"
_ITEMS = "__items__"
"""Of a mapping with numbers for keys, which JSON has not: `torch.optim.lr_scheduler.MultiStepLR` has such a one."""


def take_tensors(tree: Any, found: dict[str, Tensor], path: str = "") -> Any:
    """The tree with the name of a tensor in each tensor's place; the tensors are added to `found`."""
    if isinstance(tree, Tensor):
        found[path] = tree
        return {_TENSOR: path}
    if isinstance(tree, Mapping) and any(isinstance(k, int) for k in tree):
        return {_ITEMS: [[k, take_tensors(v, found, f"{path}/{k}")] for k, v in tree.items()]}
    if isinstance(tree, Mapping):
        return {str(k): take_tensors(v, found, f"{path}/{k}") for k, v in tree.items()}
    if isinstance(tree, list | tuple):
        return [take_tensors(v, found, f"{path}/{i}") for i, v in enumerate(tree)]
    return tree


def put_tensors(tree: Any, found: Mapping[str, Tensor]) -> Any:
    """The tree that `take_tensors` was given.

    Raises:
        KeyError: a tensor is missing.
    """
    if isinstance(tree, dict):
        if set(tree) == {_TENSOR}:
            return found[str(tree[_TENSOR])]
        if set(tree) == {_ITEMS}:
            return {k: put_tensors(v, found) for k, v in tree[_ITEMS]}
        return {k: put_tensors(v, found) for k, v in tree.items()}
    return [put_tensors(v, found) for v in tree] if isinstance(tree, list) else tree
