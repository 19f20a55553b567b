"""What functions keep for each member, and what models set, as a tree of tensors and plain data, for a checkpoint."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hfta_nb.engine.eager.attributes import MISSING, Attributes
from hfta_nb.engine.eager.function_states import FunctionStates
from hfta_nb.engine.eager.holders import GONE
from hfta_nb.engine.eager.reach import Reach
from hfta_nb.errors import FusionError

_CONTAINERS: dict[str, Callable[[Any], Any]] = {"list": list, "tuple": tuple, "set": set, "deque": deque}
_WORDS: dict[str, Any] = {"missing": MISSING, "gone": GONE, "none": None}


def state_of(states: FunctionStates, functions: tuple[Any, ...]) -> dict[str, Any]:
    """All that some functions keep.

    A value that is neither plain data nor a tensor is noted by name, so that `load_state` can tell of it.
    """
    if not states.values.values and not states.aside.values:
        return {}
    numbers = {id(holder): i for i, holder in enumerate(Reach(functions).holders)}
    return {name: _entries(values, numbers) for name, values in (("values", states.values), ("aside", states.aside))}


def load_state(states: FunctionStates, functions: tuple[Any, ...], state: Mapping[str, Any]) -> None:
    """Take what `state_of` gave.

    Raises:
        FusionError: a value was not saved, or the functions hold other values than those that were saved.
    """
    holders = Reach(functions).holders if state else []
    for name, values in (("values", states.values), ("aside", states.aside)):
        values.values.clear()
        for number, kind, path, key, saved in state.get(name, ()):
            if saved is None:
                what = "a loss, metric or model keeps a value that no checkpoint holds, so training can't go on"
                accepted = "numbers, words, tensors, and lists and dicts of them"
                raise FusionError(what, where=path, accepted=accepted, remedy="start anew, or keep it in one of these")
            holder = holders[number] if number < len(holders) else None
            if type(holder).__name__ != kind:
                raise FusionError(
                    "the loss, metric or model holds other values than when the checkpoint was saved", where=path
                )
            values.values[holder, read(key)] = [read(v) for v in saved]


def _entries(values: Attributes, numbers: Mapping[int, int]) -> list[list[Any]]:
    found = []
    for (holder, name), own in values.values.items():
        if id(holder) not in numbers:
            continue
        try:
            saved: list[Any] | None = [to_json(v) for v in own]
        except TypeError:
            saved = None
        kind = type(holder).__name__
        found.append([numbers[id(holder)], kind, holder.path(name), to_json(name), saved])
    return found


def to_json(value: Any) -> dict[str, Any]:
    """A value as a tree of tensors and plain data; see `read`.

    Raises:
        TypeError: it is neither plain data nor a tensor or array.
    """
    for word, known in _WORDS.items():
        if value is known:
            return {word: True}
    if isinstance(value, Tensor):
        return {"tensor": value.detach()}
    if isinstance(value, np.ndarray):
        return {"array": torch.from_numpy(value)}
    if isinstance(value, np.generic):
        return {"number": torch.tensor(value)}
    if type(value) in (bool, int, str):
        return {"plain": value}
    if type(value) is float:
        return {"float": value.hex()}  # JSON has no infinity
    if type(value) is dict:
        return {"dict": [[to_json(k), to_json(v)] for k, v in value.items()]}
    if type(value) is deque and value.maxlen is not None:
        return {"window": [to_json(list(value)), value.maxlen]}
    for name, kind in _CONTAINERS.items():
        if type(value) is kind:
            return {name: [to_json(v) for v in value]}
    raise TypeError(type(value).__name__)


def read(tree: Any) -> Any:
    """What `to_json` was given; earlier versions wrote numbers, words and tensors that a model sets as they are."""
    if not isinstance(tree, Mapping):
        return tree.clone() if isinstance(tree, Tensor) else tree
    ((kind, value),) = tree.items()
    if kind in _WORDS:
        return _WORDS[kind]
    if kind == "tensor":
        return value.clone()
    if kind in ("array", "number"):
        return value.numpy().copy()[()]
    if kind == "float":
        return float.fromhex(value)
    if kind == "dict":
        return {read(k): read(v) for k, v in value}
    if kind == "window":
        return deque(read(value[0]), value[1])
    return _CONTAINERS[kind](map(read, value)) if kind in _CONTAINERS else value
