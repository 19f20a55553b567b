"""Calls with tensors that each run allocates, as kernels without an `out` form do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hfta_nb.engine.replay.trace import BufferView


@dataclass(frozen=True)
class Fetch:
    """A tensor allocated by a call of this run, or a view of it."""

    storage: int
    view: BufferView | None
    last: bool = False
    """Nothing else uses the tensor afterwards."""

    def get(self, made: list[Any]) -> Tensor:
        base: Tensor = made[self.storage]
        return base if self.view is None else base.as_strided(self.view.size, self.view.stride, self.view.offset)

    def result(self, made: list[Any]) -> Tensor:
        """The tensor for the caller of the program: a copy, unless nothing else uses it."""
        found = self.get(made)
        if not self.last:
            return found.clone()
        made[self.storage] = None  # else it would keep the caller's graph alive
        return found


def copied(gradients: Sequence[tuple[Tensor, Tensor | Fetch]], made: list[Any]) -> None:
    """Copy each gradient to its destination, in one call of torch."""
    if gradients:
        found = [f.get(made) if isinstance(f, Fetch) else f for _, f in gradients]
        torch._foreach_copy_([buffer for buffer, _ in gradients], found)


@dataclass(eq=False)
class DynamicCall:
    """A call whose arguments or results are allocated in the run."""

    function: Callable[..., Any]
    args: Any
    kwargs: Any
    made: list[Any]
    keep: Sequence[tuple[int, int]]
    gone: Sequence[int] = ()

    def __call__(self) -> None:
        made = self.made
        args = [a if isinstance(a, Tensor) else _fetched(a, made) for a in self.args]
        out = self.function(*args, **{k: _fetched(v, made) for k, v in self.kwargs.items()})
        if self.keep:
            parts = out if isinstance(out, tuple | list) else (out,)
            if type(parts[-1]) is list:  # cuDNN's recurrent layers give their weights' gradients so
                parts = [*parts[:-1], *parts[-1]]
            for k, storage in self.keep:
                made[storage] = parts[k]
        for storage in self.gone:
            made[storage] = None


def _fetched(value: Any, made: list[Any]) -> Any:
    if isinstance(value, Fetch):
        return value.get(made)
    if isinstance(value, list | tuple):
        return [_fetched(v, made) for v in value]
    return value


def dynamic(tree: Any) -> bool:
    """True if its arguments contain tensors allocated in the run."""
    if isinstance(tree, list | tuple):
        return any(dynamic(v) for v in tree)
    if isinstance(tree, dict):
        return any(dynamic(v) for v in tree.values())
    return isinstance(tree, Fetch)
