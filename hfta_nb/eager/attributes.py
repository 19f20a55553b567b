"""Plain attributes that a model changes while it runs (`self.hidden = h`, `self.calls += 1`), kept per member.

Alone, every module has its own. In an array one module stands for all, so what it sets on itself is taken off after
each block, kept by member, and put back before the member's next turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from hfta_nb.members.tree import flatten, unflatten
from hfta_nb.rules.base import Context, Disagreement

Place = tuple[str, str]
"""Path of a submodule, and the name of an attribute of it."""

_MISSING = object()
_HOOKS = tuple(k for k, v in nn.Module().__dict__.items() if "hooks" in k and isinstance(v, dict))


class Attributes:
    """The attributes that members have of their own.

    Attributes:
        values: per place, one value per member; a member that never came by has none.
    """

    def __init__(self, members: int) -> None:
        self.members = members
        self.values: dict[Place, list[Any]] = {}

    def copy(self) -> Attributes:
        return self.select(range(self.members))

    def select(self, indices: Sequence[int]) -> Attributes:
        other = Attributes(len(indices))
        other.values = {place: [v[i] for i in indices] for place, v in self.values.items()}
        return other

    def keep(self, index: int, changes: Mapping[Place, Any]) -> None:
        """Note what a member's turn has set."""
        for place, value in changes.items():
            self.values.setdefault(place, [_MISSING] * self.members)[index] = value

    def of(self, index: int) -> dict[Place, Any]:
        """What to set for a member."""
        return {place: v[index] for place, v in self.values.items() if v[index] is not _MISSING}

    def together(self, indices: Sequence[int], context: Context) -> dict[Place, Any]:
        """What to set for several members that run at once.

        Raises:
            Disagreement: they have values that can't stand beside each other.
        """
        rows = [self.of(i) for i in indices]
        if any(row.keys() != rows[0].keys() for row in rows):
            raise Disagreement("members differ in which attributes they have set")
        return {
            # Hooks that were installed twice are functions of their own each, but do the same.
            place: rows[0][place] if place[1] in _HOOKS else _joined([row[place] for row in rows], context, place)
            for place in rows[0]
        }

    def apart(self, indices: Sequence[int], changes: Mapping[Place, Any], context: Context) -> None:
        """Note what several members' turn has set."""
        for place, value in changes.items():
            if place[1] in _HOOKS:
                for index in indices:
                    self.keep(index, {place: value})
                continue
            leaves, rebuild = flatten(value)
            stacked = [context.stacked(v) if isinstance(v, Tensor) else v for v in leaves]
            for i, index in enumerate(indices):
                own = [v.select(0, i) if isinstance(v, Tensor) else v for v in stacked]
                self.keep(index, {place: unflatten(rebuild, own)})


@contextmanager
def taken_off(root: nn.Module, given: Mapping[Place, Any], changes: dict[Place, Any]) -> Iterator[None]:
    """Within, the modules have the attributes `given`; afterwards they are as before; `changes` gets what was set.

    Hooks that were installed count as attributes.
    """
    modules = dict(root.named_modules())
    before = {path: _state(m) for path, m in modules.items()}
    for (path, name), value in given.items():
        _set(modules[path], name, value)
    start = {path: _state(m) for path, m in modules.items()} if given else before
    try:
        yield
    finally:
        for path, module in modules.items():
            now = _state(module)
            changed = [k for k, v in now.items() if not _same(k, v, start[path].get(k, _MISSING))]
            changes.update({(path, k): now[k] for k in changed if not _is_cache(module, k)})
            for name in now:
                if name not in before[path]:
                    del module.__dict__[name]
            for name, value in before[path].items():
                if not _same(name, value, now.get(name, _MISSING)):
                    _set(module, name, value)


def _is_cache(module: nn.Module, name: str) -> bool:
    """Recurrent modules keep their parameters in a list as well, and make it anew when they see others."""
    return isinstance(module, nn.RNNBase) and name in ("_flat_weights", "_flat_weight_refs")


def _state(module: nn.Module) -> dict[str, Any]:
    return {k: dict(v) if k in _HOOKS else v for k, v in module.__dict__.items()}


def _same(name: str, a: Any, b: Any) -> bool:
    return a == b if name in _HOOKS else a is b


def _set(module: nn.Module, name: str, value: Any) -> None:
    if name in _HOOKS:  # handles to remove a hook know the dict, so it stays
        hooks = module.__dict__[name]
        hooks.clear()
        hooks.update(value)
    else:
        module.__dict__[name] = value


def put(root: nn.Module, given: Mapping[Place, Any]) -> None:
    """Set attributes for good, tensors as detached copies."""
    for (path, name), value in given.items():
        if name in _HOOKS:
            _set(root.get_submodule(path), name, value)
            continue
        leaves, rebuild = flatten(value)
        own = [v.detach().clone() if isinstance(v, Tensor) else v for v in leaves]
        root.get_submodule(path).__dict__[name] = unflatten(rebuild, own)


def _agree(a: Any, b: Any) -> bool:
    try:
        return a is b or bool(a == b)
    except Exception:  # what can't be shown to be the same is not
        return False


def _joined(values: list[Any], context: Context, place: Place) -> Any:
    parts = [flatten(v) for v in values]
    first, rebuild = parts[0]
    out = []
    for column in zip(*(leaves for leaves, _ in parts), strict=True):
        if isinstance(column[0], Tensor):
            with context.outside():
                stacked = torch.stack(column)
            out.append(context.wrapped(stacked))
        elif all(_agree(v, column[0]) for v in column):
            out.append(column[0])
        else:
            raise Disagreement(f"members have different values of {'.'.join(filter(None, place))}")
    del first
    return unflatten(rebuild, out)
