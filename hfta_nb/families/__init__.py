"""The families by name, and the built-in ones, one file each: plain modules, written as anyone would."""

from hfta_nb.families.built_in import BUILT_IN
from hfta_nb.families.registry import check_data, families, family, register, watch

__all__ = ["BUILT_IN", "check_data", "families", "family", "register", "watch"]
