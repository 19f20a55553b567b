"""A family: the recipe by which a variant's module, loss and metrics are made, with its axes read off its signature."""

from hfta_nb.recipes.functions import from_callable, from_function, with_own
from hfta_nb.recipes.recipe import DEFAULT_DATA, FACTS, Family

__all__ = [
    "DEFAULT_DATA",
    "FACTS",
    "Family",
    "from_callable",
    "from_function",
    "with_own",
]
