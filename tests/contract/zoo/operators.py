"""Lets torchvision be imported if its compiled part does not load, for example with a CPU build of torch.

This is a pytest plugin for `make zoo`, whose process has torchvision on the path. No other test may load it, as it
hides Python's error message about such a torchvision. On import, torchvision registers shape functions of two
operators, which must therefore exist. Detection models call them and are not tested; all other models are pure Python.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch


def _loads() -> bool:
    """True if torchvision's compiled part is there and fits torch."""
    spec = importlib.util.find_spec("torchvision")
    for folder in (spec and spec.submodule_search_locations) or []:
        for path in Path(folder).glob("_C*.so"):
            try:
                torch.ops.load_library(str(path))
            except OSError:
                continue
            return True
    return False


LIBRARY = None if _loads() else torch.library.Library("torchvision", "FRAGMENT")
"""The names last as long as this object."""
if LIBRARY is not None:
    for operator in ("nms", "qnms"):
        LIBRARY.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
