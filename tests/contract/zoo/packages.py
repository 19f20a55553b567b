"""Importing model libraries that the tests can do without."""

from __future__ import annotations

import importlib
import importlib.util
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch


def package(name: str) -> ModuleType:
    """The module `name` of torchvision, timm or transformers; a test without it is skipped."""
    top = name.partition(".")[0]
    if importlib.util.find_spec(top) is None:
        pytest.skip(f"{top} is not installed")
    if importlib.util.find_spec("torchvision") is not None:
        _operators()  # timm and transformers import it, too
    return importlib.import_module(name)


@cache
def _operators() -> Any:
    """Let torchvision be imported where its compiled part doesn't load, as with a CPU build of torch.

    It registers what two operators do to shapes when it is imported, so they must have a name by then. Detection
    models call them and are not built here; all others are pure Python.
    """
    spec = importlib.util.find_spec("torchvision")
    assert spec is not None
    for folder in spec.submodule_search_locations or []:
        for path in Path(folder).glob("_C*.so"):
            try:
                torch.ops.load_library(str(path))
                return None
            except OSError:
                continue
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library  # its names last as long as it does
