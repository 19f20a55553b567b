"""Finds the fastest schedule of an array, before its first step or when asked to."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from torch import Tensor, nn

from hfta_nb.engine.array.execution_schedule import (
    ExecutionSchedule,
    chosen,
    convolutions,
    schedules_of,
    slow_together,
    untimed_block_size,
)
from hfta_nb.engine.array.native_libraries import available
from hfta_nb.engine.array.schedule_trial import Trial, by_name, described, fastest, keep, known
from hfta_nb.engine.eager.call_inputs import Inputs
from hfta_nb.engine.eager.state import ArrayState
from hfta_nb.engine.eager.unlearning import unlearned
from hfta_nb.engine.kernels.native import build
from hfta_nb.engine.members.per_member import PerMember, per_member
from hfta_nb.engine.members.tree import flatten, unflatten
from hfta_nb.engine.replay.array_call import BACKWARD, CallKind
from hfta_nb.engine.replay.calls import Calls
from hfta_nb.engine.replay.signature import form, settings
from hfta_nb.engine.replay.trace import NotRecordableError

T = TypeVar("T")

_WORTH_STEPS = 40
"""The fewest steps for which trying schedules pays."""
_CONVOLUTIONS = 20
"""With so many, each of which has kernels of its own to be measured, preparing takes twice as many steps."""


class Tuning:
    """Sets an array to its fastest schedule before its first step.

    Schedules are tried on steps whose effects are undone; then all recordings are discarded, and the array begins as
    any later one does that takes the result from what is kept: schedules differ by rounding, and all runs on a machine
    are to give the same bits. If few steps are expected, nothing is tried.

    Args:
        calls: of the array whose steps these are.
        what: distinguishes different kinds of steps, in addition to their inputs and the model.
        kind: of these calls.
    """

    def __init__(self, calls: Calls, what: str = "", kind: CallKind = BACKWARD) -> None:
        self.calls, self.state, self.what, self.kind = calls, calls.state, what, kind
        self.cache = calls.caches[kind]

    def measures(self, given: Any) -> bool:
        """True if `choose` tries schedules: there are several, and nothing is known about such steps."""
        if self._settled():
            return False
        ways = self._ways()
        return known(self.state, key_of(self.state, ways, given, self.what), ways) is None

    def choose(self, given: Any, step: Callable[[], Any]) -> Generator[str, None, None]:
        """Set the array to the fastest schedule. If a step fails, nothing is chosen: the caller's own step will fail.

        Args:
            given: the step's inputs and other properties.
            step: makes such a step; what it changes on the array, gradients included, is restored.

        Yields:
            How many schedules have been tried, for people, whenever that changes.
        """
        state, ways = self.state, self._ways()
        if self._settled():
            if len(ways) == 1 and not state.pending:
                ways[0].put(state)
            return
        key, note = key_of(state, ways, given, self.what), "found before (nothing was tried for this array)"
        times = known(state, key, ways)
        self.cache.clear()  # also of what is replayed already, as after a trial
        if times is None:
            trial = None
            with unlearned(state), contextlib.suppress(Exception):
                trial = yield from _trial(self.calls, self.kind, ways, state.capture, step)
            self.cache.clear()
            if trial is None:
                return
            keep(state, key, trial, ways)
            times = known(state, key, ways)
            note = f"tried on {trial.steps} steps before the first, in {trial.spent_s:.2g} s"
        best = fastest(times or {})
        if best is None or not times:
            return
        best.put(state)
        if self.kind is BACKWARD or not state.settings.tuned:
            state.settings.tuned = f"block size {best}: {note}, of {described(times)}"

    def _settled(self) -> bool:
        """True if there is nothing to try."""
        state, ways = self.state, self._ways()
        few = 0 < state.settings.planned_steps < _WORTH_STEPS
        return state.pending != [] or few or (len(ways) == 1 and not ways[0].threads)

    def _ways(self) -> list[ExecutionSchedule]:
        ways = schedules_of(self.state)
        return ways[-1:] if slow_together(self.state) else ways  # one member at a time


def foresee(state: ArrayState, steps: float, done: int, brief: bool) -> None:
    """Set an array to how many steps it will make.

    On a CPU, nothing is recorded, measured or tried for few, whatever another run has found: a run that was interrupted
    goes on as it began.

    Args:
        steps: of the whole run; 0 where that is not known.
        done: those of them that were made.
        brief: the array ends with them, if they are few.
    """
    settings = state.settings
    settings.planned_steps = max(0.0, steps - done)
    worth = settings.recorded_from * (_CONVOLUTIONS + len(convolutions(state))) // _CONVOLUTIONS
    before, settings.brief = settings.brief, brief and 0 < steps < worth and state.generators.device.type == "cpu"
    if settings.brief:
        settings.block_size = untimed_block_size(state)
        how = "members one after another" if settings.block_size == 1 else "all members at once, not recorded"
        settings.tuned = f"{steps:.0f} steps: {how}, as preparing faster ones takes as long as {worth} steps"
    elif before:
        settings.tuned = ""


def tune(
    calls: Calls,
    inputs: Inputs,
    step: Callable[[], Any],
    budget_s: float,
) -> dict[int, float]:
    """Set the array to the schedule with which a step is fastest; nothing else changes.

    Args:
        calls: of the array.
        inputs: of a step.
        step: makes a step that writes the array's gradients.
        budget_s: the approximate duration; each schedule runs at least one step.

    Returns:
        The shortest time of a step in seconds, by block size; empty if only one block size is possible.
    """
    state, ways = calls.state, schedules_of(calls.state)
    with build.compiling():
        trial = ended(_trial(calls, BACKWARD, ways, state.capture and not inputs.grad_leaves(), step, budget_s))
    if len(trial.seconds) < len(ways) or len(trial.seconds) == 1:
        return {}
    key = key_of(state, ways, (inputs.leaves, inputs.per_member))
    keep(state, key, trial, ways)
    best = fastest(known(state, key, ways) or {})
    if best is not None:  # another process may have been first
        best.put(state)
    state.settings.tuned = f"block size {chosen(state)}: of {described(trial.seconds)}, in {trial.spent_s:.2g} s before"
    sizes: dict[int, float] = {}
    for way, seconds in trial.seconds.items():
        sizes[way.block_size] = min(seconds, sizes.get(way.block_size, seconds))
    return sizes if len(sizes) > 1 else {}


def ended(work: Generator[Any, None, T]) -> T:
    """The result of work that tells its progress, which nobody asks for."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            return cast(T, end.value)


def _trial(
    calls: Calls,
    kind: CallKind,
    ways: Sequence[ExecutionSchedule],
    replaying: bool,
    step: Callable[[], Any],
    budget_s: float | None = None,
) -> Generator[str, None, Trial]:
    """A trial of schedules on steps that are undone; the array has the fastest one and its recordings.

    Yields:
        How many have been tried.
    """
    with calls.state.trial(), _gradients_kept(calls.state) as forget:
        trial = Trial(calls, ways, replaying, budget_s, kind)
        try:
            while not trial.done:
                forget()
                begin, tried = trial.clock(), trial.tried
                step()
                trial.took(trial.clock() - begin)
                if trial.tried > tried:
                    yield f"{trial.tried} of {len(trial.ways)} ways tried"
        finally:
            trial.settle()
    return trial


def key_of(state: ArrayState, ways: Sequence[ExecutionSchedule], given: Any, what: str = "") -> str:
    """The key under which results of a trial of these schedules are kept, for such steps."""
    parts = [a.data.shape for a in (*state.arenas, *state.buffer_arenas)]
    shapes = [(name, tuple(p.shape), p.dtype, p.requires_grad) for name, p in state.tensors.named_parameters()]
    architectures = state.engine.architectures
    models = [state.skeleton] if architectures is None else architectures.templates
    how = [state.settings.strategy, state.settings.checkpointed, state.settings.fast_rng, sorted(state.settings.paths)]
    how += [available(state), sorted(by_name(state, ways)), settings(state.generators.device)]
    text = repr((parts, shapes, [_described(m) for m in models], how, _form(given), what))
    digest = hashlib.sha256(text.encode()).hexdigest()[:24]
    return f"block sizes of {len(state)} x {type(state.skeleton).__name__} {digest}"


def _described(model: nn.Module) -> str:
    """A description of a module; its own `__repr__` may fail on tensors with a member axis."""
    try:
        return repr(model)
    except Exception:  # the model's own code
        return ", ".join(f"{path}: {type(module).__qualname__}" for path, module in model.named_modules())


def detached_inputs(tree: Any) -> Any:
    """The inputs detached from their graphs; tensors that require a gradient still do."""
    leaves, rebuild = flatten(tree)
    return unflatten(rebuild, [_leaf(v) for v in leaves])


def _leaf(value: Any) -> Any:
    if isinstance(value, PerMember):
        return per_member(_leaf(value.value))
    wants = isinstance(value, Tensor) and value.requires_grad
    return value.detach().requires_grad_() if wants else value


def _form(given: Any) -> Any:
    try:
        return form(given, grads=True)
    except NotRecordableError:
        return None


@contextmanager
def _gradients_kept(state: ArrayState) -> Iterator[Callable[[], None]]:
    """Yield a function that discards all gradients; restore them on exit."""
    parameters = list(state.tensors.parameters())
    before = [p.grad for p in parameters]
    values = [a.grad.clone() for a in state.arenas] if any(g is not None for g in before) else None
    missing = dict(state.missing_grads)

    def forget() -> None:
        for p in parameters:
            p.grad = None

    try:
        yield forget
    finally:
        for p, grad in zip(parameters, before, strict=True):
            p.grad = grad
        for arena, value in zip(state.arenas, values or (), strict=False):
            arena.grad.copy_(value)
        state.missing_grads.clear()
        state.missing_grads.update(missing)
