"""Train many variants of a model as one: horizontally fused training arrays, from a notebook.

The names below are the public face. They are imported when first used, so that ``hfta-nb --help`` need not wait for
torch.
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from hfta_nb import callbacks, data, losses, optim
    from hfta_nb.array import FusedArray, fuse, join, per_member, why_not
    from hfta_nb.data import Data
    from hfta_nb.errors import HftaError
    from hfta_nb.events import Control
    from hfta_nb.families import families, family
    from hfta_nb.family import Family
    from hfta_nb.grid import Grid, integers, linspace, logspace, seeds
    from hfta_nb.metrics import Metric
    from hfta_nb.phases import Phase
    from hfta_nb.study import Result, Study

_WHERE = {
    **dict.fromkeys(("FusedArray", "fuse", "join", "per_member", "why_not"), "hfta_nb.array"),
    **dict.fromkeys(("families", "family"), "hfta_nb.families"),
    **dict.fromkeys(("Grid", "integers", "linspace", "logspace", "seeds"), "hfta_nb.grid"),
    **dict.fromkeys(("Result", "Study"), "hfta_nb.study"),
    "Control": "hfta_nb.events",
    "Data": "hfta_nb.data",
    "Family": "hfta_nb.family",
    "HftaError": "hfta_nb.errors",
    "Metric": "hfta_nb.metrics",
    "Phase": "hfta_nb.phases",
}
_MODULES = ("callbacks", "data", "losses", "optim")

__all__ = [
    "Control",
    "Data",
    "Family",
    "FusedArray",
    "Grid",
    "HftaError",
    "Metric",
    "Phase",
    "Result",
    "Study",
    "callbacks",
    "data",
    "families",
    "family",
    "fuse",
    "integers",
    "join",
    "linspace",
    "logspace",
    "losses",
    "optim",
    "per_member",
    "seeds",
    "why_not",
]


class _Face(types.ModuleType):
    """Gives the functions `family` and `families` their names, which the modules that define them have as well."""

    def __getattr__(self, name: str) -> Any:
        if name in _MODULES:
            return importlib.import_module(f"hfta_nb.{name}")
        if name not in _WHERE:
            raise AttributeError(f"module 'hfta_nb' has no attribute {name!r}")
        value = getattr(importlib.import_module(_WHERE[name]), name)
        self.__dict__[name] = value
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        # The import system puts a submodule into its package; these two would hide the functions.
        if not (name in ("family", "families") and isinstance(value, types.ModuleType)):
            super().__setattr__(name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        # As cloudpickle does for plain modules: a function of a notebook that uses `hfta` goes to the worker by name.
        return importlib.import_module, (self.__name__,)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *__all__]


sys.modules[__name__].__class__ = _Face
