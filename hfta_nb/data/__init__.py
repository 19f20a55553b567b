"""Data sets, in memory or streamed, and the order of their samples."""

from hfta_nb.data.cached import Cached, versions
from hfta_nb.data.catalogue import found, kinds, load, names, names_for, resolve
from hfta_nb.data.catalogue_names import known, task_of
from hfta_nb.data.datasets import from_dataset
from hfta_nb.data.demand import Demand
from hfta_nb.data.device_placement import Placement, free_bytes, gathered, is_resident, placed, placement
from hfta_nb.data.folds import folded
from hfta_nb.data.labels import ignoring, next_tokens
from hfta_nb.data.long_pass import LONG_PASS, warn_of_long_pass
from hfta_nb.data.order import SPLIT_SEED, Draw, Fold, by_member, order
from hfta_nb.data.packing import pack
from hfta_nb.data.prefetch import Ahead
from hfta_nb.data.preprocessed import preprocessed
from hfta_nb.data.reading_state import Reading, packed, shown, unpacked
from hfta_nb.data.samples import Data, Positional, Samples, count, leaves, moved, take, tree_map
from hfta_nb.data.served import StreamEndedError
from hfta_nb.data.serving import StreamServer
from hfta_nb.data.streams import AnyData, Stream, from_batches, from_loader
from hfta_nb.data.tensors import check_finite, from_tensors
from hfta_nb.data.transfer import DeviceTransfer, InFlight
from hfta_nb.data.workers import Workers

__all__ = [
    "LONG_PASS",
    "SPLIT_SEED",
    "Ahead",
    "AnyData",
    "Cached",
    "Data",
    "Demand",
    "DeviceTransfer",
    "Draw",
    "Fold",
    "InFlight",
    "Placement",
    "Positional",
    "Reading",
    "Samples",
    "Stream",
    "StreamEndedError",
    "StreamServer",
    "Workers",
    "by_member",
    "check_finite",
    "count",
    "folded",
    "found",
    "free_bytes",
    "from_batches",
    "from_dataset",
    "from_loader",
    "from_tensors",
    "gathered",
    "ignoring",
    "is_resident",
    "kinds",
    "known",
    "leaves",
    "load",
    "moved",
    "names",
    "names_for",
    "next_tokens",
    "order",
    "pack",
    "packed",
    "placed",
    "placement",
    "preprocessed",
    "resolve",
    "shown",
    "take",
    "task_of",
    "tree_map",
    "unpacked",
    "versions",
    "warn_of_long_pass",
]
