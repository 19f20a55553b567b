"""Train many variants of a model as one: horizontally fused training arrays, from a notebook.

The names below are the public face. They are imported when first used, so that ``hfta-nb --help`` need not wait for
torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from hfta_nb import callbacks, crews, data, distributed, fleet, losses, optim
    from hfta_nb.data import Data
    from hfta_nb.engine.array import FusedArray, fuse, join, member, per_member, why_not
    from hfta_nb.errors import HftaError
    from hfta_nb.models.metrics import Metric
    from hfta_nb.models.model_zoo import families, family
    from hfta_nb.models.phases import Phase
    from hfta_nb.models.recipes import Family
    from hfta_nb.records.events import Control
    from hfta_nb.search import PBT, Halving, uniform
    from hfta_nb.search.grid import Grid, integers, linspace, logspace, seeds
    from hfta_nb.study import Result, Study

_WHERE = {
    **dict.fromkeys(("FusedArray", "fuse", "join", "member", "per_member", "why_not"), "hfta_nb.engine.array"),
    **dict.fromkeys(("families", "family"), "hfta_nb.models.model_zoo"),
    **dict.fromkeys(("Grid", "integers", "linspace", "logspace", "seeds"), "hfta_nb.search.grid"),
    **dict.fromkeys(("Result", "Study"), "hfta_nb.study"),
    "Control": "hfta_nb.records.events",
    "Data": "hfta_nb.data",
    "Family": "hfta_nb.models.recipes",
    "Halving": "hfta_nb.search",
    "HftaError": "hfta_nb.errors",
    "Metric": "hfta_nb.models.metrics",
    "PBT": "hfta_nb.search",
    "Phase": "hfta_nb.models.phases",
    "uniform": "hfta_nb.search",
}
_MODULES = ("callbacks", "crews", "data", "distributed", "fleet", "losses", "optim")

__all__ = [
    "PBT",
    "Control",
    "Data",
    "Family",
    "FusedArray",
    "Grid",
    "Halving",
    "HftaError",
    "Metric",
    "Phase",
    "Result",
    "Study",
    "callbacks",
    "crews",
    "data",
    "distributed",
    "families",
    "family",
    "fleet",
    "fuse",
    "integers",
    "join",
    "linspace",
    "logspace",
    "losses",
    "member",
    "optim",
    "per_member",
    "seeds",
    "uniform",
    "why_not",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"hfta_nb.{name}")
    if name not in _WHERE:
        raise AttributeError(f"module 'hfta_nb' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_WHERE[name]), name)
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
