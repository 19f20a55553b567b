"""Nodes of autograd graphs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

from torch import Tensor
from torch.autograd.function import BackwardCFunction

_CHECKPOINT = "torch.utils.checkpoint"
_PURE = ("torch.", "hfta_nb.")
"""Modules whose custom functions have a backward without side effects."""


def nodes(tensors: Iterable[Tensor], stop: Collection[Any] = ()) -> Iterator[Any]:
    """The nodes of the graph of some tensors, each once, without those in `stop` and nodes reached through those
    only."""
    passed = set(stop)
    waiting: list[Any] = [t.grad_fn for t in tensors if t.grad_fn is not None]
    while waiting:
        node = waiting.pop()
        if node in passed:
            continue
        passed.add(node)
        yield node
        waiting += [inner for inner, _ in node.next_functions if inner is not None]


def reached(tensors: Iterable[Tensor]) -> set[int]:
    """The ids of the leaves that some tensors depend on and that may get a gradient from them."""
    return {id(node.variable) for node in nodes(tensors) if type(node).__name__ == "AccumulateGrad"}


def own_function(node: Any) -> str:
    """The name of a node's custom `autograd.Function`, if its backward may have side effects; otherwise empty.

    Such a backward may call the module again and differentiate that call.
    """
    if not isinstance(node, BackwardCFunction):
        return ""
    kind: Any = type(node)._forward_cls  # type: ignore[attr-defined]
    pure = kind.__module__.startswith(_PURE) and kind.__module__ != _CHECKPOINT
    return "" if pure else kind.__qualname__
