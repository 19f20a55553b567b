"""Guards: values that the Python code of a model and its loss can read, and that must not change between steps.

A replayed step runs no Python. Therefore all values that the code can read (attributes, closures, globals, at any
depth) are recorded and compared before each replay. Code with other effects, such as printing or reading the clock, is
not replayed. Code that cannot be analysed counts as such code. Of an object that is no module, such as one whose method
is the loss, the code reads the attributes whose names it mentions: what else a configuration or a trainer holds may be
anything, and change.
"""

from __future__ import annotations

import dis
import functools
import operator
import types
import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from hfta_nb.engine.eager.reach import codes_in
from hfta_nb.engine.eager.state import ArrayState
from hfta_nb.engine.members.per_member import PerMember
from hfta_nb.engine.replay.attribute_guards import (
    HARMLESS,
    PLAIN,
    Attributes,
    harmless,
    implied,
    readable,
    same,
    seen_through,
)

_BUILTINS_REFUSED = {
    *("print", "open", "input", "exec", "eval", "globals", "locals", "vars", "id", "setattr", "delattr", "__import__"),
}
_GLOBALS = {"LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "STORE_NAME", "DELETE_GLOBAL"}
_NAMES_REFUSED = {
    *("numpy", "tolist", "data_ptr", "storage", "untyped_storage", "register_hook", "retain_grad", "set_"),
    *("manual_seed", "seed", "initial_seed", "Generator", "default_generator", "get_rng_state", "set_rng_state"),
    *("fork_rng", "register_post_accumulate_grad_hook", "_version", "is_leaf", "grad_fn", "resize_"),
    *("synchronize", "_cdata", "stdout", "stderr"),
}
"""Attributes in a model's code that read or change something that kernels do not show."""

_TENSORS_OF_VALUES = {
    *("tensor", "as_tensor", "asarray", "new_tensor", "new", "Tensor", "FloatTensor", "DoubleTensor", "HalfTensor"),
    *("BFloat16Tensor", "LongTensor", "IntTensor", "ShortTensor", "ByteTensor", "CharTensor", "BoolTensor"),
}
"""Functions that create a tensor from a list. They read tensors in the list, which no dispatch mode notices."""

_CACHES = ("_flat_weights", "_flat_weight_refs")
"""Attributes in which recurrent modules cache their parameters."""

_GLOBAL_HOOKS = tuple(
    value for name, value in vars(nn.modules.module).items() if name.startswith("_global_") and isinstance(value, dict)
)


class UnclearError(Exception):
    """The code may have inputs or effects that cannot be analysed."""


class Guards:
    """The current values of everything that some code can read.

    Args:
        root: the model.
        functions: other functions that are called, for example a loss.
        set_anew: attributes, by the id of their module, that are set before each call.
        face: the array, as which a loss sees the model.

    Raises:
        UnclearError: the code cannot be analysed.
    """

    def __init__(
        self,
        root: nn.Module,
        functions: tuple[Any, ...],
        set_anew: Mapping[int, tuple[str, ...]] | None = None,
        face: nn.Module | None = None,
    ) -> None:
        self._set_anew = set_anew or {}
        self._containers: list[tuple[Any, Any]] = []
        self._partly: list[tuple[Mapping[Any, Any], dict[Any, Any], tuple[str, ...]]] = []
        self._objects: list[tuple[Attributes, str, set[str]]] = []
        self._cells: list[tuple[types.CellType, Any]] = []
        self._globals: list[tuple[dict[str, Any], str, Any]] = []
        self._tensors: list[Tensor] = []
        self._seen = {id(face)}
        self._alive: list[Any] = []
        self._names: set[str] = {"forward"}
        self._classes: list[tuple[type, str]] = []
        self._scanned: set[tuple[type, str]] = set()
        for hooks in _GLOBAL_HOOKS:
            self._snapshot(hooks)
        self._value(root, "the model")
        for function in functions:
            self._value(function, "the loss")
        while self._reach():
            pass
        self._readable = readable(self._names)
        self._fields = [(value, value.read(self._readable)) for value, _, _ in self._objects]
        # Most of these dicts are empty, like those of hooks: one check covers all of them.
        self._empty = [value for value, before in self._containers if not before]
        kept = [(value, before) for value, before in self._containers if before]
        self._now, self._then = [value for value, _ in kept], [before for _, before in kept]

    @property
    def makes_tensors(self) -> bool:
        """True if the code may create tensors from the values of others."""
        return bool(self._names & _TENSORS_OF_VALUES)

    def hold(self) -> bool:
        """True if all values are unchanged."""
        try:
            if any(self._empty) or self._now != self._then:
                return False
            if any(map(_hooks, self._tensors)):  # a replay would not call them
                return False
            for mapping, before, caches in self._partly:
                if {k: v for k, v in mapping.items() if k not in caches} != before:
                    return False
            if not all(same(value.read(self._readable), before) for value, before in self._fields):
                return False
            for cell, value in self._cells:
                if cell.cell_contents is not value:
                    return False
            return all(scope.get(name, _GONE) is value for scope, name, value in self._globals)
        except Exception:  # values whose comparison fails count as changed
            return False

    # Values.

    def _snapshot(self, mapping: Mapping[Any, Any]) -> None:
        self._containers.append((mapping, dict(mapping)))

    def _value(self, value: Any, where: str) -> None:
        if isinstance(value, PLAIN) or id(value) in self._seen:
            return
        self._seen.add(id(value))
        self._alive.append(value)
        if isinstance(value, Tensor):
            self._tensor(value, where)
        elif isinstance(value, PerMember):
            self._value(value.value, where)
        elif isinstance(value, types.ModuleType):
            self._package(value, where)
        elif isinstance(value, type):
            self._classes.append((value, where))
        elif isinstance(value, Mapping):
            self._snapshot(value)
            self._more(value)
            for key, inner in list(value.items()):
                self._value(inner, f"{where}[{key!r}]")
        elif isinstance(value, list | tuple | set | frozenset):
            if isinstance(value, list | set):  # the others are immutable
                self._containers.append((value, list(value) if isinstance(value, list) else set(value)))
            self._more(value)
            for inner in list(value):
                self._value(inner, where)
        else:
            self._callable_or_object(value, where)

    def _more(self, value: Any) -> None:
        """Attributes of a container whose class is a subclass."""
        if type(value).__module__ not in ("builtins", "collections"):
            self._classes.append((type(value), type(value).__name__))
            self._snapshot(getattr(value, "__dict__", {}))

    def _callable_or_object(self, value: Any, where: str) -> None:
        if isinstance(value, types.FunctionType):
            self._function(value, where)
        elif isinstance(value, types.MethodType):
            self._value(value.__func__, where)
            self._value(value.__self__, where)
        elif isinstance(value, functools.partial):
            for part in (value.func, value.args, value.keywords):
                self._value(part, where)
        elif isinstance(value, weakref.ref):
            self._value(value(), where)
        elif isinstance(value, staticmethod | classmethod):
            self._value(value.__func__, where)
        elif isinstance(value, property | functools.cached_property):
            self._value(value.fget if isinstance(value, property) else value.func, where)
        elif isinstance(value, types.MemberDescriptorType):  # a slot, which is read as an attribute
            return
        elif callable(value) and not hasattr(value, "__dict__"):
            self._native(value, where)
        else:
            self._object(value, where)

    def _tensor(self, value: Tensor, where: str) -> None:
        if type(value) not in (Tensor, nn.Parameter):
            raise UnclearError(f"{where} is a {type(value).__name__}")
        self._tensors.append(value)
        if isinstance(value, nn.Parameter):
            self._snapshot(value.__dict__)
            for name, inner in list(value.__dict__.items()):
                self._value(inner, f"{where}.{name}")

    def _native(self, value: Any, where: str) -> None:
        owner = getattr(value, "__objclass__", None) or type(getattr(value, "__self__", None))
        module = getattr(value, "__module__", None) or owner.__module__
        if str(module).partition(".")[0] not in HARMLESS and not _of_torch(value):
            raise UnclearError(f"{where} calls {getattr(value, '__name__', value)}")
        if module == "builtins" and getattr(value, "__name__", "") in _BUILTINS_REFUSED:
            raise UnclearError(f"{where} calls {value.__name__}")
        owner = getattr(value, "__self__", None)  # a bound method of a builtin type
        if owner is not None and not isinstance(owner, types.ModuleType | type):
            self._value(owner, where)

    def _object(self, value: Any, where: str) -> None:
        kind = type(value)
        state = getattr(value, "__dict__", None)
        if isinstance(value, torch.Generator):
            raise UnclearError(f"{where} has a random generator of its own")
        if seen_through(kind):
            self._objects.append((Attributes(value), where, set()))
            self._classes.append((kind, where))
            return
        if state is None:
            if kind is object or (kind.__module__.partition(".")[0] == "torch" and not callable(value)):
                return
            raise UnclearError(f"{where} is a {kind.__name__}, which can't be seen into")
        caches = (*(_CACHES if isinstance(value, nn.RNNBase) else ()), *self._set_anew.get(id(value), ()))
        if caches:
            self._partly.append((state, {k: v for k, v in state.items() if k not in caches}, caches))
        else:
            self._snapshot(state)
        self._classes.append((kind, where))
        internal = isinstance(value, nn.Module)
        for name, inner in list(state.items()):
            if internal and name == "_modules":
                self._snapshot(inner)
                for child, module in inner.items():
                    self._value(module, child if where == "the model" else f"{where}.{child}")
            elif name not in caches:
                self._value(inner, f"{where}.{name}")

    def _package(self, module: types.ModuleType, where: str) -> None:
        if module.__name__.partition(".")[0] not in HARMLESS:
            self._classes.append((module, where))  # type: ignore[arg-type]

    # Code.

    def _function(self, function: types.FunctionType, where: str) -> None:
        if not harmless(function):
            where = f"`{function.__qualname__}`"
            for code in codes_in(function.__code__):
                self._code(code, function.__globals__, where)
        for value in (function.__defaults__, function.__kwdefaults__):
            self._value(value, where)
        self._value(vars(function), where)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                value = cell.cell_contents
            except ValueError:  # not filled yet
                raise UnclearError(f"{where} reads {name}, which is not there yet") from None
            self._cells.append((cell, value))
            self._value(value, f"{name} of {where}")

    def _code(self, code: types.CodeType, scope: dict[str, Any], where: str) -> None:
        refused = _NAMES_REFUSED.intersection(code.co_names)
        if refused:
            raise UnclearError(f"{where} uses {sorted(refused)[0]}")
        self._names.update(code.co_names)
        if "getattr" in code.co_names:
            self._names.update(c for c in code.co_consts if isinstance(c, str))
        steps = list(dis.get_instructions(code))
        self._names |= implied(code, steps)
        for name in dict.fromkeys(s.argval for s in steps if s.opname in _GLOBALS):
            if name in scope:
                value = scope[name]
                self._globals.append((scope, name, value))
                self._value(value, f"{name} of {where}")
            elif name in _BUILTINS_REFUSED:
                raise UnclearError(f"{where} calls {name}")
        for step in steps:
            if step.opname == "IMPORT_NAME" and str(step.argval).partition(".")[0] not in HARMLESS:
                raise UnclearError(f"{where} imports {step.argval}")

    def _reach(self) -> bool:
        """Look into the functions of classes and packages by names that the code mentions; True if there were new
        ones."""
        new = False
        for value, where, seen in list(self._objects):
            for name, inner in value.read(readable(self._names)).items():
                if name not in seen:
                    seen.add(name)
                    new = True
                    self._value(inner, f"{where}.{name}")
        for owner, where in list(self._classes):
            if isinstance(owner, types.ModuleType):
                kinds: tuple[Any, ...] = (owner,)
            else:
                kinds = tuple(k for k in owner.__mro__ if not harmless(k))
            for kind in kinds:
                found = vars(kind)
                special = {n for n in found if n.startswith("__") and n.endswith("__")} - _NOT_CALLED
                names = self._names if isinstance(kind, types.ModuleType) else self._names | special
                for name in names.intersection(found):
                    if (kind, name) in self._scanned:
                        continue
                    self._scanned.add((kind, name))
                    new = True
                    self._globals.append((found, name, found[name]))
                    self._value(found[name], f"{getattr(kind, '__name__', where)}.{name}")
        return new


_hooks = operator.attrgetter("_backward_hooks")
_GONE = object()
_NOT_CALLED = {n for n in vars(object) if n != "__getattribute__"} | {
    "__contains__",
    *("__dict__", "__weakref__", "__annotations__", "__module__", "__slots__", "__del__", "__firstlineno__"),
    *("__static_attributes__", "__annotate__", "__annotations_cache__", "__slotnames__", "__doc__", "__orig_bases__"),
    *("__dataclass_fields__", "__dataclass_params__", "__match_args__", "__constants__", "__parameters__"),
}
"""Attributes of a class that a step does not use, unless its code mentions or implies them."""


def _of_torch(value: Any) -> bool:
    return "torch" in type(value).__module__ or (type(value).__name__ in ("builtin_function_or_method",) and (
        (getattr(value, "__module__", None) is None and getattr(torch, getattr(value, "__name__", ""), None) is value)
        or getattr(torch._C._nn, getattr(value, "__name__", ""), None) is value
    ))  # fmt: skip


def guards_of(state: ArrayState, functions: tuple[Any, ...]) -> Guards:
    """Guards for the code of the model, or of each architecture among its members, and of these functions.

    Raises:
        UnclearError: the code cannot be analysed.
    """
    architectures = state.engine.architectures
    if architectures is None:
        return Guards(state.skeleton, functions, face=state.face())
    set_anew: dict[int, tuple[str, ...]] = {}
    for site in architectures.sites:
        set_anew[id(site.module)] = (*set_anew.get(id(site.module), ()), site.name)
    values = tuple(value for site in architectures.sites for value in site.values.values())
    # Roomy members all run through the skeleton.
    templates = () if architectures.preallocated else architectures.templates
    return Guards(state.skeleton, (*functions, *templates, *values), set_anew, state.face())
