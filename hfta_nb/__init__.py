"""Train many variants of a model as one: horizontally fused training arrays, from a notebook.

The names below are the public face. They are imported when first used, so that ``hfta-nb --help`` need not wait for
torch.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import sys
import warnings
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from hfta_nb import data, optim
    from hfta_nb.data import Data
    from hfta_nb.engine.array import FusedArray, fuse, join, member, per_member, why_not
    from hfta_nb.errors import HftaError
    from hfta_nb.models import losses
    from hfta_nb.models.metrics import Metric
    from hfta_nb.models.model_zoo import families, family
    from hfta_nb.models.phases import Phase
    from hfta_nb.models.recipes import Family
    from hfta_nb.models.weights import load_weights
    from hfta_nb.records import events
    from hfta_nb.records.events import Control
    from hfta_nb.search import PBT, Halving, Leader, uniform
    from hfta_nb.search.grid import Grid, integers, linspace, logspace, seeds
    from hfta_nb.study import Result, Study, annotate, callbacks, compare, delete_run, overlay, runs
    from hfta_nb.workers import distributed, fleet, pools

_WHERE = {
    **dict.fromkeys(("FusedArray", "fuse", "join", "member", "per_member", "why_not"), "hfta_nb.engine.array"),
    **dict.fromkeys(("families", "family"), "hfta_nb.models.model_zoo"),
    **dict.fromkeys(("Grid", "integers", "linspace", "logspace", "seeds"), "hfta_nb.search.grid"),
    **dict.fromkeys(("Result", "Study", "annotate", "compare", "delete_run", "overlay", "runs"), "hfta_nb.study"),
    "Control": "hfta_nb.records.events",
    "Data": "hfta_nb.data",
    "Family": "hfta_nb.models.recipes",
    "Halving": "hfta_nb.search",
    "HftaError": "hfta_nb.errors",
    "Leader": "hfta_nb.search",
    "Metric": "hfta_nb.models.metrics",
    "PBT": "hfta_nb.search",
    "Phase": "hfta_nb.models.phases",
    "load_weights": "hfta_nb.models.weights",
    "uniform": "hfta_nb.search",
}
_MODULES = {
    "callbacks": "study.callbacks",
    "pools": "workers.pools",
    "data": "data",
    "distributed": "workers.distributed",
    "events": "records.events",
    "fleet": "workers.fleet",
    "losses": "models.losses",
    "optim": "optim",
}
_RENAMED = {
    **{name: f"engine.{name}" for name in ("array", "eager", "kernels", "members", "padded", "replay", "rules")},
    **{name: f"models.{name}" for name in ("losses", "metrics", "model_zoo", "phases", "recipes")},
    **{name: f"records.{name}" for name in ("events", "history", "store", "telemetry")},
    **{name: f"study.{name}" for name in ("callbacks", "executors")},
    **{name: f"workers.{name}" for name in ("distributed", "fleet")},
    "crews": "workers.pools",
    "augment": "data.augment",
    "grid": "search.grid",
    "plan": "train.plan",
    "step": "train.step",
}
"""Where modules are by the names that they had before 0.1; those names warn, and go with the next release."""

__all__ = [
    "PBT",
    "Control",
    "Data",
    "Family",
    "FusedArray",
    "Grid",
    "Halving",
    "HftaError",
    "Leader",
    "Metric",
    "Phase",
    "Result",
    "Study",
    "annotate",
    "callbacks",
    "compare",
    "data",
    "delete_run",
    "distributed",
    "events",
    "families",
    "family",
    "fleet",
    "fuse",
    "integers",
    "join",
    "linspace",
    "load_weights",
    "logspace",
    "losses",
    "member",
    "optim",
    "overlay",
    "per_member",
    "pools",
    "runs",
    "seeds",
    "uniform",
    "why_not",
]


def __getattr__(name: str) -> Any:
    if name == "crews":
        warnings.warn("hfta_nb.crews is hfta_nb.pools now", DeprecationWarning, stacklevel=2)
        name = "pools"
    if name in _MODULES:
        return importlib.import_module(f"hfta_nb.{_MODULES[name]}")
    if name not in _WHERE:
        raise AttributeError(f"module 'hfta_nb' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_WHERE[name]), name)
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]


class _Renamed(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports a module by the name that it had before; it is the same module."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        package, _, rest = fullname.partition(".")
        first, _, _ = rest.partition(".")
        if package != "hfta_nb" or first not in _RENAMED:
            return None
        name = f"hfta_nb.{_RENAMED[first]}{rest.removeprefix(first)}"
        warnings.warn(f"{fullname} is {name} now", DeprecationWarning, stacklevel=2)
        return importlib.util.spec_from_loader(fullname, self, origin=name)

    def create_module(self, spec: Any) -> Any:
        module = importlib.import_module(spec.origin)
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: Any) -> None:
        name = module.__spec__
        if name.loader_state is not None:  # what the import system has just put there
            module.__spec__ = name.loader_state


sys.meta_path.insert(0, _Renamed())
