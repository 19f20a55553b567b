"""Resolves the dotted name of a constructor."""

from __future__ import annotations

import difflib
import importlib.util
import types
from collections.abc import Sequence
from typing import Any

from hfta_nb.errors import FamilyError
from hfta_nb.models.model_zoo import vision

KNOWN_PACKAGES = frozenset({"torchvision", "timm"})
"""Packages whose functions build modules even without a return annotation."""

OFFERED = frozenset({*KNOWN_PACKAGES, "transformers", "peft"})


def is_constructor(name: str) -> bool:
    """Whether a family's name is that of a constructor or of a saved model, not a registered one."""
    return "." in name or ":" in name


def package(name: str, path: str) -> Any:
    """A module by name.

    Raises:
        FamilyError: it is not installed, or fails to import.
    """
    top = name.partition(".")[0]
    if importlib.util.find_spec(top) is None:
        remedy = f"pip install {top}" if top in OFFERED else "check the spelling"
        remedy = vision.install_command() if top == vision.NAME else remedy
        raise FamilyError(f"{top} is not installed", where=path, remedy=remedy)
    try:
        return vision.import_module(name)
    except Exception as error:
        raise _broken(name, path, error) from error


def _broken(name: str, path: str, error: BaseException) -> FamilyError:
    blamed = vision.blamed(error, path)
    if blamed is not None:
        return blamed
    first = error
    while first.__cause__ is not None:
        first = first.__cause__
    what = f"{name} can't be imported ({type(first).__name__}: {first})"
    return FamilyError(what, where=path, remedy=f"check that Python can import it: import {name.partition('.')[0]}")


def find(path: str) -> Any:
    """Resolve a dotted name: modules as far as possible, then attributes."""
    parts = path.split(".")
    if not all(part.isidentifier() for part in parts) or parts[0] == "__main__":
        raise FamilyError("not the name of a constructor", where="family", got=path, accepted="package.module.name")
    found = package(parts[0], path)
    for i, part in enumerate(parts[1:], 1):
        name = ".".join(parts[: i + 1])
        # Attributes take precedence: in many packages a function has the same name as its module.
        inner = _attribute(found, part, name, path)
        if inner is None and isinstance(found, types.ModuleType) and _is_module(name):
            inner = package(name, path)
        if inner is None:
            raise unknown(path, f"{'.'.join(parts[:i])} has no {part}", names_in(found, ".".join(parts[:i])))
        found = inner
    return found


def _attribute(found: Any, part: str, name: str, path: str) -> Any:
    """An attribute, or None if it is missing. Some packages import attributes lazily."""
    try:
        return getattr(found, part, None)
    except Exception as error:
        raise _broken(name, path, error) from error


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError, AttributeError):
        return False


def names_in(found: Any, prefix: str) -> list[str]:
    names = [n for n in dir(found) if not n.startswith("_")]
    return [f"{prefix}.{n}" for n in names]


def unknown(path: str, what: str, known: Sequence[str]) -> FamilyError:
    close = difflib.get_close_matches(path, known, 3)
    return FamilyError(what, where=path, remedy=f"did you mean {' or '.join(close)}?" if close else "")
