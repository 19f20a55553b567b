"""Parameters of build functions that take lists: a grid keeps lists as tuples, which the function does not know."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable
from contextlib import suppress
from typing import Any


def parameters_of(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters of its signature; annotations that can't be evaluated here are left out."""
    try:
        return list(inspect.signature(function, eval_str=True).parameters.values())
    except NameError:
        parameters = inspect.signature(function).parameters.values()
        return [p.replace(annotation=p.empty) if isinstance(p.annotation, str) else p for p in parameters]


def lists_of(function: Callable[..., Any]) -> frozenset[str]:
    """The names of the parameters whose annotation or default says that they are lists."""
    with suppress(TypeError, ValueError):  # there is no signature
        return frozenset(p.name for p in parameters_of(function) if isinstance(p.default, list) or _list(p.annotation))
    return frozenset()


def as_list(value: Any) -> Any:
    """A tuple, and the tuples in it, as lists."""
    return [as_list(v) for v in value] if isinstance(value, tuple) else value


def _list(annotation: Any) -> bool:
    inner = typing.get_origin(annotation)
    if inner is typing.Annotated or inner in (typing.Union, types.UnionType):
        return any(map(_list, typing.get_args(annotation)))
    return annotation is list or inner is list
