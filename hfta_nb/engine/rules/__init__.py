"""Operator rules, which replace `vmap`'s own rules for functions that a model calls.

`RULES` maps a function to a rule ``rule(context, function, args, kwargs)``. A `TorchFunctionMode` around the vmapped
call looks up every function there. Input and output of a rule are tensors as one member sees them; in between, the rule
leaves `vmap` and computes on tensors with a leading member axis. A new rule is one file here and one row in the table.
Open `rule_mode.py` first, then `linear.py`, the shortest rule.
"""

from collections.abc import Callable
from typing import Any

from torch.overrides import TorchFunctionMode

from hfta_nb.engine.rules import (
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
    tensor_values,
)
from hfta_nb.engine.rules.member_by_member import by_members
from hfta_nb.engine.rules.rule_mode import Context, Disagreement, HeldOnceWrite, Rule, RuleMode, SharedWrite
from hfta_nb.records import entry_points

_OF_OTHERS = [entry_points.loaded(entry_points.RULES, name) for name in entry_points.found(entry_points.RULES)]

RULES: dict[object, Rule] = {
    **{function: rule for rules in _OF_OTHERS for function, rule in (rules or {}).items()},
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
    **tensor_values.RULES,
}
"""All rules, by function; those of other packages are for functions that have none here."""

_FAST = {function: rule for function, rule in RULES.items() if function not in random.RULES}


def rule_mode(context: Context) -> RuleMode:
    """The mode to enter around a vmapped call."""
    return RuleMode(context, _FAST if context.fast_rng else RULES, by_members)


class AloneMode(TorchFunctionMode):
    """The mode in which a member that runs as its plain module uses kernels of this package.

    Args:
        plain: torch's kernels only.
    """

    def __init__(self, plain: bool = False) -> None:
        super().__init__()
        self.plain = plain

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        found = None if self.plain else recurrent.alone(func, args, kwargs or {})
        if found is not None:
            return found
        given = recurrent.weights_apart(args) if func in recurrent.LAYERS else args
        return func(*given, **(kwargs or {}))


__all__ = [
    "RULES",
    "AloneMode",
    "Context",
    "Disagreement",
    "HeldOnceWrite",
    "SharedWrite",
    "rule_mode",
]
