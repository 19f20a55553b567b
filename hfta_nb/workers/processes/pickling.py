"""Pickles a study for a worker.

Objects defined in a notebook's cells are pickled by value. So are modules beside the notebook: the worker runs the
kernel's version, not the file's current version or one that the worker imported earlier. The worker imports other
modules from the same places.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import sys
import threading
import types
from collections.abc import Iterator, Mapping
from typing import Any

import cloudpickle

from hfta_nb.errors import WorkerError
from hfta_nb.errors.user_frames import installed, is_installed

_DEEPEST = 12
_NEVER = frozenset({"__main__", "hfta_nb", "cloudpickle", "torch"})
_registry = threading.Lock()


def dumps(study: Any, arguments: Mapping[str, Any]) -> bytes:
    """The study and a job's arguments, pickled.

    Raises:
        WorkerError: something can't be pickled; the message names it.
    """
    job = (study, dict(arguments))
    with _registry, _by_value(modules_at_hand()), contextlib.suppress(Exception):
        return bytes(cloudpickle.dumps(job))
    # A module with objects that can't be pickled (a lock, an open file) may still be imported by the worker.
    try:
        return bytes(cloudpickle.dumps(job))
    except Exception as error:
        where, culprit = _culprit(job)
        raise WorkerError(
            f"can't be sent to the worker process ({type(error).__name__}: {error})",
            where=where,
            got=culprit,
            accepted="what cloudpickle pickles: data, tensors, functions, classes; not locks, open files or generators",
            remedy='create it in the function that needs it, or run in this process with kind="inline"',
        ) from error


def loads(data: bytes) -> tuple[Any, dict[str, Any]]:
    """The study and the arguments from the result of `dumps`."""
    study, arguments = cloudpickle.loads(data)
    return study, arguments


def packed(thing: Any) -> bytes:
    """Anything that is sent between processes of a run, pickled; what is defined in cells by value."""
    return bytes(cloudpickle.dumps(thing))


def unpacked(data: bytes) -> Any:
    """What `packed` was given."""
    return cloudpickle.loads(data)


def own_modules() -> dict[str, types.ModuleType]:
    """Imported Python modules that are not installed (or installed in editable mode), by file."""
    found = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__dict__", {}).get("__file__")  # don't trigger lazy imports
        if isinstance(file, str) and file.endswith(".py") and name.partition(".")[0] not in _NEVER:
            path = os.path.abspath(file)
            if not is_installed(path):
                found[path] = module
    return found


def modules_at_hand() -> list[types.ModuleType]:
    """The user's own modules in the current directory or in a directory before Python's own on the path. Editable
    installs elsewhere may be large libraries."""
    places = tuple(os.path.join(os.path.abspath(place), "") for place in [".", *_first_on_path()])
    return [m for path, m in own_modules().items() if path.startswith(places) and sys.modules.get(m.__name__) is m]


def _first_on_path() -> Iterator[str]:
    for entry in sys.path:
        if entry.endswith(".zip") or os.path.join(os.path.abspath(entry), "").startswith(installed()):
            return
        yield entry


@contextlib.contextmanager
def _by_value(modules: list[types.ModuleType]) -> Iterator[None]:
    already = cloudpickle.list_registry_pickle_by_value()
    added = [module for module in modules if module.__name__ not in already]
    for module in added:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in added:
            cloudpickle.unregister_pickle_by_value(module)


def _culprit(job: tuple[Any, dict[str, Any]]) -> tuple[str, Any]:
    """The innermost object that can't be pickled, and the path to it."""
    study, arguments = job
    path, culprit = ("arguments", arguments) if _pickles(study) else ("study", study)
    seen: set[int] = set()
    # If looking closer fails, report what was found so far.
    with contextlib.suppress(Exception):
        for _ in range(_DEEPEST):
            seen.add(id(culprit))
            step = next((s for s in _parts(culprit) if id(s[1]) not in seen and not _pickles(s[1])), None)
            if step is None:
                break
            path, culprit = path + step[0], step[1]
    return path, culprit


def _pickles(thing: Any) -> bool:
    try:
        cloudpickle.dumps(thing)
    except Exception:
        return False
    return True


def _parts(thing: Any) -> Iterator[tuple[str, Any]]:
    """The parts that are pickled with an object, each with its name."""
    if isinstance(thing, Mapping):
        yield from ((f"[{key!r}]", value) for key, value in thing.items())
    elif isinstance(thing, list | tuple | set | frozenset):
        yield from ((f"[{index}]", value) for index, value in enumerate(thing))
    elif inspect.isfunction(thing):
        yield from _parts_of_function(thing)
    elif inspect.ismethod(thing):
        yield from ((".__func__", thing.__func__), (".__self__", thing.__self__))
    elif isinstance(thing, functools.partial):
        yield from ((".func", thing.func), (".args", thing.args), (".keywords", thing.keywords))
    else:
        names = {slot: getattr(thing, slot, None) for slot in getattr(type(thing), "__slots__", ())}
        yield from ((f".{name}", value) for name, value in {**names, **getattr(thing, "__dict__", {})}.items())


def _parts_of_function(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    called = f" -> {function.__qualname__}()"
    used = inspect.getclosurevars(function)
    for kind, names in (("variable", used.nonlocals), ("global", used.globals)):
        yield from ((f"{called} uses the {kind} {name!r}", value) for name, value in names.items())
    for name, value in inspect.signature(function).parameters.items():
        if value.default is not value.empty:
            yield f"{called} has the default of {name!r}", value.default
