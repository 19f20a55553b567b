"""Optimizers and lr schedulers with one value per member; names and arguments as in `torch.optim`."""

from hfta_nb.optim import lr_scheduler
from hfta_nb.optim.adam import Adam, AdamW
from hfta_nb.optim.base import ArrayOptimizer
from hfta_nb.optim.sgd import SGD
from hfta_nb.optim.values import Values

__all__ = ["SGD", "Adam", "AdamW", "ArrayOptimizer", "Values", "lr_scheduler"]
