"""Operator rules: what runs instead of `vmap`'s own rule for a function that a model calls.

`RULES` maps the function to a rule ``rule(context, function, args, kwargs)``. A `TorchFunctionMode` around the
vmapped call looks every function up there. A new rule is one file here and one row in the table.
"""

from hfta_nb.array.rules import linear, random
from hfta_nb.array.rules.base import Context, Rule, RuleMode

RULES: dict[object, Rule] = {**linear.RULES, **random.RULES}
"""All rules, by function."""

__all__ = ["RULES", "Context", "Rule", "RuleMode"]
