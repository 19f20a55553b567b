"""Models of packages, by name: how to build each one, and its inputs. Packages are imported on demand."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class Model(NamedTuple):
    """A model of a package.

    Attributes:
        package: its name in the package index.
        build: makes one.
        inputs: makes what it is called with.
        dtype: torch's default while it runs; float64 for a model that creates such tensors in its forward.
    """

    package: str
    build: Callable[[], nn.Module]
    inputs: Callable[[], tuple[Any, ...]]
    dtype: torch.dtype = torch.float32


class By(nn.Module):
    """Calls another method of a module in place of its forward."""

    def __init__(self, module: nn.Module, method: str, **keywords: Any) -> None:
        super().__init__()
        self.module, self.method, self.keywords = module, method, keywords

    def forward(self, *inputs: Any) -> Any:
        return getattr(self.module, self.method)(*inputs, **self.keywords)


class Then(nn.Module):
    """A module between two linear layers."""

    def __init__(self, inner: nn.Module, before: int, within: int, after: int) -> None:
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(before, within), inner, nn.Linear(after, 2)

    def forward(self, x: Tensor) -> Any:
        out = self.inner(self.first(x))
        return self.last(out[0] if isinstance(out, tuple) else out)


def get(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def made(path: str, *arguments: Any, **keywords: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        module: nn.Module = get(path)(*arguments, **keywords)
        return module

    return build


def drawn(*shapes: tuple[int, ...]) -> Callable[[], tuple[Any, ...]]:
    return lambda: tuple(torch.randn(shape) for shape in shapes)


def tokens(*shape: int, most: int = 20) -> Callable[[], tuple[Any, ...]]:
    return lambda: (torch.randint(0, most, shape),)


MODELS: dict[str, Model] = {}


def add(
    package: str,
    name: str,
    build: Callable[[], nn.Module],
    inputs: Callable[[], tuple[Any, ...]],
    dtype: torch.dtype = torch.float32,
) -> None:
    MODELS[f"{package}: {name}"] = Model(package, build, inputs, dtype)
