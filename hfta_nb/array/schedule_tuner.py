"""Finds the fastest schedule of an array, on training steps or in advance."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from torch import Tensor, nn

from hfta_nb.array.native_libraries import available, libraries_of
from hfta_nb.array.schedule import ExecutionSchedule, chosen, convolutions, schedules_of, slow_together
from hfta_nb.array.schedule_trial import Trial, fastest, keep, known, told
from hfta_nb.eager.engine import Inputs
from hfta_nb.eager.state import ArrayState
from hfta_nb.kernels.native import build
from hfta_nb.members import threads
from hfta_nb.members.per_member import PerMember, per_member
from hfta_nb.members.tree import flatten, unflatten
from hfta_nb.replay.calls import Calls
from hfta_nb.replay.program_cache import ProgramCache
from hfta_nb.replay.signature import form, settings
from hfta_nb.replay.trace import NotRecordableError

T = TypeVar("T")

_WORTH_STEPS = 40
"""The fewest steps for which trying schedules pays."""


class Tuning:
    """Sets an array to its fastest schedule during training: its first steps run with different schedules.

    Results of earlier, similar arrays are reused, also from other processes. If few steps are expected, nothing is
    tried.

    Args:
        calls: of the array whose steps these are.
        what: distinguishes different kinds of steps, in addition to their inputs and the model.
        cache: of these steps' programs; by default that of `backward`.

    Attributes:
        done: whether the schedule has been chosen.
    """

    def __init__(self, calls: Calls, what: str = "", cache: ProgramCache[Any] | None = None) -> None:
        self.calls, self.state, state = calls, calls.state, calls.state
        self.what = what
        self.cache: ProgramCache[Any] = calls.steps.cache if cache is None else cache
        self.done = state.settings.block_size == 1 and not threads.selectable(state.generators.device)
        self._trial: Trial | None = None
        self._kind: Any = None
        self._key = ""
        self._awaiting: ExecutionSchedule | None = None  # the schedule before libraries were awaited
        self._looked_s = 0.0

    @property
    def trying(self) -> bool:
        """True until the schedule is chosen: steps are not yet as the others will be."""
        return not self.done

    def step(self, given: Any, step: Callable[[], T]) -> T:
        """Make a step with the schedule whose turn it is, and time it.

        Args:
            given: the step's inputs and other properties; steps that differ from the first one are not timed.
            step: makes the step.
        """
        trial = self.turn(given)
        if trial is None:
            return step()
        begin = trial.clock()
        result = step()
        self.took(trial, trial.clock() - begin)
        return result

    def turn(self, given: Any) -> Trial | None:
        """The trial that the next step with these inputs belongs to; None if it is not timed."""
        trial = self._begun(given)
        return None if trial is None or _form(given) != self._kind else trial

    def took(self, trial: Trial, seconds: float) -> None:
        """Report the time of a step to its trial."""
        trial.took(seconds)
        if trial.done:
            self._found(trial)

    def settle(self) -> None:
        """End with the fastest schedule so far."""
        if self._trial is not None and not self.done:
            self._trial.settle()
        self.done = True

    def abandon(self) -> None:
        """End with the current schedule, because it was set elsewhere."""
        if self._trial is not None:
            self._trial.abandon()
        self.done = True

    @property
    def _few(self) -> bool:
        """True if so few steps are expected that trying schedules does not pay."""
        return 0 < self.state.settings.planned_steps < _WORTH_STEPS

    def _begun(self, given: Any) -> Trial | None:
        if self.done or self._trial is not None or self.state.pending or self._waits():
            return self._trial
        self._kind, self._key = _form(given), key_of(self.state, given, self.what)
        ways = schedules_of(self.state)
        if slow_together(self.state):
            ways = ways[-1:]  # one member at a time
        before = known(self.state, self._key, ways)
        best = None if before is None else fastest(before)
        if before is None or best is None:
            if self._few:
                self.done = True
                return None
            self._trial = Trial(self.calls, ways, self.state.capture, cache=self.cache)
            return self._trial
        best.put(self.state)
        self._tell(f"block size {best}: found before (nothing was tried for this array), of {told(before)}")
        self.done = True
        return None

    def _found(self, trial: Trial) -> None:
        self.done = True
        if len(trial.seconds) >= len(trial.ways):
            keep(self.state, self._key, trial)
            took = f"{trial.steps} steps, which took {trial.lost_s:.2g} s longer than they do now"
            self._tell(f"block size {chosen(self.state)}: of {told(trial.seconds)}, tried on {took}")

    def _tell(self, text: str) -> None:
        settings = self.state.settings
        if self.cache is self.calls.steps.cache or not settings.tuned:
            settings.tuned = text

    def _waits(self) -> bool:
        """True while libraries for these steps are being compiled; the trial starts when that has ended."""
        now_s = time.monotonic()
        if self._few:
            return False
        if self._awaiting is not None and now_s - self._looked_s < build.LOOK_S:
            return True
        self._looked_s = now_s
        awaited = build.look_again(libraries_of(self.state))
        if awaited and self._awaiting is None:
            self._awaiting = chosen(self.state)
            if convolutions(self.state):  # all members at once are slow without the libraries
                schedules_of(self.state)[-1].put(self.state)
        elif self._awaiting is not None and not awaited:
            self._awaiting.put(self.state)
            self._awaiting = None
            self.cache.clear()  # the recordings use other kernels
        return awaited


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
    state = calls.state
    restore = state.snapshot()
    ways = schedules_of(state)
    while build.look_again(libraries_of(state)):  # waiting for a compiler pays here
        time.sleep(build.LOOK_S)
    with _gradients_kept(state) as forget, build.compiling():
        trial = Trial(calls, ways, state.capture and not inputs.grad_leaves(), budget_s)
        try:
            while not trial.done:
                forget()
                begin = trial.clock()
                step()
                trial.took(trial.clock() - begin)
        finally:
            trial.settle()
            restore()
    if len(trial.seconds) < len(ways) or len(trial.seconds) == 1:
        return {}
    keep(state, key_of(state, (inputs.leaves, inputs.per_member)), trial)
    state.settings.tuned = f"block size {chosen(state)}: of {told(trial.seconds)}, in {trial.spent_s:.2g} s before"
    sizes: dict[int, float] = {}
    for way, seconds in trial.seconds.items():
        sizes[way.block_size] = min(seconds, sizes.get(way.block_size, seconds))
    return sizes if len(sizes) > 1 else {}


def key_of(state: ArrayState, given: Any, what: str = "") -> str:
    """The key under which results for such steps are kept."""
    parts = [a.data.shape for a in (*state.arenas, *state.buffer_arenas)]
    shapes = [(name, tuple(p.shape), p.dtype, p.requires_grad) for name, p in state.tensors.named_parameters()]
    architectures = state.engine.architectures
    models = [state.skeleton] if architectures is None else architectures.templates
    ways = [state.settings.strategy, state.settings.checkpointed, state.settings.fast_rng, sorted(state.settings.paths)]
    ways += [available(state)]
    text = repr((parts, shapes, [_described(m) for m in models], ways, settings(), _form(given), what))
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
