"""An optimizer's step that is done whole or not at all."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from hfta_nb.engine.array.access import is_held_once
from hfta_nb.errors import out_of_memory
from hfta_nb.optim import ArrayOptimizer


def first_step(optimizer: ArrayOptimizer, step: Callable[[], Any], restore: Callable[[], None]) -> None:
    """The first step of an optimizer, which allocates its state; where memory runs out, all is as before it.

    What it changes is kept on the host meanwhile. Later steps find their memory in place, and go without.

    Args:
        optimizer: whose gradients are there.
        step: makes the step.
        restore: undoes what has led to them: draws of random numbers, buffers.
    """
    undo = _kept(optimizer)
    try:
        step()
    except Exception as error:
        if out_of_memory(error):
            undo()
            restore()
        raise


@contextmanager
def undone(optimizer: ArrayOptimizer) -> Iterator[None]:
    """Where memory runs out within, what the optimizer changes is as before, and it is ready to step again."""
    undo = _kept(optimizer)
    try:
        yield
    except Exception as error:
        if out_of_memory(error):
            undo()
            raise OptimizerMemoryError(str(error)) from error
        raise


class OptimizerMemoryError(torch.OutOfMemoryError):
    """Memory ran out in an optimizer's step, of which nothing is left."""


def _kept(optimizer: ArrayOptimizer) -> Callable[[], None]:
    parameters: list[Tensor] = [p for g in optimizer.param_groups for p in g["params"] if not is_held_once(p)]
    values = [on_host(p) for p in parameters]
    state = on_host(optimizer.state_dict())

    @torch.no_grad()
    def restore() -> None:
        for p, value in zip(parameters, values, strict=True):
            p.copy_(value)
        optimizer.load_state_dict(state)

    return restore


def on_host(tree: Any) -> Any:
    """A copy of a tree of mappings, lists and tuples, its tensors in the host's memory."""
    if isinstance(tree, Tensor):
        return tree.detach().to("cpu", copy=True)
    if isinstance(tree, Mapping):
        return {k: on_host(v) for k, v in tree.items()}
    if isinstance(tree, list | tuple):  # a tuple stays one: a list is one value per member
        copied = [on_host(v) for v in tree]
        return copied if isinstance(tree, list) else tuple(copied)
    return copy.copy(tree)
