"""Search through Optuna: which configurations are tried next, and which of those that train are given up.

`Searcher` sits beside the training loop: events go in, requests to prune and new trials come out. It imports no torch,
and Optuna only when something is searched. Begin reading at `searcher.py`.
"""

from hfta_nb.search.saved import heard, told
from hfta_nb.search.searcher import Searcher, Trial
from hfta_nb.search.spaces import Space, Uniform, is_space, uniform

__all__ = ["Searcher", "Space", "Trial", "Uniform", "heard", "is_space", "told", "uniform"]
