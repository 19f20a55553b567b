"""Data sets as tensors, and the order in which a run goes through them."""

from hfta_nb.data.catalogue import kinds, known, load, names, resolve
from hfta_nb.data.order import SPLIT_SEED, order, orders
from hfta_nb.data.own import from_tensors
from hfta_nb.data.samples import Data, Samples, leaves, take, tree_map

__all__ = [
    "SPLIT_SEED",
    "Data",
    "Samples",
    "from_tensors",
    "kinds",
    "known",
    "leaves",
    "load",
    "names",
    "order",
    "orders",
    "resolve",
    "take",
    "tree_map",
]
