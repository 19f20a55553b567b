"""Operator rules: what runs instead of `vmap`'s own rule for a function that a model calls.

`RULES` maps the function to a rule ``rule(context, function, args, kwargs)``. A `TorchFunctionMode` around the
vmapped call looks every function up there. In go tensors as one member sees them, out come such tensors; in between a
rule leaves `vmap` and computes on tensors with a leading member axis. A new rule is one file here and one row in the
table. Open `base.py` first, then `linear.py`, the shortest rule.
"""

from collections.abc import Callable
from typing import Any

from torch.overrides import TorchFunctionMode

from hfta_nb.rules import (
    attention,
    convolution,
    embedding,
    factories,
    kernels,
    likelihood,
    linear,
    norm,
    pooling,
    random,
    recurrent,
    values,
)
from hfta_nb.rules.base import Context, Disagreement, Rule, RuleMode, SharedWrite
from hfta_nb.rules.members import by_members

RULES: dict[object, Rule] = {
    **linear.RULES,
    **norm.RULES,
    **pooling.RULES,
    **attention.RULES,
    **convolution.RULES,
    **embedding.RULES,
    **kernels.RULES,
    **recurrent.RULES,
    **likelihood.RULES,
    **factories.RULES,
    **random.RULES,
    **values.RULES,
}
"""All rules, by function."""

_FAST = {function: rule for function, rule in RULES.items() if function not in random.RULES}


def rule_mode(context: Context) -> RuleMode:
    """The mode to put around a vmapped call."""
    return RuleMode(context, _FAST if context.fast_rng else RULES, by_members)


class AloneMode(TorchFunctionMode):
    """Within, a member that runs as the plain module takes kernels of this package, where that has them."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        found = recurrent.alone(func, args, kwargs or {})
        return func(*args, **(kwargs or {})) if found is None else found


__all__ = [
    "RULES",
    "AloneMode",
    "Context",
    "Disagreement",
    "Rule",
    "RuleMode",
    "SharedWrite",
    "by_members",
    "rule_mode",
]
