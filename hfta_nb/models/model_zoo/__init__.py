"""The families by name, and the built-in families, one file each: plain PyTorch modules."""

from hfta_nb.models.model_zoo.built_in import BUILT_IN
from hfta_nb.models.model_zoo.registry import check_data, families, family, register, watch

__all__ = ["BUILT_IN", "check_data", "families", "family", "register", "watch"]
