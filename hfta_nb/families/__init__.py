"""The built-in families, one file each: plain modules, written as anyone would."""

from hfta_nb.families.cnn import cnn
from hfta_nb.families.mlp import mlp

BUILT_IN = (cnn, mlp)
