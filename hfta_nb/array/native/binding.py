"""Kernels of this package, which are bound to their tensors once, called as torch's kernels are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Bind = Callable[[Sequence[Any], Mapping[str, Any]], Callable[[], None]]
"""From the arguments, memory for the results among them by name, to what computes."""


class Binding:
    """Called as one of torch's functions, with memory for its results.

    Attributes:
        bound: binds.
    """

    def __init__(self, bound: Bind) -> None:
        self.bound = bound
        self._given: tuple[Any, ...] = ()
        self._call: Callable[[], None] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        given = *args, *kwargs.values()
        if self._call is None or len(given) != len(self._given) or any(map(_other, given, self._given)):
            self._given, self._call = given, self.bound(args, kwargs)
        self._call()


def _other(one: Any, two: Any) -> bool:
    return one is not two
