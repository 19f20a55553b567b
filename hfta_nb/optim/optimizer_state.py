"""What one member's optimizer of any class keeps, as tensors and plain data, and back into another one.

That is the state by parameter; what of a group is no plain value; what the class's own `state_dict` has beside these;
and attributes that the class has of its own, optimizers, random streams and dicts by parameter among them.
"""

from __future__ import annotations

import copy
import functools
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hfta_nb.engine.random_streams import STREAMS, go_to, position_of

NO_VALUES = ("params", "param_names")
"""What a group holds that is no hyperparameter."""

_KEYS: dict[str, Callable[[nn.Parameter], Any]] = {"id": id, "parameter": lambda p: p}
"""By which a dict of the class's may have one entry per parameter."""


@functools.cache
def _torchs() -> frozenset[str]:
    """Attributes of every optimizer; an lr scheduler of torch sets the last one.

    Not at import: an optimizer of torch imports the compiler's front end, which takes a second.
    """
    return frozenset({*vars(torch.optim.SGD([torch.zeros(1)], lr=0.1)), "step"})


def state_of_member(member: torch.optim.Optimizer) -> dict[str, Any]:
    """What an optimizer keeps."""
    saved = member.state_dict()
    whole = not {"state", "param_groups"} <= saved.keys()  # the class has a form of its own
    private = [
        {n: v for n, v in group.items() if n not in NO_VALUES and not is_shown(v)}
        for group in ([] if whole else saved["param_groups"])
    ]
    own = {n: v for n, v in vars(member).items() if n not in _torchs()}
    keyed = {n: entries for n, v in own.items() if (entries := _by_number(v, member)) is not None}
    found = {
        "state": {} if whole else saved["state"],
        "groups": private,
        "attributes": {n: v for n, v in own.items() if n not in keyed and _is_plain(v)},
        "within": {n: state_of_member(v) for n, v in own.items() if isinstance(v, torch.optim.Optimizer)},
        "keyed": keyed,
        "windows": {n: (list(v), v.maxlen) for n, v in own.items() if type(v) is deque and _is_plain(list(v))},
        "streams": {n: _listed(position_of(v)) for n, v in own.items() if isinstance(v, STREAMS)},
        "more": saved if whole else {n: v for n, v in saved.items() if n not in ("state", "param_groups")},
    }
    return copy.deepcopy(found)


def restore(member: torch.optim.Optimizer, saved: Mapping[str, Any]) -> None:
    """Give an optimizer what `state_of_member` gave of another one."""
    saved = copy.deepcopy(dict(saved))
    more = saved.get("more", {})
    if {"state", "param_groups"} <= member.state_dict().keys():
        _load(member, {**more, "state": saved["state"]})
    else:
        member.load_state_dict(more)
    for group, private in zip(member.param_groups, saved["groups"], strict=False):
        group.update(private)
    vars(member).update(saved["attributes"])
    vars(member).update({n: deque(held, most) for n, (held, most) in saved.get("windows", {}).items()})
    parameters = _parameters(member)
    for name, (kind, values) in saved.get("keyed", {}).items():
        held = vars(member).setdefault(name, {})
        held.clear()
        held.update({_KEYS[kind](parameters[k]): v for k, v in values.items()})
    for name, position in saved.get("streams", {}).items():
        go_to(getattr(member, name), position)
    for name, inner in saved["within"].items():
        restore(getattr(member, name), inner)


def _load(member: torch.optim.Optimizer, state_dict: dict[str, Any]) -> None:
    """Load the state; the groups stay the same objects, which optimizers within may have as well."""
    sharing = [o for o in _optimizers(member) if o.param_groups is member.param_groups]
    listed, groups = member.param_groups, list(member.param_groups)
    member.load_state_dict({**state_dict, "param_groups": member.state_dict()["param_groups"]})
    for old, new in zip(groups, list(member.param_groups), strict=True):
        old.update(new)
    listed[:] = groups
    for one in sharing:
        one.param_groups = listed


def moved(member: torch.optim.Optimizer, new: Mapping[int, nn.Parameter]) -> None:
    """Name the parameters anew in the dicts that a copy of an optimizer has by their ids.

    Args:
        member: the copy.
        new: its parameters, by the ids of the original's.
    """
    for held in vars(member).values():
        if type(held) is dict and held and held.keys() <= new.keys():
            values = {id(new[k]): v for k, v in held.items()}
            held.clear()
            held.update(values)


def lost(member: torch.optim.Optimizer, saved: Mapping[str, Any]) -> list[str]:
    """Names of attributes of the class that look like state and were not told, where it saves as torch's do."""
    if type(member).state_dict is not torch.optim.Optimizer.state_dict:
        return []
    known = _torchs() | saved["attributes"].keys() | saved["keyed"].keys() | saved["windows"].keys()
    return [name for name, value in vars(member).items() if name not in known and _holds(value)]


def _holds(value: Any) -> bool:
    """Whether a value is a container of something else than parameters and functions."""
    if not isinstance(value, dict | list | set | deque | np.ndarray):
        return False
    held = value.values() if isinstance(value, dict) else value
    return not all(isinstance(one, nn.Parameter) or callable(one) for one in held)


def with_keys(saved: Mapping[str, Any], key: Callable[[Any], Any]) -> dict[str, Any]:
    """The same with other keys in place of the numbers of parameters: words, for one, go through JSON."""
    return {
        **saved,
        "state": {key(k): v for k, v in saved["state"].items()},
        "keyed": {n: (kind, {key(k): v for k, v in own.items()}) for n, (kind, own) in saved.get("keyed", {}).items()},
        "within": {name: with_keys(inner, key) for name, inner in saved["within"].items()},
    }


def numbered(key: str) -> int | str:
    """The number of a parameter that was made a word."""
    return int(key) if key.isdigit() else key


def renamed(names: Mapping[Any, Any]) -> Callable[[Any], Any]:
    """What gives a key's other name, or the key where it has none; for `with_keys`."""
    return lambda key: names.get(key, key)


def shown(group: Mapping[str, Any]) -> dict[str, Any]:
    """Copies of the hyperparameters of a group."""
    return {n: copy.copy(v) for n, v in group.items() if n not in NO_VALUES and is_shown(v)}


def is_shown(value: Any) -> bool:
    """Whether a value of a group is a hyperparameter that can be told."""
    if isinstance(value, tuple | list):
        return all(isinstance(v, int | float | str | None) for v in value)
    return isinstance(value, bool | int | float | str | None)


def _optimizers(optimizer: torch.optim.Optimizer) -> Iterator[torch.optim.Optimizer]:
    """An optimizer and those within it."""
    yield optimizer
    for inner in vars(optimizer).values():
        if isinstance(inner, torch.optim.Optimizer):
            yield from _optimizers(inner)


def _parameters(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _by_number(value: Any, member: torch.optim.Optimizer) -> tuple[str, dict[int, Any]] | None:
    """A dict that has parameters, or their ids, for keys, with their numbers instead."""
    if not isinstance(value, dict) or not value:
        return None
    numbers, keys = {id(p): k for k, p in enumerate(_parameters(member))}, list(value)
    kind = "parameter" if all(isinstance(k, nn.Parameter) for k in keys) else "id"
    ids = [id(k) for k in keys] if kind == "parameter" else keys
    if not all(type(k) is int and k in numbers for k in ids):
        return None
    return kind, {numbers[k]: v for k, v in zip(ids, value.values(), strict=True)}


def _listed(position: Any) -> Any:
    """The position of a random stream, NumPy's arrays as lists: files are read without NumPy's classes."""
    if isinstance(position, dict):
        return {key: _listed(value) for key, value in position.items()}
    return position.tolist() if isinstance(position, np.ndarray) else position


def _is_plain(value: Any) -> bool:
    """Whether a value goes through `torch.load` with weights only."""
    if isinstance(value, Mapping):
        return type(value) is dict and all(isinstance(k, str | int) and _is_plain(v) for k, v in value.items())
    if isinstance(value, tuple | list):
        return type(value) in (tuple, list) and all(map(_is_plain, value))
    return isinstance(value, bool | int | float | str | Tensor | None) and not isinstance(value, torch.nn.Parameter)
