"""Finds the first difference between two modules beyond the values of their tensors.

One module of an array represents all of them while it runs. Everything about it except parameters and buffers must
therefore be equal in all of them: classes, hyperparameters such as a stride or a dropout rate, train/eval flags, hooks,
plain attributes. Values that cannot be shown to be equal count as different.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils.hooks import RemovableHandle

from hfta_nb.engine.equality import same_bits, same_value
from hfta_nb.engine.random_streams import STREAMS

INTERNAL = frozenset(nn.Module().__dict__) - {"training"}
_HOOKS = tuple(k for k in nn.Module().__dict__ if k.endswith("_hooks"))
_CLASS_INTERNAL = frozenset(
    {"__dict__", "__weakref__", "__doc__", "__annotations__", "__annotations_cache__", "__slotnames__"}
)
_MAX_DEPTH = 12


def difference(a: nn.Module, b: nn.Module) -> str | None:
    """The first difference that prevents `a` and `b` from being two members of one array, or None.

    Returns:
        For example ``conv1.out_channels: 8 and 16``.
    """
    return next(Comparison(a, b).differences(), None)


class Comparison:
    def __init__(self, a: nn.Module, b: nn.Module) -> None:
        self.a, self.b = a, b
        # Tensors and modules that occur again inside an attribute are equal if they are at the same path.
        self.paths_a, self.paths_b = _paths(a), _paths(b)
        self._types: dict[tuple[type, type], bool] = {}

    def differences(self) -> Iterator[str]:
        names_a = dict(self.a.named_modules(remove_duplicate=False))
        names_b = dict(self.b.named_modules(remove_duplicate=False))
        for path, module in names_a.items():
            if path not in names_b:
                yield f"{path}: only the first has this submodule"
                return
            yield from self._module(path, module, names_b[path])
        for path in names_b:
            if path not in names_a:
                yield f"{path}: only the second has this submodule"
                return
        if list(names_a) != list(names_b):
            yield "the submodules stand in another order"

    def _module(self, path: str, a: nn.Module, b: nn.Module) -> Iterator[str]:
        if not self.same_type(type(a), type(b)):
            yield f"{path or 'module'}: {type(a).__name__} and {type(b).__name__}"
            return
        yield from self._attributes(path, a, b)
        yield from self._tensors(path, a, b)

    def _attributes(self, path: str, a: nn.Module, b: nn.Module) -> Iterator[str]:
        left = {k: v for k, v in a.__dict__.items() if k not in INTERNAL}
        right = {k: v for k, v in b.__dict__.items() if k not in INTERNAL}
        for key in [*left, *(k for k in right if k not in left)]:
            where = f"{path}.{key}" if path else key
            if key not in left or key not in right:
                yield f"{where}: only the {'first' if key in left else 'second'} has this attribute"
            elif not self.same(left[key], right[key]):
                yield f"{where}: {_brief(left[key])} and {_brief(right[key])}"
        for key in _HOOKS:
            if not self.same(list(a.__dict__[key].values()), list(b.__dict__[key].values())):
                yield f"{path or 'module'}: {key.strip('_')} that differ"

    def _tensors(self, path: str, a: nn.Module, b: nn.Module) -> Iterator[str]:
        pairs: list[tuple[Mapping[str, Tensor | None], Mapping[str, Tensor | None]]]
        pairs = [(a._parameters, b._parameters), (a._buffers, b._buffers)]
        for left, right in pairs:
            for key in [*left, *(k for k in right if k not in left)]:
                where = f"{path}.{key}" if path else key
                reason = _tensor_difference(left.get(key), right.get(key)) or self.marks_difference(
                    left.get(key), right.get(key)
                )
                if reason:
                    yield f"{where}: {reason}"
                elif self.paths_a.get(id(left.get(key))) != self.paths_b.get(id(right.get(key))):
                    yield f"{where}: tied to another parameter in one of them"
        if a._non_persistent_buffers_set != b._non_persistent_buffers_set:
            yield f"{path or 'module'}: persistent buffers that differ"

    def marks_difference(self, x: Tensor | None, y: Tensor | None) -> str:
        """The first difference of the attributes that users have set on two parameters; empty if there is none."""
        if not isinstance(x, nn.Parameter) or not isinstance(y, nn.Parameter):
            return ""
        left, right = x.__dict__, y.__dict__
        for name in [*left, *(k for k in right if k not in left)]:
            if name not in left or name not in right:
                return f"only the {'first' if name in left else 'second'} has an attribute {name}"
            if not self.same(left[name], right[name]):
                return f"its attribute {name} is {_brief(left[name])} and {_brief(right[name])}"
        return ""

    def same_type(self, x: type, y: type) -> bool:
        """True for one class, or for two results of one class statement (inside a build function, for example)."""
        if x is y:
            return True
        if (x.__module__, x.__qualname__) != (y.__module__, y.__qualname__) or len(x.__bases__) != len(y.__bases__):
            return False
        if (x, y) not in self._types:
            self._types[x, y] = True  # a method that mentions its own class leads back here
            parts = [{k: v for k, v in vars(c).items() if k not in _CLASS_INTERNAL} for c in (x, y)]
            bases = all(self.same_type(u, v) for u, v in zip(x.__bases__, y.__bases__, strict=True))
            self._types[x, y] = bases and self.same(parts[0], parts[1])
        return self._types[x, y]

    def same(self, x: Any, y: Any, depth: int = 0) -> bool:
        if x is y:
            return True
        if isinstance(x, type) and isinstance(y, type):
            return self.same_type(x, y)
        if not self.same_type(type(x), type(y)) or depth > _MAX_DEPTH:
            return False
        if isinstance(x, Tensor | nn.Module):
            known = self.paths_a.get(id(x)), self.paths_b.get(id(y))
            if known[0] is not None or known[1] is not None:
                return known[0] == known[1]
            if isinstance(x, nn.Module):
                return difference(x, y) is None
            # Without values (on "meta") they are the same: the plan compares again with real ones before it trains.
            return x.dtype == y.dtype and x.device == y.device and same_bits(x, y)
        if isinstance(x, Mapping):
            return list(x) == list(y) and all(self.same(x[k], y[k], depth + 1) for k in x)
        if isinstance(x, list | tuple):
            # Use the methods of list and tuple: a subclass may forbid its own.
            plain: Any = list if isinstance(x, list) else tuple
            items: list[list[Any]] = [list(plain.__iter__(v)) for v in (x, y)]
            if len(items[0]) != len(items[1]):
                return False
            more = [getattr(v, "__dict__", None) for v in (x, y)]
            return all(self.same(u, v, depth + 1) for u, v in zip(*items, strict=True)) and (
                more[0] is None or self.same(more[0], more[1], depth + 1)
            )
        if isinstance(x, (np.ndarray, *STREAMS)):
            return same_value(x, y)
        if isinstance(x, types.FunctionType):
            return self._same_function(x, y, depth)
        if isinstance(x, staticmethod | classmethod):
            return self.same(x.__func__, y.__func__, depth + 1)
        if isinstance(x, property):
            return self.same((x.fget, x.fset, x.fdel), (y.fget, y.fset, y.fdel), depth + 1)
        if isinstance(x, types.MethodType):
            return x.__func__ is y.__func__ and self.same(x.__self__, y.__self__, depth + 1)
        if isinstance(x, functools.partial):
            parts = (x.func, x.args, x.keywords), (y.func, y.args, y.keywords)
            return self.same(*parts, depth + 1)
        if isinstance(x, RemovableHandle):
            return True  # identifies a hook, without effect on what it does
        if isinstance(x, weakref.ref):
            return self.same(x(), y(), depth + 1)
        return self._same_object(x, y, depth)

    def _same_function(self, x: types.FunctionType, y: types.FunctionType, depth: int) -> bool:
        cells = [[c.cell_contents for c in f.__closure__ or ()] for f in (x, y)]
        return (
            x.__code__ == y.__code__
            and x.__globals__ is y.__globals__
            and self.same(x.__defaults__, y.__defaults__, depth + 1)
            and self.same(x.__kwdefaults__, y.__kwdefaults__, depth + 1)
            and self.same(cells[0], cells[1], depth + 1)
        )

    def _same_object(self, x: Any, y: Any, depth: int) -> bool:
        if getattr(type(x), "__eq__", None) is not object.__eq__ and not dataclasses.is_dataclass(x):
            try:
                return bool(x == y)
            except Exception:  # an __eq__ that raises does not show equality
                return False
        left, right = _state(x), _state(y)
        if left is None or right is None or left.keys() != right.keys():
            return False
        return all(self._same_held(name, left[name], right[name], depth + 1) for name in left)

    def _same_held(self, name: str, x: Any, y: Any, depth: int) -> bool:
        """True if two objects hold the same value under a name.

        A private dict is treated as a cache, which may contain more entries in one of the objects: only the entries in
        both must be equal.
        """
        if name.startswith("_") and type(x) is dict and type(y) is dict:
            return all(self.same(x[k], y[k], depth + 1) for k in x.keys() & y.keys())
        return self.same(x, y, depth + 1)


def _state(value: Any) -> dict[str, Any] | None:
    """The attributes of an object, from its `__dict__` and slots."""
    slots = [s for c in type(value).__mro__ for s in _names(c.__dict__.get("__slots__", ()))]
    if not slots and not hasattr(value, "__dict__"):
        return None
    return {**{s: getattr(value, s) for s in slots if hasattr(value, s)}, **getattr(value, "__dict__", {})}


def _names(slots: Any) -> list[str]:
    return [s for s in ([slots] if isinstance(slots, str) else slots) if s not in ("__dict__", "__weakref__")]


def _paths(module: nn.Module) -> dict[int, str]:
    found: dict[int, str] = {}
    for path, child in module.named_modules(remove_duplicate=False):
        found.setdefault(id(child), path)
        for name, tensor in [*child._parameters.items(), *child._buffers.items()]:
            if tensor is not None:
                found.setdefault(id(tensor), f"{path}.{name}" if path else name)
    return found


def _tensor_difference(x: Tensor | None, y: Tensor | None) -> str:
    if x is None or y is None:
        return "" if x is y else "only one of them has this tensor"
    if is_lazy(x) or is_lazy(y):
        return "" if is_lazy(x) and is_lazy(y) else "waits for its shape in one of them only"
    if x.shape != y.shape:
        return f"shapes {list(x.shape)} and {list(y.shape)}"
    if x.dtype != y.dtype:
        return f"{x.dtype} and {y.dtype}"
    if x.requires_grad != y.requires_grad:
        return "requires_grad in one of them only"
    return "" if type(x) is type(y) else f"{type(x).__name__} and {type(y).__name__}"


def _brief(value: Any) -> str:
    if isinstance(value, types.FunctionType):
        return value.__qualname__
    text = f"a tensor {list(value.shape)}" if isinstance(value, Tensor) else repr(value)
    return text if len(text) <= 60 else text[:59] + "…"
