"""Plain attributes that a model changes while it runs (`self.hidden = h`, `self.calls += 1`), kept per member.

Alone, every module has its own. In an array one module stands for all, so what it sets on itself is taken off after
each block, kept by member, and put back before the member's next turn. The first call of a kind watches the content of
all attributes as well (lists, dicts, tensors, NumPy arrays, random streams, objects; see `held`); later calls, the
content of those that have changed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn

from hfta_nb.eager.held import Memo, copied, may_change, put_back, same
from hfta_nb.members.slots import Slots
from hfta_nb.members.tree import flatten, unflatten
from hfta_nb.rules.base import Context, Disagreement

Place = tuple[str, str]
"""Path of a submodule, and the name of an attribute of it."""

_MISSING = object()
_BUFFER = "buffer "
"""Before the name of a buffer that was None, or not there, when the array was made."""

_OWN = frozenset(nn.Module().__dict__)
"""Attributes that every module has; what is in them is watched elsewhere."""

_NO_HOOKS: dict[int, Any] = {}
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
        """The attributes of these members, with a content of their own."""
        other = Attributes(len(indices))
        other.values = {place: [_copy_of(v[i]) for i in indices] for place, v in self.values.items()}
        return other

    def copy_member(self, src: int, dst: int) -> None:
        """Let one member have what another has."""
        for values in self.values.values():
            values[dst] = _copy_of(values[src])

    def keep(self, index: int, changes: Mapping[Place, Any]) -> None:
        """Note what a member's turn has set."""
        for place, value in changes.items():
            self.values.setdefault(place, [_MISSING] * self.members)[index] = value

    def drop(self, index: int) -> None:
        """Let a member have none."""
        for values in self.values.values():
            values[index] = _MISSING

    def of(self, index: int) -> dict[Place, Any]:
        """What to set for a member."""
        return {place: v[index] for place, v in self.values.items() if v[index] is not _MISSING}

    def together(self, indices: Sequence[int], context: Context, apart: Collection[str] = ()) -> dict[Place, Any]:
        """What to set for several members that run at once.

        Args:
            indices: the members.
            context: of the call.
            apart: paths of submodules that members run through one by one, where each sets its own.

        Raises:
            Disagreement: they have values that can't stand beside each other.
        """
        rows = [{place: v for place, v in self.of(i).items() if not within(place[0], apart)} for i in indices]
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
                own = [v.select(0, i) if isinstance(v, Tensor) else _copy_of(v) for v in stacked]
                self.keep(index, {place: unflatten(rebuild, own)})


def within(path: str, paths: Collection[str]) -> bool:
    """Whether a path is one of these or below it."""
    return any(path == other or not other or path.startswith(f"{other}.") for other in paths)


@contextmanager
def taken_off(
    root: nn.Module,
    slots: Slots,
    given: Mapping[Place, Any],
    changes: dict[Place, Any],
    deep: bool = False,
    keep: bool = False,
) -> Iterator[None]:
    """Within, the modules have the attributes `given`; afterwards they are as before; `changes` gets what was set.

    Hooks that were installed count as attributes, and so do buffers that were None.

    Args:
        root: the module.
        slots: its tensors, which are no attributes.
        given: by place, what to set first.
        changes: filled with what is another object than before, or the same with another content.
        deep: watch the content of all attributes, not of those in `given` alone.
        keep: leave the attributes as they are in the end.
    """
    modules = dict(root.named_modules())
    known = set(slots.buffers)

    def held() -> dict[str, dict[str, Any]]:
        return {path: _state(m, path, known) for path, m in modules.items()}

    before = held()
    for (path, name), value in given.items():
        _set(modules[path], name, value)
    start = held() if given else before
    contents = _contents(root, start, None if deep else given)
    try:
        yield
    finally:
        now = held()
        for path, module in modules.items():
            for name, value in now[path].items():
                if not _same(name, value, start[path].get(name, _MISSING)) and not _is_cache(module, name):
                    changes[path, name] = value
            if not keep:
                _restore(module, now[path], before[path])
        for (path, name), content in contents.items():
            value = now[path].get(name, _MISSING)
            with suppress(Exception):  # what can't be compared while a call fails is no loss: the call is made again
                if value is start[path].get(name) and not same(value, content):
                    changes[path, name] = _copy_of(value)
                    if not keep:
                        _set(modules[path], name, _back(before[path].get(name, _MISSING), value, content))


def _restore(module: nn.Module, now: Mapping[str, Any], before: Mapping[str, Any]) -> None:
    """Let a module's attributes be the same objects as before."""
    for name in now:
        if name not in before:
            _remove(module, name)
    for name, value in before.items():
        if not _same(name, value, now.get(name, _MISSING)):
            _set(module, name, value)


def _contents(root: nn.Module, state: Mapping[str, Mapping[str, Any]], only: Any) -> dict[Place, Any]:
    """Copies of attributes whose content may change; what can't be copied is not watched."""
    modules = dict(root.named_modules())
    wanted = [
        (path, name, value)
        for path, held in state.items()
        for name, value in held.items()
        if name not in _OWN
        and (only is None or (path, name) in only)
        and not _is_cache(modules[path], name)
        and may_change(value)
    ]
    found: dict[Place, Any] = {}
    if not wanted:
        return found
    memo: Memo = {id(v): v for module in root.modules() for v in module._buffers.values() if v is not None}
    memo |= {id(own): own for own in (*root.parameters(), *root.modules())}
    for path, name, value in wanted:
        with suppress(TypeError):
            found[path, name] = copied(value, memo)
    return found


def _copy_of(value: Any) -> Any:
    try:
        return copied(value, {})
    except TypeError:
        return value


def _back(own: Any, value: Any, content: Any) -> Any:
    """What stood at a place before the call, where the content of `value`, which stood there in it, has changed."""
    restored = put_back(value, content)
    return restored if own is value else own


def _is_cache(module: nn.Module, name: str) -> bool:
    """Recurrent modules keep their parameters in a list as well, and make it anew when they see others."""
    return isinstance(module, nn.RNNBase) and name in ("_flat_weights", "_flat_weight_refs")


def _state(module: nn.Module, path: str, known: Collection[str]) -> dict[str, Any]:
    """The attributes of a module; hooks as copies of their dicts, and buffers that are no `known` ones."""
    held = dict(module.__dict__)
    for name in _HOOKS:
        held[name] = dict(held[name]) if held.get(name) else _NO_HOOKS
    for name, buffer in module._buffers.items():
        if (f"{path}.{name}" if path else name) not in known:
            held[_BUFFER + name] = buffer
    return held


def _same(name: str, a: Any, b: Any) -> bool:
    return a == b if name in _HOOKS else a is b


def _set(module: nn.Module, name: str, value: Any) -> None:
    if name.startswith(_BUFFER):
        module._buffers[name.removeprefix(_BUFFER)] = value
    elif name in _HOOKS:  # handles to remove a hook know the dict, so it stays
        hooks = module.__dict__[name]
        hooks.clear()
        hooks.update(value)
    else:
        module.__dict__[name] = value


def _remove(module: nn.Module, name: str) -> None:
    if name.startswith(_BUFFER):
        del module._buffers[name.removeprefix(_BUFFER)]
    else:
        del module.__dict__[name]


def put(root: nn.Module, given: Mapping[Place, Any]) -> None:
    """Set attributes for good, tensors as detached copies."""
    for (path, name), value in given.items():
        if name in _HOOKS:
            _set(root.get_submodule(path), name, value)
            continue
        leaves, rebuild = flatten(value)
        own = [v.detach().clone() if isinstance(v, Tensor) else v for v in leaves]
        _set(root.get_submodule(path), name, _copy_of(unflatten(rebuild, own)))


def _agree(a: Any, b: Any) -> bool:
    try:
        return same(a, b) or bool(a == b)
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
            out.append(_copy_of(column[0]))
        else:
            raise Disagreement(f"members have different values of {'.'.join(filter(None, place))}")
    del first
    return unflatten(rebuild, out)
