"""Finds what the backward of a loss or of a model's hook changes: by hooks of tensors, own functions, checkpoints.

A loss is computed for each member with what it keeps for that member; the backward runs later, for several members at
once, and more often, as where calls are compared. What it changes can't be kept for each member, and is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from hfta_nb.engine.eager.function_states import FunctionStates, values_of
from hfta_nb.engine.eager.function_values import put_back, same
from hfta_nb.engine.eager.holders import GONE
from hfta_nb.engine.members.tree import flatten
from hfta_nb.errors import FusionError


class BackwardChangeError(FusionError):
    """A backward changes what a function keeps, which the plain module's run must not hide."""


@contextmanager
def unchanged(functions: FunctionStates) -> Iterator[None]:
    """The context of a backward within a call of functions.

    Raises:
        BackwardChangeError: it changes what they keep.
    """
    check = watch(functions)
    yield
    check()


def watch(functions: FunctionStates) -> Callable[[], None]:
    """A function that checks that what the functions of this call keep, now as well as in their call, has not changed.

    Raises:
        BackwardChangeError: by that function; what has changed is put back.
    """
    if not functions.in_backward:
        return lambda: None
    return _watch(functions, functions.holders)


def follow(functions: FunctionStates, result: Any) -> None:
    """Let every backward of a call's result check that it changes nothing that the functions keep."""
    if not functions.in_backward:
        return
    holders = functions.holders

    def begin(grad: Tensor) -> None:
        torch.autograd.Variable._execution_engine.queue_callback(_watch(functions, holders))

    for value in flatten(result)[0]:
        if isinstance(value, Tensor) and value.requires_grad:
            value.register_hook(begin)  # type: ignore[no-untyped-call]


def _watch(functions: FunctionStates, holders: Any) -> Callable[[], None]:
    values = values_of(holders)
    contents = functions.contents(values, {})

    def check() -> None:
        changed, now = [], values_of(holders)
        for holder, name in {**now, **values}:
            place = holder, name
            own = values.get(place, GONE)
            if not same(now.get(place, GONE), own, place in contents, contents.get(place)):
                changed.append(holder.path(name))
                holder.put(name, put_back(own, contents[place]) if place in contents else own)
        changed += functions.changed_copies()
        if changed:
            raise BackwardChangeError(
                "the backward changes what a loss or hook keeps, which can't be kept for each member there",
                where=", ".join(sorted(set(changed))),
                accepted="changes while the loss is computed, before it returns",
                remedy="change it there; or give each member a loss of its own, outside: "
                "torch.stack([losses[i](out, y) for i, out in enumerate(array(x))]).sum().backward(); for gradients "
                "within a model, let a forward hook keep the output, and register its hook after array(x): it has the "
                "member axis",
            )

    return check
