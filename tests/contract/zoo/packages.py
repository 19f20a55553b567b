"""Imports of optional model libraries."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import pytest

from hfta_nb.models.model_zoo import vision


def package(name: str) -> ModuleType:
    """The module `name` of torchvision, timm or another library; a test without it is skipped."""
    top = name.partition(".")[0]
    if importlib.util.find_spec(top) is None:
        pytest.skip(f"{top} is not installed" + ("; `make zoo` tests it" if top == vision.NAME else ""))
    return vision.import_module(name)
