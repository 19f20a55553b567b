"""Kernels of this package that are bound to their tensors once and called like torch's kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

Bind = Callable[[Sequence[Any], Mapping[str, Any]], Callable[[], None]]
"""Binds arguments, with memory for the results among them by name; returns the function that computes."""


class Binding:
    """Is called like one of torch's functions, with memory for the results.

    Attributes:
        bound: binds the arguments.
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


def operators(schemas: Mapping[str, str], bound: Mapping[str, Callable[..., Callable[[], None]]]) -> Any:
    """Define more operators in ``torch.ops.hfta_nb``, for tensors on a CPU.

    Args:
        schemas: by name, without the namespace.
        bound: by name, with the namespace: the function that binds an operator's arguments.
    """
    made = torch.library.Library("hfta_nb", "FRAGMENT")  # type: ignore[no-untyped-call]
    for name, schema in schemas.items():
        made.define(name + schema)  # type: ignore[no-untyped-call]
        made.impl(name, _unbound(bound[f"hfta_nb::{name}"]), "CPU")  # type: ignore[no-untyped-call]
    _kept.append(made)
    return torch.ops.hfta_nb


def _unbound(bind: Callable[..., Callable[[], None]]) -> Callable[..., None]:
    def run(*args: Any) -> None:
        bind(*args)()

    return run


_kept: list[torch.library.Library] = []
"""An operator exists as long as the library that defines it."""
