"""How calls of an array run now, for code that depends on it or describes it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import Tensor

from hfta_nb.engine.eager.gradients import target_of
from hfta_nb.engine.kernels.capture import Backend
from hfta_nb.engine.replay.array_call import BACKWARD, ArrayCall
from hfta_nb.engine.replay.cache_entry import CacheEntry
from hfta_nb.engine.replay.inductor.decide import swap
from hfta_nb.engine.replay.program import Program

if TYPE_CHECKING:
    from hfta_nb.engine.array.fused import FusedArray


def program_of(
    array: FusedArray,
    loss_fn: Callable[..., Any],
    x: Any,
    y: Any,
    *,
    scale: Tensor | None = None,
    only: Collection[str] | None = None,
) -> Program | None:
    """The program that ``array.backward(loss_fn, x, y, has_aux=True, ...)`` would run now; None if it would not
    replay."""
    given = x, target_of(loss_fn, y)
    call = ArrayCall(array._state, BACKWARD, given, loss_fn, has_aux=True, scale=scale, only=only)
    seen = array._calls.steps.find(call)
    if seen is None or seen.program is None or seen.guards is None or not seen.guards.hold():
        return None
    if seen.program.decision.is_due:
        swap(seen.program, array._state.settings.planned_steps)
    return seen.program


def graphs_of(array: FusedArray) -> Backend | None:
    """Captures work of the array on a GPU, in the memory pool of its other graphs; None on a CPU."""
    return array._state.graphs


@contextmanager
def strictly(array: FusedArray) -> Iterator[None]:
    """Raise errors of a replay within the context, instead of discarding the program and running eagerly."""
    array._calls.steps.strict = True
    try:
        yield
    finally:
        array._calls.steps.strict = False


class Standing:
    """The state of a replayed call of `backward`, to test later whether it still holds.

    Args:
        array: the array.
        seen: the cache entry of the call.
        x, y: its inputs, or similar ones.
    """

    __slots__ = ("_cache", "_like", "_program", "_seen")

    def __init__(self, array: FusedArray, seen: CacheEntry, x: Tensor, y: Tensor) -> None:
        self._cache, self._seen, self._program = array._calls.steps, seen, seen.program
        self._like = self._cache.like((x, y))

    @classmethod
    def of(cls, array: FusedArray, programs: Collection[Any], x: Tensor, y: Tensor) -> Standing | None:
        """For the call that runs one of these programs."""
        known = (s for s in array._calls.steps if s.program is not None and any(s.program is p for p in programs))
        seen = next(known, None)
        return None if seen is None else cls(array, seen, x, y)

    def matches(self, x: Any, y: Any) -> bool:
        """True if the call with these inputs and the same loss would run the same program."""
        seen, cache = self._seen, self._cache
        if type(x) is not Tensor or type(y) is not Tensor or seen.program is not self._program or seen.guards is None:
            return False
        if seen.program is None or seen.program.decision.is_due:
            return False
        return cache.open() and cache.like((x, y)) == self._like and seen.guards.hold()


def way_of(array: FusedArray) -> str:
    """How the array's training steps run now, and why not as requested.

    "as one CUDA graph", "compiled in 21 s: 1.2 ms, not compiled 1.4 ms", both, "recorded steps", or "" for eager
    execution.
    """
    ready = array._calls.steps.programs()
    compiled = next((p.decision.note for p in ready if p.decision.compiled is not None), "")
    if any(note.startswith("captured") for note in array.step_notes):
        return ", ".join(filter(None, ["as one CUDA graph", compiled]))
    if compiled or not ready:
        return compiled
    refused = array._calls.steps.decisions() if array.compiling == "always" else []
    return f"recorded steps, {refused[0]}" if refused else "recorded steps"
