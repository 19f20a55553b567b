"""Imports timm and transformers where torchvision is missing or was built for another torch.

timm imports torchvision for a layer that freezes batch norm, image transforms and data sets. Its models need none of
them. If torchvision is not installed, timm is imported with placeholders for these names; using one raises an error
that says to install torchvision. ``import torchvision`` itself still fails.

A torchvision that was built for another torch can't be imported, and neither can what imports it.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch

from hfta_nb.errors import FamilyError

NAME = "torchvision"
NEEDS = frozenset({"timm"})
"""Packages that import torchvision and whose models don't need it."""

PLACEHOLDERS = frozenset(
    NAME + part for part in ("", ".datasets", ".ops", ".ops.misc", ".transforms", ".transforms.functional")
)
"""Modules with placeholders; others can't be imported, which timm handles."""


def import_module(name: str) -> ModuleType:
    """Like `importlib.import_module`, for timm without torchvision as well."""
    if name.partition(".")[0] not in NEEDS or NAME in sys.modules or importlib.util.find_spec(NAME) is not None:
        return importlib.import_module(name)
    with _placeholders():
        return importlib.import_module(name)


def install_command() -> str:
    """The command that installs the torchvision that belongs to this torch, and leaves torch as it is."""
    release, _, build = importlib.metadata.version("torch").partition("+")
    major, minor = release.split(".")[:2]
    command = f'pip install "torchvision==0.{int(minor) + 15}.*"' if major == "2" else "pip install torchvision"
    return f"{command} from the package index that torch {build} came from" if build else command


def blamed(error: BaseException, path: str) -> FamilyError | None:
    """The error to raise instead of `error` if an installed torchvision caused it; None otherwise.

    Args:
        error: the error of an import.
        path: the requested constructor.
    """
    first = _first_in_torchvision(error)
    if first is None:
        return None
    try:
        version = importlib.metadata.version(NAME)
    except importlib.metadata.PackageNotFoundError:
        version = "of unknown version"
    return FamilyError(
        f"torchvision {version} can't be imported with torch {torch.__version__}, as it was built for another torch",
        where=path,
        got=f"{type(first).__name__}: {first}",
        remedy=f"pip uninstall torchvision; if you need it, then {install_command()}; restart Python",
    )


def _first_in_torchvision(error: BaseException) -> BaseException | None:
    """The error of a chain that was raised while torchvision was imported."""
    link: BaseException | None = error
    while link is not None:
        frames = [frame for frame, _ in traceback.walk_tb(link.__traceback__)]
        if any(str(frame.f_globals.get("__name__")).partition(".")[0] == NAME for frame in frames):
            return link
        link = link.__cause__ or link.__context__
    return None


@contextmanager
def _placeholders() -> Iterator[None]:
    finder = _Finder()
    sys.meta_path.append(finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in PLACEHOLDERS:
            sys.modules.pop(name, None)


class _Finder:
    """Finds a module of placeholders where nothing else finds torchvision."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name in PLACEHOLDERS else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """A placeholder has no code."""


class _Module(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _placeholder(f"{self.__name__}.{name}")


class _Placeholder(type):
    """Placeholder classes, which can be named, compared, stored and derived from, but not called."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _placeholder(f"{cls.__module__}.{cls.__qualname__}.{name}")

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        raise FamilyError(
            f"{cls.__name__} needs torchvision, which is not installed", where="timm", remedy=install_command()
        )


def _placeholder(name: str) -> type:
    module, _, last = name.rpartition(".")
    return _Placeholder(last, (), {"__module__": module})
