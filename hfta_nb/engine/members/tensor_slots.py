"""The slots of a module that hold its tensors, so that one member's tensors can be placed there and removed again.

This does what `torch.func.functional_call` does, at a fraction of its cost: the slots are found once, not at every
call. Plain lists, dicts, tuples and attributes that hold parameters (as in an LSTM) are slots as well.
"""

from __future__ import annotations

import functools
import types
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from hfta_nb.engine.members.held_values import cells, inside, walk
from hfta_nb.engine.members.marks import mark_all


class TensorSlots:
    """All slots of the parameters and buffers of a module.

    Args:
        module: the module; its current parameters and buffers are searched for.

    Attributes:
        parameters, buffers: names, each once; a tied tensor has one name and several slots.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.parameters = [name for name, _ in module.named_parameters()]
        self.buffers = [name for name, _ in module.named_buffers()]
        self._places: list[tuple[Any, Any, str]] = []
        self._tuples: list[tuple[dict[str, Any], str, tuple[str | None, ...]]] = []
        self._own: dict[str, Tensor] = {}
        self.find()

    def find(self) -> None:
        """Search for the slots again, after the module has got new containers."""
        self._own = dict(self.module.named_parameters())
        names = {id(t): name for name, t in [*self.module.named_parameters(), *self.module.named_buffers()]}
        self._places, self._tuples = [], []
        for child in self.module.modules():
            own = [child._parameters, child._buffers, child.__dict__, *_containers(child)]
            for holder in own:
                for key in holder if isinstance(holder, dict) else range(len(holder)):
                    value = holder[key]
                    if isinstance(value, Tensor) and id(value) in names:
                        self._places.append((holder, key, names[id(value)]))
            for key, value in child.__dict__.items():
                if isinstance(value, tuple) and any(id(v) in names for v in value):
                    self._tuples.append((child.__dict__, key, tuple(names.get(id(v)) for v in value)))

    @contextmanager
    def filled(self, tensors: Mapping[str, Tensor]) -> Iterator[None]:
        """Replace the module's tensors by the given ones within the context; they get the parameters' attributes."""
        mark_all(tensors, self._own)
        own = [holder[key] for holder, key, _ in self._places]
        tuples = [holder[key] for holder, key, _ in self._tuples]
        for holder, key, name in self._places:
            holder[key] = tensors[name]
        for holder, key, names in self._tuples:
            _put(holder, key, names, tensors)
        try:
            yield
        finally:
            for (holder, key, _), tensor in zip(self._places, own, strict=True):
                holder[key] = tensor
            for (holder, key, _), before in zip(self._tuples, tuples, strict=True):
                holder[key] = before

    def call(self, tensors: Mapping[str, Tensor], function: Callable[[], Any]) -> tuple[Any, dict[str, Tensor]]:
        """Call `function` while the module holds these tensors.

        Returns:
            The result, and by name the buffers that the module replaced instead of changing them in place.
        """
        with self.filled(tensors):
            result = function()
            replaced = self.replaced(tensors)
        return result, replaced

    def put(self, tensors: Mapping[str, Tensor]) -> None:
        """Put tensors into all slots, where they stay; they get the parameters' attributes."""
        mark_all(tensors, self._own)
        self.replace(tensors)
        for holder, key, names in self._tuples:
            _put(holder, key, names, tensors)

    def replaced(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """By name, what the slots hold in place of these tensors."""
        return {
            name: holder[key]
            for holder, key, name in self._places
            if isinstance(holder, dict) and holder.get(key) is not tensors[name]
        }

    def counts(self) -> Counter[str]:
        """The number of slots of each tensor, by name."""
        return Counter(name for _, _, name in self._places)

    def current(self) -> dict[str, Tensor]:
        """The tensors that the slots hold now; for several slots, the first one's."""
        found: dict[str, Tensor] = {}
        for holder, key, name in self._places:
            found.setdefault(name, holder[key])  # a module that rebuilds a list leaves the old one unchanged
        return found

    def replace(self, tensors: Mapping[str, Tensor]) -> None:
        """Put tensors into their slots, without restoring the old ones."""
        for holder, key, name in self._places:
            if name in tensors:
                holder[key] = tensors[name]


def _put(holder: dict[str, Any], key: str, names: tuple[str | None, ...], tensors: Mapping[str, Tensor]) -> None:
    """Rebuild a tuple with the given tensors at the positions that have names."""
    before = holder[key]
    new = [v if n is None else tensors[n] for v, n in zip(before, names, strict=True)]
    holder[key] = type(before)(*new) if hasattr(before, "_fields") else tuple(new)


def _containers(module: nn.Module) -> Iterator[Any]:
    """What holds tensors among the attributes at any depth: lists, dicts, closures, keywords of partials, objects."""
    skip = ("_parameters", "_buffers", "_modules")
    for value in walk(v for k, v in module.__dict__.items() if k not in skip):
        holders: list[Any] = []
        if isinstance(value, list | dict):
            holders = [value]
        elif isinstance(value, types.FunctionType):
            holders = [_Closure(value), _Defaults(value), value.__kwdefaults__ or {}]
        elif isinstance(value, functools.partial):
            holders = [value.keywords]
        elif inside(value):
            holders = [getattr(value, "__dict__", {})]
        for own in holders:
            if any(isinstance(v, Tensor) for v in (own.values() if isinstance(own, dict) else own)):
                yield own


class _Closure(list[Any]):
    """The closure of a function as a list: writing into it writes into the closure."""

    def __init__(self, function: types.FunctionType) -> None:
        self.cells = cells(function)
        super().__init__(cell.cell_contents for cell in self.cells)

    def __getitem__(self, key: Any) -> Any:
        return self.cells[key].cell_contents

    def __setitem__(self, key: Any, value: Any) -> None:
        self.cells[key].cell_contents = value


class _Defaults(list[Any]):
    """The defaults of a function's arguments as a list that can be written."""

    def __init__(self, function: types.FunctionType) -> None:
        self.function = function
        super().__init__(function.__defaults__ or ())

    def __getitem__(self, key: Any) -> Any:
        return (self.function.__defaults__ or ())[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        own = list(self.function.__defaults__ or ())
        own[key] = value
        self.function.__defaults__ = tuple(own)
