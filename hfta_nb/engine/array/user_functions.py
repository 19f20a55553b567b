"""Calls of a user's functions of one member's values, such as metrics, inside an array's call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch._C import _functorch as functorch

from hfta_nb.engine.members.tree import flatten, tensor_map, versions
from hfta_nb.engine.padded.tags import tag_of
from hfta_nb.engine.rules.member_by_member import each_member, joined
from hfta_nb.engine.rules.rule_mode import active_context
from hfta_nb.errors import HftaError, out_of_memory


def alone_where_needed(function: Callable[..., Any], alone: Callable[..., Any], *args: Any) -> Any:
    """Call a function; inside an array's `vmap`, which can't run all functions, once per member where it fails.

    Only the function runs once per member then, and the model stays fused. For values that need no gradient.

    Args:
        function: of one member's values, for all members at once.
        alone: the same for one member, with a plain module's tensors.
        args: trees of tensors.

    Raises:
        Exception: that of `alone`.
    """
    context = active_context()
    if context is None:
        return alone(*args)
    try:
        return function(*args)
    except Exception as error:
        padded = any(isinstance(v, Tensor) and tag_of(v) is not None for v in flatten(args)[0])
        if padded or isinstance(error, HftaError) or out_of_memory(error):
            raise
    # A function may write into a target, which members share.
    given = tensor_map(lambda v: v if context.batched(v) else v.clone(), args)
    context.apart = True
    with context.outside():
        return joined(context, each_member(context, alone, given, {}))


def changes(*args: Any) -> list[int]:
    """How often each tensor of these trees has been changed in place; inside `vmap`, that of all members."""
    tensors = [v for v in flatten(args)[0] if isinstance(v, Tensor)]
    return versions([functorch.get_unwrapped(v) if functorch.is_batchedtensor(v) else v for v in tensors])
