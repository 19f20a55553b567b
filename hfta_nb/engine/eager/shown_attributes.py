"""What an array's modules show between calls of attributes that members have set, and what the user writes there.

A model may keep values on itself (``self.kl = kl``, ``self.hidden = h``); each member has its own. Between calls the
array's modules show those of all members: tensors with a member axis, as an output has. What the user writes there
(``array.rnn.hidden = None``) is noticed, and the next call gives it to the members, as if it had been written to each
plain module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from hfta_nb.engine.eager.attributes import MISSING, AttributeKey, Attributes, is_ordinary
from hfta_nb.engine.eager.fingerprint import fingerprint
from hfta_nb.engine.eager.mutable_values import agree
from hfta_nb.engine.members.per_member import PerMember
from hfta_nb.engine.members.tree import flatten, unflatten


class ShownAttributes:
    """The values that a module shows in place of its own attributes.

    Args:
        root: the module.
    """

    def __init__(self, root: nn.Module) -> None:
        self._root = root
        self._own: dict[AttributeKey, Any] = {}
        self._shown: dict[AttributeKey, tuple[Any, list[Any], Any]] = {}
        self._depth = 0

    @contextmanager
    def hidden(self, current: Callable[[], Attributes]) -> Iterator[None]:
        """Within the context, the module has its own attributes, and the members have what the user wrote.

        Args:
            current: returns the members' attributes.
        """
        if self._depth == 0 and self._own:
            self._hide(current())
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            attributes = current()
            if self._depth == 0 and attributes.values:
                self._show(attributes)

    def _hide(self, attributes: Attributes) -> None:
        written, known = dict[AttributeKey, list[Any]](), dict[int, list[Any]]()
        for (path, name), own in self._own.items():
            held = self._root.get_submodule(path).__dict__
            now = held.get(name, MISSING)
            mark, leaves, shown = self._shown[path, name]
            if fingerprint(now) != mark:
                # What two places show stays one value of each member.
                values = known[id(now)] = known.get(id(now)) or divided(now, leaves, attributes.members)
                if now is not shown or not attributes.rewrite((path, name), values):
                    written[path, name] = values
            if own is MISSING:
                held.pop(name, None)
            else:
                held[name] = own
        attributes.assign(written)
        self._own.clear()
        self._shown.clear()

    def _show(self, attributes: Attributes) -> None:
        modules, known = dict(self._root.named_modules()), dict[tuple[int, ...], Any]()
        for (path, name), values in attributes.values.items():
            if path not in modules or not is_ordinary(name) or all(v is MISSING for v in values):
                continue  # the submodule of a member of another architecture
            held = modules[path].__dict__
            self._own[path, name] = held.get(name, MISSING)
            same = tuple(map(id, values))
            held[name] = shown = known[same] = known[same] if same in known else together(values)
            self._shown[path, name] = fingerprint(shown), flatten(shown)[0], shown


def together(values: Sequence[Any]) -> Any:
    """One value for those of all members.

    Tensors, in containers too, are stacked to ``[M, ...]``; what is equal in all members is itself; where members have
    other values, or tensors of other shapes, `PerMember` lists them, with None for members that have none. A value that
    only one of the members has is shown without an axis.
    """
    having = [v for v in values if v is not MISSING]
    if len(having) == 1 < len(values):
        return having[0]
    values = [None if v is MISSING else v for v in values]
    parts = [flatten(v) for v in values]
    first, rebuild = parts[0]
    if any(_structure(v) != _structure(values[0]) for v in values[1:]):
        return PerMember(list(values))
    columns = zip(*(leaves for leaves, _ in parts), strict=True)
    return unflatten(rebuild, [_joined(column) for column in columns]) if first else values[0]


def _joined(column: Sequence[Any]) -> Any:
    first = column[0]
    if isinstance(first, Tensor):
        kinds = {(v.shape, v.dtype, v.device) if isinstance(v, Tensor) else None for v in column}
        return torch.stack(list(column)) if len(kinds) == 1 else PerMember(list(column))
    return first if all(agree(v, first) for v in column[1:]) else PerMember(list(column))


def _structure(value: Any) -> Any:
    """Equal for values whose leaves are at the same places."""
    if isinstance(value, Mapping):
        return type(value), [(key, _structure(inner)) for key, inner in value.items()]
    if isinstance(value, list | tuple):
        return type(value), [_structure(inner) for inner in value]
    return Tensor if isinstance(value, Tensor) else type(value), len(flatten(value)[0])


def divided(value: Any, shown: Sequence[Any], members: int) -> list[Any]:
    """The members' values of what the user wrote in place of a value that was shown.

    A tensor that is one of the shown ones, or has a member axis as the one that it replaces had, is divided among the
    members; so is `per_member`. Anything else is each member's.

    Args:
        value: what was written.
        shown: the leaves of what was shown.
        members: their number.
    """
    if value is MISSING:
        return [MISSING] * members
    leaves, rebuild = flatten(value)
    before = shown if len(shown) == len(leaves) else [None] * len(leaves)
    known = {id(v) for v in shown if isinstance(v, Tensor)}
    own = [_own(new, old, known, members) for new, old in zip(leaves, before, strict=True)]
    return [unflatten(rebuild, [leaf[i] for leaf in own]) for i in range(members)]


def _own(new: Any, old: Any, known: set[int], members: int) -> Sequence[Any]:
    """The members' parts of one leaf."""
    if isinstance(new, PerMember) and len(new) == members:
        return list(new.value)
    if isinstance(new, Tensor):
        alike = isinstance(old, Tensor) and new.ndim == old.ndim and len(new) == members if new.ndim else False
        if id(new) in known or alike:
            return [new.select(0, i) for i in range(members)]
    return [new] * members
