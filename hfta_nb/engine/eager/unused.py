"""Parameters that some members' outputs don't depend on, where the caller differentiates the outputs of an array.

A plain module's parameter has no gradient then, and optimizers leave it alone; in stacked gradients its row is zeros,
by which optimizers with momentum or weight decay would move it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from hfta_nb.engine.eager.autograd_nodes import nodes, own_function
from hfta_nb.engine.members.tree import flatten
from hfta_nb.engine.rules.rule_mode import Usage


def note_usage(usage: Usage, index: int, result: Any, rows: Mapping[str, Tensor]) -> None:
    """Note which of a member's parameters its result depends on.

    Args:
        usage: receives it.
        index: the member.
        result: what it has computed alone.
        rows: its parameters by name, parts of tensors in a graph; others don't count.
    """
    wanted = {name: t.grad_fn for name, t in rows.items() if t.grad_fn is not None}
    if not wanted:
        return
    seen = set(nodes(v for v in flatten(result)[0] if isinstance(v, Tensor)))
    if any(map(own_function, seen)):  # these may use parameters in their backward
        seen |= set(wanted.values())
    usage.touched |= {(name, index) for name in wanted}
    usage.used |= {(name, index) for name, node in wanted.items() if node in seen}
