"""A family: the recipe by which a variant's module, loss and metrics are made, with its axes read off its signature."""

from hfta_nb.family.functions import from_callable, from_function, with_own
from hfta_nb.family.recipe import DEFAULT_DATA, FACTS, Family
from hfta_nb.family.registry import families, family, register, watch

__all__ = [
    "DEFAULT_DATA",
    "FACTS",
    "Family",
    "families",
    "family",
    "from_callable",
    "from_function",
    "register",
    "watch",
    "with_own",
]
