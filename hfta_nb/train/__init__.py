"""The only training loop. Iterating a `Trainer` does the work and yields events; requests are read between steps."""

from hfta_nb.train.pending_group import Save
from hfta_nb.train.settings import Settings
from hfta_nb.train.trainer import Trainer

__all__ = ["Save", "Settings", "Trainer"]
