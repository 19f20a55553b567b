"""Compares a program with the recorded call, and undoes a failed run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from hfta_nb.engine.eager.state import ArrayState
from hfta_nb.engine.kernels.strategy import matmul_precision
from hfta_nb.engine.members.arena import Arena
from hfta_nb.engine.rules.autocast import half_under_way

Made = TypeVar("Made")


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


class Outcome(NamedTuple):
    """The outcome of a call.

    Attributes:
        results: of the call.
        gradients: of parameters.
        tensors: of the array that calls change, by arena.
        states: of the members' generators.
    """

    results: Sequence[Tensor]
    gradients: Sequence[Tensor]
    tensors: Sequence[Tensor]
    states: Sequence[Mapping[str, Tensor]]

    def other_than(self, old: Outcome, kinks: bool = False) -> str:
        """The first difference, in words; empty if the outcomes are equal up to rounding.

        Args:
            kinks: allow for units that rounding turns on or off, with their samples' share of the gradients.
        """
        exact = close(old.results, self.results) and close(old.tensors, self.tensors)
        if not exact or not (close(old.gradients, self.gradients) or (kinks and self._near(old))):
            return "gives other numbers"
        for state, now in zip(old.states, self.states, strict=True):
            if any(not torch.equal(state[k], now[k]) for k in state):
                return "draws other random numbers"
        return ""

    def _near(self, old: Outcome) -> bool:
        pairs = list(zip(old.gradients, self.gradients, strict=True))
        apart = sum(float((a - b).double().square().sum()) for a, b in pairs)
        return apart <= _KINKS**2 * sum(float(a.double().square().sum()) for a, _ in pairs)


_KINKS = 0.01
"""The allowed length of the difference that such units make in all gradients, relative to their length."""


def outcome(state: ArrayState, results: Sequence[Tensor], gradients: Sequence[Tensor]) -> Outcome:
    """The outcome: copies of the array's state, with these results and gradients, which are not copied."""
    tensors = [a.data.clone() for a in changing(state)]
    return Outcome(results, gradients, tensors, [dict(s) for s in state.generators.states])


def proven(
    state: ArrayState,
    restore: Callable[[], None],
    results: Sequence[Tensor],
    make: Callable[[bool], tuple[Made, Callable[[], Sequence[Tensor]]]],
    gradients: Sequence[tuple[Tensor, Tensor]] = (),
) -> tuple[Made, str]:
    """A program that gives the results of the recorded call; or the last one tried, and how it differs.

    Kernels that are chosen by time round differently, and a unit that rounding turns on or off changes a sample's share
    of the gradients. If the program differs too much because of that, a program of the recorded kernels proves the
    recording; the first program is then accepted within the tolerance for such units, otherwise the recorded kernels
    are used.

    Args:
        state: of the array, after the recorded call.
        restore: restores its state before the call.
        results: of the recorded call.
        make: creates a program, with or without choosing kernels, and a function that runs it with its inputs filled
            in.
        gradients: of the recorded call, each with its destination in the program.
    """
    chosen = state.settings.strategy == "measured"
    made, run = make(chosen)
    reason = compared(state, restore, results, run, gradients)
    if not reason or not chosen:
        return made, reason
    plain, run_plain = make(False)
    reason = compared(state, restore, results, run_plain, gradients)
    if reason or compared(state, restore, results, run, gradients, kinks=True):
        return plain, reason
    return made, ""


@torch.no_grad()
def compared(
    state: ArrayState,
    restore: Callable[[], None],
    results: Sequence[Tensor],
    run: Callable[[], Sequence[Tensor]],
    gradients: Sequence[tuple[Tensor, Tensor]] = (),
    kinks: bool = False,
) -> str:
    """Run a program from the state before the recorded call; returns the difference, or an empty string. The state is
    left unchanged.

    Args:
        state, restore, results, gradients: as for `proven`.
        run: the program, with its inputs filled in; returns results in the same order.
        kinks: as for `Outcome.other_than`.
    """
    old = outcome(state, results, [g for g, _ in gradients])
    with left_alone(state):
        restore()
        try:
            found = outcome(state, run(), [room for _, room in gradients]).other_than(old, kinks)
        except Exception as error:
            return failure(error)
    return f"replayed, it {found}" if found else ""


def failure(error: Exception) -> str:
    """The reason not to replay a program that raised an error."""
    return f"replaying failed: {str(error).strip() or type(error).__name__}"


_HALF = 2.0**-5
"""The tolerance under autocast, relative to the largest value; the results of wrong programs differ much more."""


def close(old: Sequence[Tensor], new: Sequence[Tensor]) -> bool:
    """True if tensors are equal to the bit, or up to the rounding of their largest value.

    The memory layout may change the order of sums. A gradient that is zero except for rounding (a bias before batch
    norm) is compared relative to the others. Under autocast, rounding to 16 bits may turn a unit on or off, and change
    its sample's share of a gradient.
    """
    least = 0.0 if half_under_way() is None else _HALF
    found = _measured(old, new)
    if found is not None:
        largest = max((size for size, _ in found), default=0.0)
        return all(off <= max(_rounding(a), least) * largest for a, (_, off) in zip(old, found, strict=True))
    pairs = [(a, b) for a, b in zip(old, new, strict=True) if not _same_bits(a, b)]
    if any(not a.is_floating_point() for a, _ in pairs):
        return False
    sizes = [a[a.isfinite()].abs().max().item() for a in old if a.is_floating_point() and a.isfinite().any()]
    largest = max(sizes, default=0.0)
    return all(torch.allclose(a, b, rtol=0, atol=max(_rounding(a), least) * largest, equal_nan=True) for a, b in pairs)


def _measured(old: Sequence[Tensor], new: Sequence[Tensor]) -> list[tuple[float, float]] | None:
    """The largest value of each tensor and the largest difference, where all values are finite numbers: this takes a
    twentieth of the time of `torch.allclose`. Otherwise None."""
    found = []
    for a, b in zip(old, new, strict=True):
        if not a.is_floating_point() or a.shape != b.shape or a.dtype != b.dtype or not a.numel():
            return None
        found += [bound.double() for tensor in (a, a - b) for bound in torch.aminmax(tensor)]
    if not found:
        return []
    bounds = torch.stack(found).abs().tolist()
    sizes = [max(pair) for pair in zip(bounds[::2], bounds[1::2], strict=True)]
    return list(zip(sizes[::2], sizes[1::2], strict=True)) if all(map(math.isfinite, bounds)) else None


def _rounding(tensor: Tensor) -> float:
    """The tolerance relative to the largest value: 64 times the rounding of sums, or 8 times that of factors which are
    rounded to fewer bits."""
    own = torch.finfo(tensor.dtype).eps
    return max(64 * own, 8 * matmul_precision.rounding(tensor.device, tensor.dtype))


def _same_bits(a: Tensor, b: Tensor) -> bool:
    if a.shape == b.shape and torch.equal(a, b):  # one pass; False if there are NaNs
        return True
    return bool(((a == b) | ((a != a) & (b != b))).all())
