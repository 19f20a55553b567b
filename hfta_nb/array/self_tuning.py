"""Tuning in a loop of the user's own: the first calls of each kind find the fastest schedule for that kind.

The kinds are `backward`, `array(x)` with gradients, and results only (`evaluate`, `array(x)` under `no_grad`). Each has
a separate block size and threads. Schedules are tried on calls with the signature of the first one, as a study does in
its first steps (`Tuning`): another schedule is recorded only if the cost can be regained. Calls with other signatures
(for example a smaller last batch) meanwhile run with the schedule whose turn it is. Results are kept for similar
arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from hfta_nb.array.schedule import ExecutionSchedule, slow_together
from hfta_nb.array.schedule_trial import Trial
from hfta_nb.array.schedule_tuner import Tuning
from hfta_nb.eager.state import ArrayState
from hfta_nb.kernels.cuda_graphs import capturing
from hfta_nb.members.identity import identity
from hfta_nb.replay.calls import Calls
from hfta_nb.replay.program_cache import ProgramCache
from hfta_nb.replay.signature import form as form_of
from hfta_nb.replay.signature import settings, watched
from hfta_nb.replay.steps import BackwardArgs
from hfta_nb.replay.trace import NotRecordableError

T = TypeVar("T")

_PATIENCE = 16
"""After this many consecutive calls with other signatures, a trial ends with the results so far."""


class SelfTuning:
    """The kinds of an array's calls, and their schedules.

    Args:
        calls: of the array.
    """

    def __init__(self, calls: Calls) -> None:
        self.calls, self.state = calls, calls.state
        self._forms: dict[str, _Form] = {}
        self._home: ExecutionSchedule | None = None
        self._busy = False

    @property
    def home(self) -> ExecutionSchedule:
        """The array's schedule before anything was tried."""
        return self._home or ExecutionSchedule(self.state.settings.block_size, self.state.settings.threads)

    def stop(self) -> None:
        """Stop tuning, because the schedule is set elsewhere."""
        for form in self._forms.values():
            form.abandon()
        self._forms.clear()
        self._home = None

    def restart(self) -> None:
        """Start again, after the choice of kernels has changed."""
        home = self._home
        self.stop()
        if home is not None:
            home.put(self.state)

    @contextmanager
    def by_tune(self) -> Iterator[None]:
        """The context of `FusedArray.tune`, whose choice applies to `backward`."""
        if self._open():
            self._home = self.home
            self._home.put(self.state)
        form = self._forms.pop("backward", None)
        if form is not None:
            form.abandon()
        self._busy = True
        try:
            yield
        finally:
            self._busy = False
        if self._open():
            self._begun("backward").end()

    # The kinds of calls.

    def backward(self, asked: BackwardArgs, run: Callable[[], T]) -> T:
        """`FusedArray.backward`."""
        form = self._entered("backward")
        if form is None:
            return run()
        only = None if asked.only is None else tuple(asked.only)
        return form.call(asked.loss_fn, asked.given, run, (asked.has_aux, asked.scale is None, only))

    def forward(self, args: Any, kwargs: Any, run: Callable[[], T]) -> T:
        """`array(x)`. Its backward is not timed: it follows the schedule of its forward, which is its fastest, too."""
        if not self.calls.forwards.learning():
            return self.results(None, (args, kwargs), run)
        form = self._entered("forward")
        return run() if form is None else form.call(None, (args, kwargs), run)

    def results(self, function: Any, given: Any, run: Callable[[], T]) -> T:
        """`evaluate`, or `array(x)` without gradients. Afterwards the array returns to the schedule of training."""
        before = _now(self.state)
        form = self._entered("results")
        if form is None:
            return run()
        try:
            return form.call(function, given, run)
        finally:
            before.put(self.state)

    def _open(self) -> bool:
        return self.state.settings.self_tuning and self.state.settings.strategy == "measured"

    def _entered(self, name: str) -> _Form | None:
        """The kind of calls, with its schedule set; None if nothing is tuned."""
        if self._busy or not self._open() or self.state.pending:
            return None
        form = self._forms.get(name) or self._begun(name)
        form.put()
        return form

    def _begun(self, name: str) -> _Form:
        calls = self.calls
        self._home = self.home
        caches: dict[str, ProgramCache[Any]] = {
            "backward": calls.steps.cache,
            "forward": calls.forwards.cache,
            "results": calls.results.cache,
        }
        form = self._forms[name] = _Form(calls, name, caches[name], self._home)
        if slow_together(self.state):
            form.begin_alone()
        return form


class _Form:
    """One kind of calls.

    Args:
        calls: of the array.
        name: of the kind.
        cache: of its programs.
        home: the array's schedule before anything is tried.

    Attributes:
        way: the chosen schedule; None until then.
    """

    def __init__(self, calls: Calls, name: str, cache: ProgramCache[Any], home: ExecutionSchedule) -> None:
        self.calls, self.state = calls, calls.state
        self.name, self.cache, self.home = name, cache, home
        self.way: ExecutionSchedule | None = None
        self._now = home
        self._tuning: Tuning | None = None
        self._kind: Any = None
        self._others = 0

    @property
    def done(self) -> bool:
        """True if the schedule has been chosen."""
        return self.way is not None

    def begin_alone(self) -> None:
        """Do not try several members at once."""
        self._now = self.home._replace(block_size=1)

    def put(self) -> None:
        """Set the array to the schedule of this kind."""
        (self.way or self._now).put(self.state)

    def end(self) -> None:
        """Choose the array's current schedule."""
        self.way = _now(self.state)

    def abandon(self) -> None:
        """Stop the trial."""
        if self._tuning is not None:
            self._tuning.abandon()

    def call(self, function: Any, given: Any, run: Callable[[], T], told: tuple[Any, ...] = ()) -> T:
        """Make a call, and time it if it belongs to a trial.

        Args:
            function: of the model's output; None if there is none.
            given: the call's inputs.
            run: makes the call.
            told: what distinguishes such calls, besides inputs, function and modes.
        """
        if self.done:
            return self._chosen(run)
        first = self._tuning is None
        trial = self._turn(function, given, told)
        if trial is None:
            return self._untimed(run) if first and self._tuning is not None else run()
        begin = trial.clock()
        result = run()
        self._took(trial, trial.clock() - begin)
        return result

    def _untimed(self, run: Callable[[], T]) -> T:
        """Make the first call, which is compared with a plain module: the trial begins with the next one."""
        self.cache.waiting = True
        try:
            return run()
        finally:
            self.cache.waiting = False

    def _chosen(self, run: Callable[[], T]) -> T:
        """Make a call with the chosen schedule; keep another block size if members can't run together any more."""
        wanted = _now(self.state).block_size
        try:
            return run()
        finally:
            now = _now(self.state)
            if now.block_size != wanted and now.block_size == 1:
                self.way = now

    def _turn(self, function: Any, given: Any, told: tuple[Any, ...]) -> Trial | None:
        """The trial that a call belongs to, with its schedule set; None if the call is not timed."""
        if watched() or torch.compiler.is_compiling() or capturing(self.state.generators.device):
            return None
        try:
            identified = None if function is None else identity(function)
            kind = form_of(given, grads=True), identified, told, self.state.skeleton.training, settings()
        except NotRecordableError:
            kind = None
        if self._tuning is None:
            if kind is None:
                return None
            self._kind = kind
            what = f"by itself {self.name} {_name(function)} {told}"
            self._tuning = Tuning(self.calls, what, self.cache)
            return None
        if kind != self._kind:
            self._others += 1
            if self._others >= _PATIENCE:
                self._give_up()
            return None
        trial = None if self._tuning.done else self._tuning.turn(given)
        self._now = _now(self.state)
        if self._tuning.done:
            self.end()
            return None
        self._others = 0
        return trial

    def _took(self, trial: Trial, seconds: float) -> None:
        if self._tuning is None or trial.done:
            return
        self._tuning.took(trial, seconds)
        self._now = _now(self.state)
        if self._tuning.done:
            self.end()

    def _give_up(self) -> None:
        """End a trial whose calls no longer occur."""
        assert self._tuning is not None  # a trial is active
        self.home.put(self.state)
        self._tuning.settle()
        self.end()


def _now(state: ArrayState) -> ExecutionSchedule:
    return ExecutionSchedule(state.settings.block_size, state.settings.threads)


def _name(function: Any) -> str:
    """A name that is the same in other processes."""
    named = function if hasattr(function, "__qualname__") else type(function)
    return "" if function is None else f"{named.__module__}.{named.__qualname__}"
