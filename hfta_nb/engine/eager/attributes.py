"""Plain attributes that a model changes while it runs (`self.hidden = h`, `self.calls += 1`), kept per member.

Each plain module has its own attributes, but in an array one module stands for all members. Attributes that a model
sets are therefore removed after each block, stored per member, and restored before the member runs again. The first
call of a kind also tracks the content of all attributes (lists, dicts, tensors, NumPy arrays, random streams, objects;
see `mutable_values`). Later calls track the content of attributes that have changed before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, Self

from torch import Tensor, nn

from hfta_nb.engine.eager.joined_values import copies_of, joined_rows, with_tensors
from hfta_nb.engine.eager.module_references import note_references, rebound
from hfta_nb.engine.eager.mutable_values import (
    Memo,
    copy_value,
    is_mutable,
    may_overwrite,
    overwrite,
    restore_all,
)
from hfta_nb.engine.eager.new_parameters import no_new_parameters
from hfta_nb.engine.eager.shared_memory import overlapping, parts, view_error
from hfta_nb.engine.equality import same_value
from hfta_nb.engine.members.held_values import walk
from hfta_nb.engine.members.tensor_slots import TensorSlots
from hfta_nb.engine.rules.rule_mode import Context, Disagreement

AttributeKey = tuple[str, str]
"""Path of a submodule, and the name of its attribute."""

MISSING = type("MISSING", (), {})
"""In place of the value of an attribute that a module does not have; a class, which copies as itself."""
_BUFFER = "buffer "
"""Prefix of the names of buffers that were None or missing when the array was created."""

OWN = frozenset(nn.Module().__dict__)
"""Attributes that every module has; their content is tracked elsewhere."""

EMPTY: Mapping[int, Tensor] = {}

_NO_HOOKS: dict[int, Any] = {}
_HOOKS = tuple(k for k, v in nn.Module().__dict__.items() if "hooks" in k and isinstance(v, dict))


class Attributes:
    """The attributes that members have set.

    Attributes:
        values: for each attribute, one value per member; members that have not set it have none.
    """

    def __init__(self, members: int) -> None:
        self.members = members
        self.values: dict[Any, list[Any]] = {}

    def copied(self, value: Any) -> Any:
        """A copy of a member's value; the value itself where it can't be copied."""
        return self.copies({"": value})[""]

    def copies(self, values: Mapping[Any, Any], tensors: Mapping[int, Tensor] = EMPTY) -> dict[Any, Any]:
        """Copies of the values of one member; what two places share, as a random stream, their copies share.

        Args:
            values: by place.
            tensors: what they hold in place of some tensors, by the ids of those.
        """
        return copies_of(values, {**tensors})

    def copy(self) -> Self:
        return self.select(range(self.members))

    def select(self, indices: Sequence[int]) -> Self:
        """Copies of the attributes of these members."""
        other = type(self)(len(indices))
        if not self.values:  # in each step of most arrays
            return other
        rows = [self.copies({place: v[i] for place, v in self.values.items()}) for i in indices]
        other.values = {place: [row[place] for row in rows] for place in self.values}
        return other

    def copy_member(self, src: int, dst: int) -> None:
        """Copy the attributes of member `src` to member `dst`."""
        for place, value in self.copies({place: v[src] for place, v in self.values.items()}).items():
            self.values[place][dst] = value

    def keep(self, index: int, changes: Mapping[Any, Any]) -> None:
        """Store what one member has set."""
        for place, value in changes.items():
            self.values.setdefault(place, [MISSING] * self.members)[index] = value

    def assign(self, values: Mapping[Any, Sequence[Any]]) -> None:
        """Give the members copies of these values, by place; or `MISSING`, none."""
        rows = [self.copies({place: v[i] for place, v in values.items()}) for i in range(self.members)]
        self.values.update({place: [row[place] for row in rows] for place in values})

    def rewrite(self, place: Any, values: Sequence[Any]) -> bool:
        """Give the members' own objects other content, as another place may hold the same ones; False for not done."""
        held = self.values.get(place, ())
        pairs = list(zip(held, map(self.copied, values), strict=True)) if held else []
        return bool(pairs) and all(may_overwrite(*pair) for pair in pairs) and all(overwrite(*pair) for pair in pairs)

    def drop(self, index: int) -> None:
        """Remove all attributes of a member."""
        for values in self.values.values():
            values[index] = MISSING

    def of(self, index: int) -> dict[Any, Any]:
        """The attributes to set for a member."""
        return {place: v[index] for place, v in self.values.items() if v[index] is not MISSING}

    def for_block(
        self, indices: Sequence[int], context: Context, one_by_one: Collection[str] = ()
    ) -> dict[AttributeKey, Any]:
        """The attributes to set for several members that run at once.

        Args:
            indices: the members.
            context: of the call.
            one_by_one: paths of submodules that run member by member and set attributes for each member.

        Raises:
            Disagreement: the members' values cannot be combined.
        """
        rows = [{place: v for place, v in self.of(i).items() if not is_below(place[0], one_by_one)} for i in indices]
        if any(row.keys() != rows[0].keys() for row in rows):
            raise Disagreement("members differ in which attributes they have set")
        # Hooks that were installed for each member are different functions that do the same.
        hooks = {place: value for place, value in rows[0].items() if place[1] in _HOOKS}
        return hooks | joined_rows([{p: v for p, v in row.items() if p not in hooks} for row in rows], context)

    def keep_block(self, indices: Sequence[int], changes: Mapping[Any, Any], context: Context) -> None:
        """Store what several members that ran at once have set."""
        hooks = {place: value for place, value in changes.items() if place[1] in _HOOKS}
        held = {place: value for place, value in changes.items() if place not in hooks}
        tensors = {id(v): v for v in walk(held.values()) if isinstance(v, Tensor)}
        # Not `select`, whose backward has the size of all members for each of them.
        rows = {key: context.stacked(v).unbind(0) for key, v in tensors.items()}
        for i, index in enumerate(indices):
            own = {key: row[i] for key, row in rows.items()}
            self.keep(index, hooks | with_tensors(held, self.copies(held, own), own))


def is_ordinary(name: str) -> bool:
    """False for the names under which hooks and buffers are tracked."""
    return name not in _HOOKS and not name.startswith(_BUFFER)


def is_below(path: str, paths: Collection[str]) -> bool:
    """True if a path is one of `paths` or below it."""
    return any(path == other or not other or path.startswith(f"{other}.") for other in paths)


@contextmanager
def tracked_attributes(
    root: nn.Module,
    slots: TensorSlots,
    given: Mapping[AttributeKey, Any],
    changes: dict[AttributeKey, Any],
    deep: bool = False,
    keep: bool = False,
    prefix: str = "",
    views: Collection[AttributeKey] = (),
) -> Iterator[None]:
    """Set attributes within the context and track changes of attributes; restore the old attributes on exit.

    Hooks that were installed count as attributes, and so do buffers that were None.

    Args:
        root: the module.
        slots: the slots of its tensors, which do not count as attributes.
        given: values to set first.
        changes: receives attributes with a new object, or with changed content.
        deep: track the content of all attributes, not only of those in `given`.
        keep: do not restore the old attributes.
        prefix: the path of `root` in the model.
        views: attributes that are views of what members have copies of. Writing into one is a FusionError.
    """
    modules = dict(root.named_modules())
    known = set(slots.buffers)

    def held() -> dict[str, dict[str, Any]]:
        return {path: _state(m, path, known) for path, m in modules.items()}

    before = held()
    for (path, name), value in given.items():
        _set(modules[path], name, rebound(value, modules, prefix))
    start = held() if given else before
    contents, memo = _contents(modules, start, None if deep else given)
    try:
        with no_new_parameters(root) if deep else nullcontext():
            yield
    finally:
        now = held()
        for path, module in modules.items():
            changes |= _new(module, path, now[path], start[path])
            if not keep:
                _restore(module, now[path], before[path])
        values = {(path, name): start[path].get(name, MISSING) for path, name in contents}
        altered = {place: value for place, value in values.items() if not _unchanged(value, contents[place])}
        written = {place: value for place, value in altered.items() if now[place[0]].get(place[1], MISSING) is value}
        after = {(path, name): now[path].get(name) for path, name in contents} if written else {}
        apart = {place for place, _ in overlapping(parts(after))}.union(views) & written.keys()
        with suppress(Exception):  # an error here only occurs in a call that is repeated
            changes.update(copies_of(written | _holding(changes, written), {}))
        if altered and not keep:
            lost = restore_all(memo)  # also of an object that the module has replaced
            for (path, name), value in altered.items():
                own = before[path].get(name, MISSING)
                _set(modules[path], name, lost.get(id(value), own) if own is value else own)
        note_references(changes.values(), modules, prefix)
    if apart:
        raise view_error("the model", ", ".join(sorted(".".join(filter(None, place)) for place in apart)))


def values_of(root: nn.Module, slots: TensorSlots, places: Collection[AttributeKey]) -> dict[AttributeKey, Any]:
    """Copies of the values that a module has of some attributes; None where it has none."""
    modules, known = dict(root.named_modules()), set(slots.buffers)
    held = {path: _state(modules[path], path, known) for path in {p for p, _ in places} if path in modules}
    return copies_of({(path, name): held[path].get(name) for path, name in places if path in held}, {})


class AttributesBefore:
    """The attributes of a module at some time, with their content.

    Args:
        root: the module.
        slots: the slots of its tensors, which do not count as attributes.
    """

    def __init__(self, root: nn.Module, slots: TensorSlots) -> None:
        self._modules, self._known = dict(root.named_modules()), set(slots.buffers)
        self._held = self._now()
        self._contents, _ = _contents(self._modules, self._held, None)

    def _now(self) -> dict[str, dict[str, Any]]:
        return {path: _state(m, path, self._known) for path, m in self._modules.items()}

    def changes(self) -> dict[AttributeKey, Any]:
        """The attributes that have changed since then, in place or not."""
        now, found, written = self._now(), dict[AttributeKey, Any](), dict[AttributeKey, Any]()
        for path, module in self._modules.items():
            found |= _new(module, path, now[path], self._held[path])
        for (path, name), content in self._contents.items():
            value = now[path].get(name, MISSING)
            if value is self._held[path].get(name) and not same_value(value, content):
                written[path, name] = value
        found |= copies_of(written | _holding(found, written), {})
        note_references(found.values(), self._modules, "")
        return found


def _new(module: nn.Module, path: str, now: Mapping[str, Any], old: Mapping[str, Any]) -> dict[AttributeKey, Any]:
    """The attributes of a module that are other objects than before."""
    found = {}
    for name, value in now.items():
        was = old.get(name, MISSING)
        if value is not was and not _same(name, value, was) and not is_cache(module, name):
            found[path, name] = value
    return found


def _restore(module: nn.Module, now: Mapping[str, Any], before: Mapping[str, Any]) -> None:
    """Restore a module's attributes to the same objects as before."""
    for name in now:
        if name not in before:
            _remove(module, name)
    for name, value in before.items():
        current = now.get(name, MISSING)
        if value is not current and not _same(name, value, current):
            _set(module, name, value)


def _contents(
    modules: Mapping[str, nn.Module], state: Mapping[str, Mapping[str, Any]], only: Any
) -> tuple[dict[AttributeKey, Any], Memo]:
    """Copies of attributes whose content may change, and their memo; what cannot be copied is not tracked."""
    wanted = [
        (path, name, value)
        for path, held in state.items()
        for name, value in held.items()
        if name not in OWN
        and (only is None or (path, name) in only)
        and not is_cache(modules[path], name)
        and is_mutable(value)
    ]
    found: dict[AttributeKey, Any] = {}
    memo: Memo = {}
    if not wanted:
        return found, memo
    for module in modules.values():
        own = *module._buffers.values(), *module._parameters.values(), module
        memo |= {id(v): v for v in own if v is not None}
    for path, name, value in wanted:
        with suppress(TypeError):
            found[path, name] = copy_value(value, memo)
    return found, memo


def _unchanged(value: Any, content: Any) -> bool:
    try:
        return same_value(value, content)
    except Exception:  # a tensor of several members, in a container that members share
        return False


def _holding(new: Mapping[AttributeKey, Any], written: Mapping[AttributeKey, Any]) -> dict[AttributeKey, Any]:
    """Those of the new values that hold a part of one whose content has changed, which is put back."""
    parts = {id(v) for v in walk(written.values()) if is_mutable(v)}
    ordinary = {place: v for place, v in new.items() if is_ordinary(place[1])} if parts else {}
    return {place: v for place, v in ordinary.items() if any(id(inner) in parts for inner in walk([v]))}


def is_cache(module: nn.Module, name: str) -> bool:
    """True for the list in which recurrent modules cache their parameters, and for what the package keeps itself."""
    if isinstance(module, nn.RNNBase):
        return name in ("_flat_weights", "_flat_weight_refs")
    return name in getattr(type(module), "UNTRACKED", ())


def _state(module: nn.Module, path: str, known: Collection[str]) -> dict[str, Any]:
    """The attributes of a module; hooks as copies of their dicts, and buffers other than the `known` ones."""
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
    elif name in _HOOKS:  # handles that remove a hook refer to the dict, so the dict stays
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


def put(root: nn.Module, given: Mapping[AttributeKey, Any]) -> None:
    """Set attributes permanently, tensors as detached copies."""
    modules = dict(root.named_modules())
    held = {place: rebound(kept, modules, "") for place, kept in given.items()}
    hooks = {place: value for place, value in held.items() if place[1] in _HOOKS}
    values = {place: value for place, value in held.items() if place not in hooks}
    tensors = {id(v): v for v in walk(values.values()) if isinstance(v, Tensor)}
    clones = {key: v.detach().clone() for key, v in tensors.items()}
    for (path, name), value in {**hooks, **with_tensors(values, copies_of(values, {**clones}), clones)}.items():
        _set(modules[path], name, value)
