"""Search through Optuna: which configurations are tried next, and which of those that train are given up.

`Searcher` sits beside the training loop: events go in, requests to prune and new trials come out. It imports no torch,
and Optuna only when something is searched. Begin reading at `searcher.py`.
"""

from hfta_nb.search.importances import importances
from hfta_nb.search.leaders import CENTER, Leader
from hfta_nb.search.mirror import Mirror
from hfta_nb.search.population import PBT, Halving, Rounds, population_from_json, population_to_json
from hfta_nb.search.rungs import has_rungs, rounds_at, rungs_of
from hfta_nb.search.saved import searcher_from_json, searcher_to_json
from hfta_nb.search.searcher import Searcher
from hfta_nb.search.spaces import Space, Uniform, extremes, is_space, logarithmic, uniform
from hfta_nb.search.storage import Home
from hfta_nb.search.trials import COSTS, Trial

__all__ = [
    "CENTER",
    "COSTS",
    "PBT",
    "Halving",
    "Home",
    "Leader",
    "Mirror",
    "Rounds",
    "Searcher",
    "Space",
    "Trial",
    "Uniform",
    "extremes",
    "has_rungs",
    "importances",
    "is_space",
    "logarithmic",
    "population_from_json",
    "population_to_json",
    "rounds_at",
    "rungs_of",
    "searcher_from_json",
    "searcher_to_json",
    "uniform",
]
