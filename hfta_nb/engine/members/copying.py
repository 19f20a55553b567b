"""Deep copies of modules, with what `copy.deepcopy` leaves out.

`copy.deepcopy` returns functions as they are. A hook or an attribute that is a lambda over the module, or over one of
its layers, would therefore still refer to the original from within the copy.
"""

from __future__ import annotations

import copy
import threading
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from torch import nn

from hfta_nb.engine.members.flattening import restore_flattening
from hfta_nb.engine.members.held_values import cells, walk
from hfta_nb.engine.members.marks import mark_copies
from hfta_nb.errors import FusionError

_SHARED = (staticmethod, classmethod, property, types.ModuleType, type(threading.Lock()), type(threading.RLock()))
"""Types that `copy.deepcopy` refuses, although a copy may hold the same object."""


def copied_module(module: nn.Module, memo: Mapping[int, Any] | None = None, where: str = "") -> nn.Module:
    """A deep copy of a module whose functions refer to the copy.

    Args:
        module: the module.
        memo: replacements of some objects in the copy, by their ids.
        where: what the module is, for the error.

    Raises:
        FusionError: the module holds something that can't be copied.
    """
    known = dict(memo or {})
    finish = prepare(module, known)
    try:
        made = copy.deepcopy(module, known)
        finish()
    except Exception as error:
        raise FusionError(
            f"a module that can't be copied: {type(error).__name__}: {error}",
            where=_culprit(module, where),
            remedy="copy.deepcopy must be able to copy it, as if it were trained alone in another process",
        ) from error
    return made


def prepare(module: nn.Module, memo: dict[int, Any]) -> Callable[[], None]:
    """Add to the memo of `copy.deepcopy` copies of the functions that refer to parts of a module.

    `copy.deepcopy` looks into its memo before anything else, for functions too (until Python 3.14).

    Returns:
        A function that gives these copies their closures, and parameters the attributes that torch's copies lack; to be
        called when the module has been copied.
    """
    modules = list(module.modules())
    parts = {id(v) for m in modules for v in (m, *m._parameters.values(), *m._buffers.values()) if v is not None}
    memo.update((id(kept), kept) for kept in _hook_objects(modules) if not _refers(kept, parts))
    rebound = rebind((v for m in modules for v in vars(m).values()), parts, memo)

    def finish() -> None:
        rebound()
        mark_copies((p for m in modules for p in m._parameters.values()), memo)
        for m in modules:
            if (made := memo.get(id(m))) is not None:
                restore_flattening(made)

    return finish


def rebind(values: Iterable[Any], parts: Collection[int], memo: dict[int, Any]) -> Callable[[], None]:
    """The same for the functions within some values that refer to objects with the ids `parts`."""
    made: list[tuple[types.FunctionType, types.FunctionType]] = []
    renewed: dict[int, types.CellType] = {}
    for value in walk(values):
        if id(value) in memo:
            continue
        if isinstance(value, _SHARED):
            memo[id(value)] = value
        elif isinstance(value, types.FunctionType) and _refers(value, parts):
            for cell in cells(value):
                if _refers(cell.cell_contents, parts):
                    renewed.setdefault(id(cell), types.CellType())
            memo[id(value)] = own = _with_cells(value, renewed)
            made.append((value, own))

    def finish() -> None:
        for old, new in made:
            for cell in cells(old):
                if id(cell) in renewed:
                    renewed[id(cell)].cell_contents = copy.deepcopy(cell.cell_contents, memo)
            if _refers((old.__defaults__, old.__kwdefaults__), parts):
                new.__defaults__ = copy.deepcopy(old.__defaults__, memo)
                new.__kwdefaults__ = copy.deepcopy(old.__kwdefaults__, memo)

    return finish


def _hook_objects(modules: Iterable[nn.Module]) -> Iterator[Any]:
    """Objects that are hooks of modules, or whose methods are: copies share them, as they share functions."""
    for module in modules:
        for hook in (*module._forward_pre_hooks.values(), *module._forward_hooks.values()):
            kept = getattr(hook, "__self__", hook)
            if not isinstance(kept, nn.Module | types.FunctionType | type):
                yield kept


def _refers(value: Any, parts: Collection[int]) -> bool:
    return any(id(inner) in parts for inner in walk([value]))


def _with_cells(function: types.FunctionType, renewed: Mapping[int, types.CellType]) -> types.FunctionType:
    """A copy of a function with some cells of its closure replaced."""
    closure = function.__closure__ and tuple(renewed.get(id(cell), cell) for cell in function.__closure__)
    new = types.FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__, closure)
    new.__kwdefaults__, new.__qualname__ = function.__kwdefaults__, function.__qualname__
    new.__doc__, new.__module__, new.__annotations__ = function.__doc__, function.__module__, function.__annotations__
    new.__dict__.update(function.__dict__)
    return new


def _culprit(module: nn.Module, where: str) -> str:
    """The first attribute that can't be copied."""
    own = {id(m): m for m in module.modules()}
    for path, inner in module.named_modules():
        for name, value in vars(inner).items():
            try:
                copy.deepcopy(value, dict(own))
            except Exception:
                place = ".".join(p for p in (path, name) if p)
                return f"{where}, `{place}`" if where else f"`{place}`"
    return where or type(module).__name__
