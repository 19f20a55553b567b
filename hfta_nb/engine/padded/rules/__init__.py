"""Padding rules: how a function is computed for members of different sizes at once.

`PADDED` maps a function to a rule ``rule(mode, function, args, kwargs)``. Every rule keeps one invariant: padded
entries of its result are zero and pass no gradient on. For a call where a rule cannot keep it, the rule returns
`NotImplemented`, and the function runs at true sizes, once per group of members with equal sizes. A new rule is one row
in a table.
"""

from hfta_nb.engine.padded.mode import Rule
from hfta_nb.engine.padded.rules import (
    arithmetic,
    attention,
    elementwise,
    layers,
    norm,
    packing,
    reduce,
    shape,
    spatial,
)

PADDED: dict[object, Rule] = {
    **elementwise.RULES,
    **arithmetic.RULES,
    **layers.RULES,
    **spatial.RULES,
    **norm.RULES,
    **reduce.RULES,
    **shape.RULES,
    **packing.RULES,
    **attention.RULES,
}
"""All padding rules, by function."""

__all__ = ["PADDED"]
