"""Attributes that tell how a module was made, which its forward does not read: those of peft's modules and their
configurations.

They may differ between members in any way, as long as that is so.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from enum import Enum
from typing import Any

from torch import Tensor, nn

from hfta_nb.engine.equality import same_value
from hfta_nb.engine.members.held_values import walk
from hfta_nb.engine.padded.member_numbers import vary
from hfta_nb.engine.rules import Disagreement

_PACKAGES = ("peft",)


def keeps_records(value: Any) -> bool:
    """Whether a module or object is of a class whose attributes are such records."""
    return not isinstance(value, type | Enum) and type(value).__module__.partition(".")[0] in _PACKAGES


def unread(x: Any, y: Any) -> bool:
    """Whether two values of an attribute may differ, as neither holds tensors, modules or what chooses a path: a member
    of an enumeration, or an object of another class."""
    if isinstance(x, Enum) or isinstance(y, Enum):
        return same_value(x, y)
    if isinstance(x, dict) and isinstance(y, dict) and list(x) == list(y):
        return all(unread(x[key], y[key]) for key in x)
    if keeps_records(x) and type(x) is type(y) and vars(x).keys() == vars(y).keys():
        return unread(vars(x), vars(y))
    return not any(isinstance(part, Tensor | nn.Module) or keeps_records(part) for part in walk([x, y]))


class DifferingValue:
    """In place of a value that differs between members: code that reads it would have to take several paths.

    Raises:
        Disagreement: at any use.
    """

    def __init__(self, values: Sequence[Any]) -> None:
        self._values = tuple(values)

    def __deepcopy__(self, memo: Any) -> DifferingValue:
        return self

    def _use(self, *args: Any) -> Any:
        raise Disagreement(f"the model reads an attribute that differs between members: {list(self._values)}")

    __bool__ = __len__ = __iter__ = __contains__ = __getitem__ = __eq__ = __call__ = __str__ = __repr__ = _use
    __hash__ = object.__hash__


def recorded(values: Sequence[Any]) -> Any:
    """One value of an attribute for all members: numbers and what is equal can be read."""
    first = values[0]
    if all(isinstance(v, dict) and list(v) == list(first) for v in values):
        return {key: recorded([v[key] for v in values]) for key in first}
    if all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
        return vary(values)
    if all(same_value(v, first) for v in values):
        return first
    if keeps_records(first) and all(type(v) is type(first) and vars(v).keys() == vars(first).keys() for v in values):
        new = copy.copy(first)
        for name, value in recorded([vars(v) for v in values]).items():
            object.__setattr__(new, name, value)
        return new
    return DifferingValue(values)
