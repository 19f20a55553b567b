"""Lets torchvision be imported where its compiled part doesn't load, as with a CPU build of torch.

A plugin of pytest for `make zoo`, in whose process torchvision is on the path; no other test may load it, for it hides
what Python says of such a torchvision. torchvision registers what two operators do to shapes when it is imported, so
they must have a name by then. Detection models call them and are not tested; all others are pure Python.
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
