"""Finding out how many members at once are fastest: on the steps that train, or beforehand."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from torch import Tensor, nn

from hfta_nb.array.schedule import chosen, schedules_of
from hfta_nb.array.schedule_trial import Trial, fastest, images, keep, known, told
from hfta_nb.eager.engine import Inputs
from hfta_nb.eager.state import ArrayState
from hfta_nb.kernels.native import build
from hfta_nb.members import threads
from hfta_nb.members.per_member import PerMember, per_member
from hfta_nb.members.tree import flatten, unflatten
from hfta_nb.replay.calls import Calls
from hfta_nb.replay.program_cache import ProgramCache
from hfta_nb.replay.record import NotRecordableError
from hfta_nb.replay.signature import form, settings

T = TypeVar("T")

_LSTM = "lstm"
_LOOK_S = 0.05
"""Seconds from one look for what is compiled in the background to the next."""
_WORTH_STEPS = 40
"""A run of fewer steps ends before what trying takes has been won back."""


class Tuning:
    """Sets an array's `block_size` to the fastest while it trains: the first steps are made in one way and another.

    What an earlier array of the same sort has found, in this process or before, is taken over. Where there will be few
    steps, nothing is tried.

    Args:
        calls: of the array whose steps these are.
        what: tells steps that are not alike apart, beside their inputs and the model.
        cache: of these steps' programs; that of `backward` without.

    Attributes:
        done: whether the block size has been chosen.
    """

    def __init__(self, calls: Calls, what: str = "", cache: ProgramCache[Any] | None = None) -> None:
        self.calls, self.state, state = calls, calls.state, calls.state
        self.what = what
        self.cache: ProgramCache[Any] = calls.steps.cache if cache is None else cache
        self.done = state.settings.block_size == 1 and not threads.selectable(state.generators.device)
        self._trial: Trial | None = None
        self._kind: Any = None
        self._key = ""
        self._awaited, self._looked_s = False, 0.0

    @property
    def trying(self) -> bool:
        """Whether steps run in other ways than they will."""
        return not self.done and not self._awaited

    def step(self, given: Any, step: Callable[[], T]) -> T:
        """Make a step in the way whose turn it is, and take its time.

        Args:
            given: the step's inputs, and whatever else tells it from others: those unlike the first don't count.
            step: makes it.
        """
        trial = self.turn(given)
        if trial is None:
            return step()
        begin = trial.clock()
        result = step()
        self.took(trial, trial.clock() - begin)
        return result

    def turn(self, given: Any) -> Trial | None:
        """The trial that the next step with these inputs is a part of; None where it is just a step."""
        trial = self._begun(given)
        return None if trial is None or _form(given) != self._kind else trial

    def took(self, trial: Trial, seconds: float) -> None:
        """Tell a trial how long its step took."""
        trial.took(seconds)
        if trial.done:
            self._found(trial)

    def settle(self) -> None:
        """End with the fastest of what is known."""
        if self._trial is not None and not self.done:
            self._trial.settle()
        self.done = True

    def abandon(self) -> None:
        """End as things are: somebody else has chosen."""
        if self._trial is not None:
            self._trial.abandon()
        self.done = True

    def _begun(self, given: Any) -> Trial | None:
        if self.done or self._trial is not None or self.state.pending or self._waits():
            return self._trial
        self._kind, self._key = _form(given), key_of(self.state, given, self.what)
        ways = schedules_of(self.state)
        before = known(self.state, self._key, ways)
        best = None if before is None else fastest(before)
        if before is None or best is None:
            if 0 < self.state.settings.planned_steps < _WORTH_STEPS:
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
        """Whether a kernel for these steps is being compiled: nothing is tried till it has come, or will not."""
        before, now_s = self._awaited, time.monotonic()
        if not _recurrent(self.state) or (before and now_s - self._looked_s < _LOOK_S):
            return before
        self._looked_s = now_s
        build.ask_again(_LSTM)
        build.library(_LSTM, wait=False)
        self._awaited = build.arrived(_LSTM) is False
        if before and not self._awaited:
            self.cache.clear()  # what was recorded has other kernels
        return self._awaited


def tune(
    calls: Calls,
    inputs: Inputs,
    step: Callable[[], Any],
    budget_s: float,
    what: str = "",
) -> dict[int, float]:
    """Set the array's `block_size` to that with which a step is fastest; nothing else changes.

    Args:
        calls: of the array.
        inputs: what a step computes with.
        step: does it, with the array's gradients.
        budget_s: about how long to take; each block size has one step at least.
        what: see `Tuning`.

    Returns:
        Seconds of one step by block size, the least of several; nothing where only one is possible.
    """
    state = calls.state
    restore = state.snapshot()
    ways = schedules_of(state)
    with _gradients_kept(state) as forget, build.compiling():  # here it may pay
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
    keep(state, key_of(state, (inputs.leaves, inputs.per_member), what), trial)
    state.settings.tuned = f"block size {chosen(state)}: of {told(trial.seconds)}, in {trial.spent_s:.2g} s before"
    sizes: dict[int, float] = {}
    for way, seconds in trial.seconds.items():
        sizes[way.block_size] = min(seconds, sizes.get(way.block_size, seconds))
    return sizes if len(sizes) > 1 else {}


def _recurrent(state: ArrayState) -> bool:
    """Whether there is something that a kernel of our own may compute."""
    return any(isinstance(m, nn.LSTM | nn.LSTMCell) for m in state.skeleton.modules())


def key_of(state: ArrayState, given: Any, what: str) -> str:
    """Names steps that are alike, for what is kept of them."""
    parts = [a.data.shape for a in (*state.arenas, *state.buffer_arenas)]
    shapes = [(name, tuple(p.shape), p.dtype, p.requires_grad) for name, p in state.tensors.named_parameters()]
    native = _recurrent(state) and build.library(_LSTM, wait=False) is not None
    architectures = state.engine.architectures
    models = [state.skeleton] if architectures is None else architectures.templates
    ways = [state.settings.strategy, state.settings.checkpointed, state.settings.fast_rng, sorted(state.settings.paths)]
    ways += [native, images(state)]  # whose kernels are compiled for processes to come
    text = repr((parts, shapes, [_described(m) for m in models], ways, settings(), _form(given), what))
    digest = hashlib.sha256(text.encode()).hexdigest()[:24]
    return f"block sizes of {len(state)} x {type(state.skeleton).__name__} {digest}"


def _described(model: nn.Module) -> str:
    """A module in words; its own may fail where its tensors have a member axis."""
    try:
        return repr(model)
    except Exception:  # the model's own code
        return ", ".join(f"{path}: {type(module).__qualname__}" for path, module in model.named_modules())


def apart(tree: Any) -> Any:
    """The same, without a way back to where its tensors come from; those that want a gradient still do."""
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
    """Gives what forgets all gradients; afterwards they are as before."""
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
