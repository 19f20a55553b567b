"""Which functions are the same, though they are created anew for each call, as a lambda in a loop is."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

_MOST = 64
"""The most functions that are remembered; the oldest is forgotten first."""


def identity(function: Any) -> Any:
    """An identity that is equal for functions created repeatedly from the same code, for example a lambda in a loop."""
    if isinstance(function, types.FunctionType) and not function.__kwdefaults__:
        cells = tuple(id(c.cell_contents) for c in function.__closure__ or ())
        return id(function.__code__), id(function.__globals__), cells, tuple(map(id, function.__defaults__ or ()))
    if isinstance(function, types.MethodType):
        return id(function.__func__), id(function.__self__)
    return id(function)


class MetFunctions:
    """Functions that were called before."""

    def __init__(self) -> None:
        self._met: dict[Any, Callable[..., Any]] = {}  # they stay alive, so that no other gets their identity

    def __contains__(self, function: Callable[..., Any]) -> bool:
        return identity(function) in self._met

    def copy(self) -> MetFunctions:
        other = MetFunctions()
        other._met.update(self._met)
        return other

    def add(self, function: Callable[..., Any]) -> None:
        """Remember a function."""
        key = identity(function)
        if key not in self._met:
            while len(self._met) >= _MOST:
                del self._met[next(iter(self._met))]
            self._met[key] = function
