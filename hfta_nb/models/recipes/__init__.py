"""A family: a recipe for a variant's module, loss and metrics, with axes read from the build function's signature."""

from hfta_nb.models.recipes.functions import from_callable, from_function, named_parts, with_own
from hfta_nb.models.recipes.recipe import DEFAULT_DATA, FACTS, Family

__all__ = [
    "DEFAULT_DATA",
    "FACTS",
    "Family",
    "from_callable",
    "from_function",
    "named_parts",
    "with_own",
]
