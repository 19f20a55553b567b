"""Whether a call would be replayed if it were made now, for those who build on that."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from torch import Tensor

from hfta_nb.array.capture.program import Program
from hfta_nb.array.capture.steps import Asked
from hfta_nb.array.gradients import target_of

if TYPE_CHECKING:
    from hfta_nb.array.fused import FusedArray


def program_of(
    array: FusedArray,
    loss_fn: Callable[..., Any],
    x: Any,
    y: Any,
    *,
    scale: Tensor | None = None,
    only: Collection[str] | None = None,
) -> Program | None:
    """The program that ``array.backward(loss_fn, x, y, has_aux=True, ...)`` would run now; None where there is none."""
    given = x, target_of(loss_fn, y)
    seen = array._steps.find(Asked(loss_fn, given, True, scale, only))
    if seen is None or seen.program is None or seen.reads is None or not seen.reads.hold():
        return None
    return seen.program
