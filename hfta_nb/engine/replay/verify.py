"""Compares a program with the recorded call, and undoes a failed run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor
from torch.autograd.grad_mode import _unsafe_preserve_version_counter

from hfta_nb.engine.comparison import Values, nudge, other_than, streams_by_member
from hfta_nb.engine.distances import Change
from hfta_nb.engine.eager.state import ArrayState
from hfta_nb.engine.kernels.strategy import matmul_precision
from hfta_nb.engine.members.arena import Arena

Made = TypeVar("Made")

Run = Callable[[], Sequence[Tensor]]
"""Makes a call; returns its results, and writes its gradients to their places in the arenas."""


class Before:
    """The buffers and generators of an array before a call; its parameters too if calls change them.

    Args:
        state: of the array.
        draws: whether the call may draw random numbers of the members.
    """

    def __init__(self, state: ArrayState, draws: bool = True) -> None:
        self.state = state
        self.states = list(state.generators.states) if draws else None
        self.tensors = [a.data.clone() for a in changing(state)]

    @torch.no_grad()
    def put_back(self) -> None:
        """Restore the state before the call."""
        for arena, before in zip(changing(self.state), self.tensors, strict=True):
            arena.data.copy_(before)
        if self.states is not None:
            self.state.generators.states = list(self.states)

    @classmethod
    def replay(cls, state: ArrayState, draws: bool) -> Before | None:
        """What a replay may have to put back; None if it changes nothing."""
        return cls(state, draws) if draws or changing(state) else None


def changing(state: ArrayState) -> list[Arena]:
    """The arenas that calls change."""
    return [*state.buffer_arenas, *(state.arenas if state.rewrites else ())]


@contextmanager
def left_alone(state: ArrayState) -> Iterator[None]:
    """Restore buffers, gradients in the arenas, generators and usage on exit."""
    after, usage = state.snapshot(), state.engine.usage
    touched, used = set(usage.touched), set(usage.used)
    kept = [(a, a.grad.clone()) for a in state.arenas if a.has_grad]
    try:
        yield
    finally:
        after()
        with torch.no_grad():
            for arena, grad in kept:
                arena.grad.copy_(grad)
        usage.touched, usage.used = touched, used


Outcome = dict[str, Tensor | Change]
"""What a run of a call comes to."""


def outcome(
    state: ArrayState, run: Run, restore: Callable[[], None], changed: Mapping[str, Tensor] | None = None
) -> Outcome:
    """Results, gradients in the arenas, changes of tensors that calls change, random streams.

    Args:
        state: of the array.
        run: the call.
        restore: restores the state before the call.
        changed: what `changeable` was before the call, if `restore` does not restore it.
    """
    restore()
    before = changeable(state) if changed is None else changed
    graded = [arena for arena in state.arenas if arena.has_grad]
    with torch.no_grad():
        for arena in graded:  # what this run leaves out must not be there from another one
            arena.grad.fill_(math.nan)
    found: Outcome = {f"result {i}": result.detach().clone() for i, result in enumerate(run())}
    found |= {f"gradient of {s.name}": arena.grad_view(s.name).clone() for arena in graded for s in arena.spans}
    found |= {name: Change(before[name], after) for name, after in changeable(state).items()}
    return found | streams_by_member(state.generators)


def changeable(state: ArrayState) -> dict[str, Tensor]:
    """Copies of what calls change: buffers, and parameters too where a call was seen to change them."""
    kinds = ("buffer", state.buffer_arenas), ("parameter", state.arenas if state.rewrites else ())
    return {f"{k} {s.name}": a.view(s.name).clone() for k, arenas in kinds for a in arenas for s in a.spans}


def nudged_outcome(
    state: ArrayState, run: Run, restore: Callable[[], None], half: torch.dtype | None, number: int
) -> Outcome:
    """What a run comes to when the last bits of the parameters have changed, which are as before afterwards.

    Args:
        state, run, restore: see `outcome`.
        half: see `matmul_precision.rounding`.
        number: of the changes.
    """
    arenas = tuple(arena.stored for arena in state.parameter_arenas)
    before = [data.clone() for data in arenas]

    def changed() -> None:
        restore()
        nudge(arenas, partial(matmul_precision.rounding, half=half), torch.Generator().manual_seed(number))

    with _unsafe_preserve_version_counter(arenas):  # they may be in graphs of the caller's
        try:
            return outcome(state, run, changed)
        finally:
            with torch.no_grad():
                torch._foreach_copy_(arenas, before)


def repeated(
    state: ArrayState,
    restore: Callable[[], None],
    first: Run,
    second: Run,
    half: torch.dtype | None,
    kinks: bool = False,
) -> str:
    """How a second way to make a call differs from the first; see `differing`."""
    expected, found = outcome(state, first, restore), outcome(state, second, restore)
    return differing(found, expected, len(state), partial(nudged_outcome, state, first, restore, half), half, kinks)


def differing(
    found: Values,
    expected: Values,
    members: int,
    again: Callable[[int], Values],
    half: torch.dtype | None,
    kinks: bool = False,
) -> str:
    """How a replay differs from what it repeats; see `other_than`, and for `half` see `matmul_precision.rounding`."""
    allowed = partial(matmul_precision.tolerance, half=half)
    return other_than(found, expected, allowed, members, again, kinks, half=half is not None)


def proven(
    state: ArrayState,
    restore: Callable[[], None],
    recorded: Run,
    again: Run,
    make: Callable[[bool], tuple[Made, Run]],
    half: torch.dtype | None,
) -> tuple[Made, str]:
    """A program that gives the results of the recorded call; or the last one tried, and how it differs.

    Kernels that are chosen by time round differently, and a unit that rounding turns on or off changes a sample's share
    of the gradients. If the program differs too much because of that, a program of the recorded kernels proves the
    recording; the first program is then accepted within the tolerance for such units, otherwise the recorded kernels
    are used.

    Args:
        state: of the array, after the recorded call.
        restore: restores its state before the call.
        recorded: puts the gradients of the recorded call where the program puts them; returns its results.
        again: makes the call once more; likewise.
        make: creates a program, with or without choosing kernels, and what runs it with its inputs filled in.
        half: see `matmul_precision.rounding`.
    """
    after = state.snapshot()
    restore()
    before = changeable(state)
    after()

    def compared(run: Run, kinks: bool = False) -> str:
        with left_alone(state):
            expected = outcome(state, recorded, lambda: None, before)
            try:
                found = outcome(state, torch.no_grad()(run), restore)
                nudged = partial(nudged_outcome, state, again, restore, half)
                difference = differing(found, expected, len(state), nudged, half, kinks)
            except Exception as error:
                return failure(error)
        return f"run from its recording, it {difference}" if difference else ""

    chosen = state.settings.strategy == "measured"
    made, run = make(chosen)
    reason = compared(run)
    if not reason or not chosen:
        return made, reason
    plain, run_plain = make(False)
    reason = compared(run_plain)
    if reason or compared(run, kinks=True):
        return plain, reason
    return made, ""


def placed(results: Sequence[Tensor], gradients: Sequence[tuple[Tensor, Tensor]]) -> Sequence[Tensor]:
    """The results of a call, with its gradients copied to their destinations."""
    with torch.no_grad():
        for gradient, buffer in gradients:
            buffer.copy_(gradient)
    return results


def failure(error: Exception) -> str:
    """The reason not to replay a program that raised an error."""
    return f"replaying failed: {str(error).strip() or type(error).__name__}"
