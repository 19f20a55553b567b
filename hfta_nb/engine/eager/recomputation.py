"""Calls of an array inside a function that `torch.utils.checkpoint` computes again in the backward.

Torch restores its own random streams for that, but not those of the members, and counts the tensors that each of the
two calls saves.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from hfta_nb.engine.members.generators import MemberGenerators
from hfta_nb.errors import FusionError

_REMEDY = "use torch.utils.checkpoint inside the model, or hfta.Study(..., checkpointing='always')"


def in_backward() -> bool:
    """True if this code runs in a backward."""
    return bool(torch._C._current_graph_task_id() != -1)


def refuse_checkpoint() -> None:
    """Check that no checkpoint stores the tensors that are saved now.

    Raises:
        FusionError: one does.
    """
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    if hooks is not None and getattr(hooks[0], "__module__", "") == "torch.utils.checkpoint":
        raise FusionError(
            "the array is called within torch.utils.checkpoint, which does not know the members' random streams",
            where="array(x)",
            remedy=_REMEDY,
        )


@contextmanager
def same_streams(generators: MemberGenerators) -> Iterator[None]:
    """The context of a call in a backward, which must not draw.

    Raises:
        FusionError: the members drew random numbers; their streams are as before.
    """
    before = [dict(states) for states in generators.states]
    yield
    pairs = zip(before, generators.states, strict=True)
    if any(not torch.equal(old[kind], new[kind]) for old, new in pairs for kind in old):
        generators.states = before
        raise FusionError(
            "the model draws random numbers in a call that repeats an earlier one in the backward, as "
            "torch.utils.checkpoint(..., use_reentrant=True) does; they are others than in that call",
            where="array(x)",
            remedy=_REMEDY,
        )
