"""Everything that some functions reach: closures, defaults, attributes, and the globals that their code names."""

from __future__ import annotations

import dis
import functools
import itertools
import random
import types
import weakref
from collections import deque
from collections.abc import Collection, Iterator
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from hfta_nb.engine.eager.function_values import STUCK
from hfta_nb.engine.eager.holders import (
    KNOWN,
    Arguments,
    Cell,
    ClassData,
    Context,
    Entries,
    FunctionAttributes,
    Holder,
    Items,
    ModuleHolder,
    Scope,
    Slotted,
    of_library,
    slots,
)

_MOST = 5000
"""A search ends after this many objects."""
_MOST_ENTRIES = 1000
"""Only the first entries of a container are searched for objects; all are kept per member."""
_OPENED = (
    *("types.SimpleNamespace", "argparse.Namespace", "collections.UserDict", "collections.UserList"),
    *("collections.ChainMap", "queue.Queue", "queue.LifoQueue", "queue.PriorityQueue"),
    *("weakref.WeakKeyDictionary", "weakref.WeakValueDictionary", "_weakrefset.WeakSet", "_thread._local"),
)
_BUILDING = ("__init__", "__post_init__", "__new__")
_WRITES = ("STORE_ATTR", "STORE_GLOBAL", "STORE_DEREF", "STORE_SUBSCR", "DELETE_ATTR", "DELETE_GLOBAL", "DELETE_SUBSCR")
_WRITING = frozenset(
    (
        *("append", "appendleft", "extend", "insert", "pop", "popleft", "popitem", "remove", "discard", "clear"),
        *("update", "add", "setdefault", "setattr", "delattr", "sort", "reverse", "rotate", "next", "send", "data"),
        *("__setattr__", "__setitem__", "__dict__", "globals", "vars", "fill", "put", "itemset", "subtract"),
    )
)
"""Names of functions that change an object."""
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
"""Where a module has its hooks."""
_HANDED_ON = (
    *("hfta_nb.models.losses", "hfta_nb.models.metrics", "hfta_nb.models.phases"),
    *("hfta_nb.engine.members.held_losses", "multiprocessing.sharedctypes"),
)
"""Modules whose objects hold functions or values of the user's."""
_DRAWING = (torch.Generator, np.random.Generator, np.random.RandomState)
_CHANGING = (np.ndarray, bytearray, random.Random, Iterator, *_DRAWING)
INSTALLED = ("site-packages", "dist-packages")
"""In paths of packages whose global variables are not followed."""


class Reach:
    """Everything that some functions reach.

    Args:
        functions: losses, metrics, or other functions.
        apart: a model, whose modules are left out.

    Attributes:
        holders: of everything that may change.
        writes: True if some code seems to change a tensor or an object in place.
        rebinds: True if some code assigns global variables, those of an enclosing function, or attributes of a class.
        in_backward: True if some code seems to run in the backward: hooks, custom functions, checkpoints.
        tensors: by id, each with how a person reaches it.
        stuck: values that advance when they are used, and that can't be copied, with how a person reaches them.
    """

    def __init__(self, functions: tuple[Any, ...], apart: nn.Module | None = None) -> None:
        self.holders: list[Holder] = []
        self.writes = self.rebinds = self.in_backward = False
        self.tensors: dict[int, tuple[Tensor, str]] = {}
        self.stuck: list[tuple[Any, str]] = []
        self._seen: dict[int, Any] = {} if apart is None else {id(m): m for m in apart.modules()}
        self._names: set[str] = set()
        self._modules: list[types.ModuleType] = []
        self._waiting: list[tuple[Any, str]] = [(f, _called(f)) for f in functions]
        self._search()

    def objects(self) -> list[Holder]:
        """The holders that are containers or objects, not variables of functions, classes or modules."""
        return [h for h in self.holders if not isinstance(h, Cell | FunctionAttributes | Arguments | ClassData | Scope)]

    @property
    def changes(self) -> bool:
        """True if calls may change something that outlasts them."""
        if self.rebinds or not self.writes:
            return self.rebinds
        values = (v for h in self.holders for v in h.values().values())
        return bool(self.objects() or self.stuck or self.tensors) or any(isinstance(v, _CHANGING) for v in values)

    def _search(self) -> None:
        while True:
            while self._waiting and len(self._seen) < _MOST:
                value, label = self._waiting.pop()
                if id(value) not in self._seen:
                    self._seen[id(value)] = value
                    self._visit(value, label)
            before = len(self._waiting)
            for module in self._modules:  # by names that code met since mentions
                names = {n for n in self._names if n in vars(module) and not isinstance(vars(module)[n], type)}
                self._scope(vars(module), names, module.__name__)
            if len(self._waiting) == before:
                return

    def _visit(self, value: Any, label: str) -> None:
        if isinstance(value, int | float | str | bytes | type(None)):
            return
        if isinstance(value, Tensor):
            self.tensors[id(value)] = value, label
        elif isinstance(value, types.FunctionType):
            self._function(value, label)
        elif isinstance(value, types.MethodType):
            self._waiting += [(value.__self__, label), (value.__func__, label)]
        elif isinstance(value, functools.partial):
            self._hold(Arguments, value, label)
            self._waiting.append((value.func, label))
        elif isinstance(value, types.ModuleType):
            if not of_library(types.SimpleNamespace(__module__=value.__name__)):
                self._modules.append(value)
        elif isinstance(value, type):
            self._class(value)
        elif isinstance(value, types.MappingProxyType):
            self._waiting += [(v, label) for v in value.values()]
        elif isinstance(value, STUCK):
            self.stuck.append((value, label))
        elif isinstance(value, ContextVar):
            self._hold(Context, value, label)
        elif isinstance(value, dict):
            self._hold(Entries, value, label)
        elif isinstance(value, list | set | deque):
            self._hold(Items, value, label)
        elif isinstance(value, tuple | frozenset):
            self._waiting += [(v, label) for v in value]
        elif isinstance(value, nn.Module):
            self._module(value, label)
        elif not isinstance(value, weakref.ref):
            self._object(value, label)

    def _hold(self, kind: type[Holder], owner: Any, label: str) -> Holder:
        holder = KNOWN.get(id(owner))
        if holder is None or holder.owner is not owner:
            holder = KNOWN[id(owner)] = kind(owner, label)
        if holder not in self.holders:
            self.holders.append(holder)
        inner = holder.values()
        for name, value in itertools.islice(inner.items(), _MOST_ENTRIES):
            parts = itertools.islice(value, _MOST_ENTRIES) if kind is Items else (value,)
            self._waiting += [(v, holder.path(name)) for v in parts]
        return holder

    def _module(self, module: nn.Module, label: str) -> None:
        if getattr(module, "_state", None) is not None and type(module).__name__ == "FusedArray":
            return  # its members' state is its own
        self._hold(ModuleHolder, module, label)
        self._waiting += [(child, f"{label}.{name}") for name, child in module.named_children()]
        hooks = [(h, f"{label}.{kind}") for kind in _HOOKS for h in getattr(module, kind).values()]
        self._waiting += hooks
        self.in_backward = self.in_backward or any("backward" in kind for _, kind in hooks)
        if not of_library(type(module)):
            self._class(type(module))
        elif module.training and module._buffers:  # as batch norm and spectral norm have, which they change
            self.writes = True

    def _object(self, value: Any, label: str) -> None:
        kind = type(value)
        if isinstance(value, _DRAWING) or kind.__module__ == "random":
            self.writes = True
            return
        if isinstance(value, Optimizer | LRScheduler):
            self.writes = True
        elif of_library(kind) and f"{kind.__module__}.{kind.__name__}" not in _OPENED:
            if kind.__module__ in _HANDED_ON:
                self._waiting += [(v, label) for v in getattr(value, "__dict__", {}).values()]
            if hasattr(value, "__next__"):
                self._waiting += [(v, label) for v in _read_by(value)]
            return
        if hasattr(value, "__dict__") or any(slots(k) for k in kind.__mro__):
            self._hold(Slotted if any(slots(k) for k in kind.__mro__) else Holder, value, label)
            self._class(kind)

    def _class(self, kind: type) -> None:
        self.in_backward = self.in_backward or (issubclass(kind, Function) and not of_library(kind))
        for own in kind.__mro__:
            if of_library(own) or id(own) in self._scanned:
                continue
            self._seen[id(own)] = own
            self._hold(ClassData, own, own.__name__)
            for name, value in vars(own).items():
                function = getattr(value, "__func__", getattr(value, "fget", value))
                called = isinstance(function, types.FunctionType) and name not in _BUILDING
                if called or (hasattr(value, "__set__") and not of_library(type(value))):  # or a descriptor
                    self._waiting.append((function, f"{own.__name__}.{name}"))

    @property
    def _scanned(self) -> set[int]:
        return {id(h.owner) for h in self.holders if isinstance(h, ClassData)}

    def _function(self, function: types.FunctionType, label: str) -> None:
        for cell, name in zip(function.__closure__ or (), function.__code__.co_freevars, strict=True):
            self._hold(Cell, cell, name)
        # Not by `__module__`, which `functools.wraps` copies from what it decorates.
        if of_library(types.SimpleNamespace(__module__=function.__globals__.get("__name__"))):
            return
        if function.__defaults__ or function.__kwdefaults__:
            self._hold(Arguments, function, label)
        # Attributes of a function are in its dict, which is a holder by itself.
        self._hold(FunctionAttributes, vars(function), label)
        around = _contents(function)
        for code in codes_in(function.__code__):
            self._code(code, function.__globals__, around)

    def _code(self, code: types.CodeType, scope: dict[str, Any], around: dict[str, Any]) -> None:
        names, writes, assigns = _seen_in(code)
        self.writes = self.writes or writes
        self.in_backward = self.in_backward or any("hook" in n or "checkpoint" in n for n in names)
        if any(part in code.co_filename for part in INSTALLED):
            return
        self._names |= names
        self._scope(scope, names, "")
        self.rebinds |= "a global" in assigns or bool(assigns & around.keys())
        if "an attribute" in assigns and not self.rebinds:
            named = [
                v[n] for v in (scope, around) for n in names | set(code.co_freevars) if n in v and n != "__class__"
            ]
            owners = (v for v in named if isinstance(v, type) or (isinstance(v, types.FunctionType) and vars(v)))
            of_class = names & {"type", "__class__"} or code.co_varnames[:1] == ("cls",)
            self.rebinds = bool(of_class) or not all(map(of_library, owners))

    def _scope(self, scope: dict[str, Any], names: Collection[str], label: str) -> None:
        held = {n for n in names if n in scope and not isinstance(scope[n], types.BuiltinFunctionType)}
        if not held:
            return
        known = KNOWN.get(id(scope))
        holder = known if isinstance(known, Scope) else Scope(scope, label)
        KNOWN[id(scope)] = holder
        if holder not in self.holders:
            self.holders.append(holder)
        for name in held:
            value = scope[name]
            if not isinstance(value, types.ModuleType | types.FunctionType | type):
                holder.names.add(name)
            if id(value) not in self._seen:
                self._waiting.append((value, holder.path(name)))


def _read_by(iterator: Any) -> Iterator[Any]:
    """What an iterator of Python's own, as of `zip`, `map` or `itertools.cycle`, reads and calls."""
    try:
        parts = iterator.__reduce__()[1:]
    except TypeError:
        return
    for part in parts:
        yield from (v for v in (part if isinstance(part, tuple) else ()) if hasattr(v, "__next__") or callable(v))


def _called(function: Any) -> str:
    """The name of a function in messages."""
    named = function if hasattr(function, "__qualname__") else type(function)
    return str(named.__qualname__).replace("<locals>.", "").replace("<lambda>", "the loss")


def codes_in(code: types.CodeType) -> Iterator[types.CodeType]:
    """A piece of code, and those of what it defines."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes_in(constant)


def _contents(function: types.FunctionType) -> dict[str, Any]:
    """The variables of enclosing functions that a function uses; None in place of what has no value."""
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:
            found[name] = None
    return found


_READ: dict[int, tuple[types.CodeType, frozenset[str], bool, frozenset[str]]] = {}
"""What was found in code, by its id."""


def _seen_in(code: types.CodeType) -> tuple[frozenset[str], bool, frozenset[str]]:
    """The names that code mentions, whether it may write what is not its own, and which variables it assigns.

    Of global variables and attributes, the last is only whether it assigns some: "a global", "an attribute".
    """
    known = _READ.get(id(code))
    if known is None or known[0] is not code:
        names = frozenset(code.co_names)
        if "globals" in names:  # their names are strings
            names |= {c for c in code.co_consts if isinstance(c, str)}
        in_place = any(n.endswith("_") and not n.endswith("__") for n in names)
        writes = in_place or bool(names & _WRITING) or any(_writes(s, code) for s in dis.get_instructions(code))
        if len(_READ) > _MOST:
            _READ.clear()
        known = _READ[id(code)] = code, names, writes, frozenset(_assigned(code))
    return known[1:]


def _assigned(code: types.CodeType) -> Iterator[str]:
    for step in dis.get_instructions(code):
        if step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            yield "a global"
        elif step.opname in ("STORE_ATTR", "DELETE_ATTR") or step.argval in ("setattr", "delattr"):
            yield "an attribute"
        elif step.opname in ("STORE_DEREF", "DELETE_DEREF"):
            yield step.argval


def _writes(step: dis.Instruction, code: types.CodeType) -> bool:
    if step.opname == "STORE_DEREF":
        return step.argval in code.co_freevars
    return step.opname in _WRITES or (step.opname == "BINARY_OP" and step.argrepr.endswith("="))
