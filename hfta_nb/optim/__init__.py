"""Optimizers and lr schedulers with one value per member; names and arguments as in `torch.optim`."""

from hfta_nb.optim import lr_scheduler
from hfta_nb.optim.adafactor import Adafactor
from hfta_nb.optim.adagrad import Adadelta, Adagrad, RMSprop
from hfta_nb.optim.adam import Adam, AdamW
from hfta_nb.optim.adam_kin import Adamax, NAdam, RAdam
from hfta_nb.optim.asgd import ASGD
from hfta_nb.optim.by_member import ByMember
from hfta_nb.optim.clipping import clip_grad_norm_, clip_grad_value_, clip_grads_with_norm_, get_total_norm
from hfta_nb.optim.grad_scaler import GradScaler
from hfta_nb.optim.group_functions import no_decay_on_norms_and_biases, param_groups
from hfta_nb.optim.lbfgs import LBFGS
from hfta_nb.optim.leaders import pull_to_center, pull_to_leader
from hfta_nb.optim.muon import Muon
from hfta_nb.optim.optimizer_base import ArrayOptimizer
from hfta_nb.optim.rowwise_adagrad import RowwiseAdagrad
from hfta_nb.optim.rprop import Rprop
from hfta_nb.optim.sgd import SGD
from hfta_nb.optim.sparse_adam import SparseAdam

__all__ = [
    "ASGD",
    "LBFGS",
    "SGD",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "ArrayOptimizer",
    "ByMember",
    "GradScaler",
    "Muon",
    "NAdam",
    "RAdam",
    "RMSprop",
    "RowwiseAdagrad",
    "Rprop",
    "SparseAdam",
    "clip_grad_norm_",
    "clip_grad_value_",
    "clip_grads_with_norm_",
    "get_total_norm",
    "lr_scheduler",
    "no_decay_on_norms_and_biases",
    "param_groups",
    "pull_to_center",
    "pull_to_leader",
]
