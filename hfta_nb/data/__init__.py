"""Data sets, in memory or streamed, and the order of their samples."""

from hfta_nb.data.catalogue import found, kinds, load, names, names_for, resolve
from hfta_nb.data.catalogue_names import known, task_of
from hfta_nb.data.datasets import from_dataset
from hfta_nb.data.device_placement import Placement, free_bytes, gathered, is_resident, placed, placement
from hfta_nb.data.order import SPLIT_SEED, order, orders
from hfta_nb.data.prefetch import Ahead
from hfta_nb.data.samples import Data, Samples, count, leaves, moved, take, tree_map
from hfta_nb.data.streams import AnyData, Stream, from_batches, from_loader
from hfta_nb.data.tensors import from_tensors
from hfta_nb.data.transfer import DeviceTransfer, InFlight

__all__ = [
    "SPLIT_SEED",
    "Ahead",
    "AnyData",
    "Data",
    "DeviceTransfer",
    "InFlight",
    "Placement",
    "Samples",
    "Stream",
    "count",
    "found",
    "free_bytes",
    "from_batches",
    "from_dataset",
    "from_loader",
    "from_tensors",
    "gathered",
    "is_resident",
    "kinds",
    "known",
    "leaves",
    "load",
    "moved",
    "names",
    "names_for",
    "order",
    "orders",
    "placed",
    "placement",
    "resolve",
    "take",
    "task_of",
    "tree_map",
]
