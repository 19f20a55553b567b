"""Tuning in a loop of the user's own: the first calls of each form find out in which way that form is fastest.

The forms are `backward`, `array(x)` with gradients, and results alone (`evaluate`, `array(x)` under `no_grad`). Each
has a block size and threads of its own. The first kind of call of a form is tried, as a study tries its first steps
(`Tuning`): another way is recorded only where it can win that back. Calls of other kinds, a last batch of another size
say, run meanwhile in the way whose turn it is. What was found is kept for arrays of the same sort.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor

from hfta_nb.array.schedule import ExecutionSchedule, slow_together
from hfta_nb.array.schedule_trial import Trial
from hfta_nb.array.schedule_tuner import Tuning
from hfta_nb.eager.state import ArrayState
from hfta_nb.kernels.cuda_graphs import capturing
from hfta_nb.members.tree import flatten
from hfta_nb.replay.calls import Calls
from hfta_nb.replay.program_cache import ProgramCache
from hfta_nb.replay.record import NotRecordableError
from hfta_nb.replay.signature import form as form_of
from hfta_nb.replay.signature import identity, settings, watched
from hfta_nb.replay.steps import BackwardArgs

T = TypeVar("T")

_PATIENCE = 16
"""After so many calls in a row of other kinds than the one that is tried, a trial ends with what it knows."""


class SelfTuning:
    """The forms of an array's calls, and the way in which each runs.

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
        """How the array ran before anything was tried."""
        return self._home or ExecutionSchedule(self.state.settings.block_size, self.state.settings.threads)

    def stop(self) -> None:
        """Somebody else chooses how the array runs."""
        for form in self._forms.values():
            form.abandon()
        self._forms.clear()
        self._home = None

    def restart(self) -> None:
        """Begin anew, as kernels are chosen in another way."""
        home = self._home
        self.stop()
        if home is not None:
            home.put(self.state)

    @contextmanager
    def by_tune(self) -> Iterator[None]:
        """Around `FusedArray.tune`, whose choice is that of `backward`."""
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

    # The forms.

    def backward(self, asked: BackwardArgs, run: Callable[[], T]) -> T:
        """`FusedArray.backward`."""
        form = self._entered("backward")
        if form is None or form.done:
            return run()
        only = None if asked.only is None else tuple(asked.only)
        told = (asked.has_aux, asked.scale is None, only, *_mode(self.state))
        return form.run(asked.loss_fn, asked.given, told, run)

    def forward(self, args: Any, kwargs: Any, run: Callable[[], T]) -> T:
        """`array(x)`."""
        if not self.calls.forwards.learning():
            return self.results(None, (args, kwargs), run)
        waiting = self._forms.get("forward")
        if waiting is not None and not waiting.done:
            waiting.close()  # before this call's way is put
        form = self._entered("forward")
        if form is None or form.done:
            return run()
        trial = form.turn(None, (args, kwargs), _mode(self.state))
        if trial is None:
            return run()
        begin = trial.clock()
        out = run()
        form.lap = _Lap(trial, trial.clock() - begin, _now(self.state))
        form.lap.watch(out)
        return out

    def results(self, function: Any, given: Any, run: Callable[[], T]) -> T:
        """`evaluate`, or `array(x)` without gradients. Afterwards the array runs as before, which is as it trains."""
        before = _now(self.state)
        form = self._entered("results")
        if form is None:
            return run()
        wanted = _now(self.state).block_size
        try:
            if form.done:
                return run()
            return form.run(function, given, _mode(self.state), run)
        finally:
            now = _now(self.state)
            if form.done and now.block_size != wanted and now.block_size == 1:
                form.way = now  # `vmap` can't follow this function
            before.put(self.state)

    def _open(self) -> bool:
        return self.state.settings.self_tuning and self.state.settings.strategy == "measured"

    def _entered(self, name: str) -> _Form | None:
        """The form, its way put; None where nothing is tuned."""
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
    """One form of calls.

    Args:
        calls: of the array.
        name: of the form.
        cache: of its programs.
        home: how the array runs before anything is tried.

    Attributes:
        way: chosen; None while that is not done.
        lap: a forward whose backward may be yet to come.
    """

    def __init__(self, calls: Calls, name: str, cache: ProgramCache[Any], home: ExecutionSchedule) -> None:
        self.calls, self.state = calls, calls.state
        self.name, self.cache, self.home = name, cache, home
        self.way: ExecutionSchedule | None = None
        self.lap: _Lap | None = None
        self._now = home
        self._tuning: Tuning | None = None
        self._kind: Any = None
        self._others = 0
        self._whole: bool | None = None  # whether a backward follows a forward

    @property
    def done(self) -> bool:
        """Whether the way is chosen."""
        return self.way is not None

    def begin_alone(self) -> None:
        """Don't try several members at once."""
        self._now = self.home._replace(block_size=1)

    def put(self) -> None:
        """Let the array run as this form does."""
        (self.way or self._now).put(self.state)

    def end(self) -> None:
        """The way in which the array runs now is chosen."""
        self.way, self.lap = _now(self.state), None

    def abandon(self) -> None:
        """Leave off trying."""
        self.lap = None
        if self._tuning is not None:
            self._tuning.abandon()

    def run(self, function: Any, given: Any, told: tuple[Any, ...], run: Callable[[], T]) -> T:
        """Make a call, and take its time if it is one of those that are tried."""
        trial = self.turn(function, given, told)
        if trial is None:
            return run()
        begin = trial.clock()
        result = run()
        self._took(trial, trial.clock() - begin)
        return result

    def turn(self, function: Any, given: Any, told: tuple[Any, ...]) -> Trial | None:
        """The trial that a call is a part of, its way put; None where it is just a call."""
        if watched() or torch.compiler.is_compiling() or capturing(self.state.generators.device):
            return None
        try:
            kind = form_of(given, grads=True), None if function is None else identity(function), told
        except NotRecordableError:
            kind = None
        if self._tuning is None:
            if kind is None:
                return None
            self._kind = kind
            what = f"by itself {self.name} {_name(function)} {told[:-2]}"
            self._tuning = Tuning(self.calls, what, self.cache)
        elif kind != self._kind:
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

    def close(self) -> None:
        """Tell of the last forward, and of its backward if that has come."""
        lap, self.lap = self.lap, None
        if lap is None or lap.broken:
            return
        if self._whole is None:
            self._whole = lap.ended
        if self._whole is not lap.ended:  # a forward without a backward among others, or the other way round
            self._others += 1
            if self._others >= _PATIENCE:
                self._give_up()
            return
        lap.way.put(self.state)
        self._took(lap.trial, lap.seconds)

    def _took(self, trial: Trial, seconds: float) -> None:
        if self._tuning is None or trial.done:
            return
        self._tuning.took(trial, seconds)
        self._now = _now(self.state)
        if self._tuning.done:
            self.end()

    def _give_up(self) -> None:
        """What is tried does not come any more."""
        assert self._tuning is not None  # something is tried
        self.home.put(self.state)
        self._tuning.settle()
        self.end()


class _Lap:
    """The time of a forward and of its backward, without what is between them.

    Args:
        trial: that it is a part of.
        seconds: of the forward.
        way: in which it has run.
    """

    def __init__(self, trial: Trial, seconds: float, way: ExecutionSchedule) -> None:
        self.trial, self.seconds, self.way = trial, seconds, way
        self.ended = False
        self._begin_s: float | None = None
        self._handles: list[Any] = []

    @property
    def broken(self) -> bool:
        """Whether the backward has begun and did not end."""
        return self._begin_s is not None and not self.ended

    def watch(self, out: Any) -> None:
        """Notice when gradients come back through these outputs."""
        nodes = {v.grad_fn for v in flatten(out)[0] if isinstance(v, Tensor) and v.grad_fn is not None}
        self._handles = [node.register_prehook(self._begin) for node in nodes]

    def _begin(self, _: Any) -> None:
        for handle in self._handles:
            handle.remove()
        if self._begin_s is None:
            self._begin_s = self.trial.clock()
            torch.autograd.Variable._execution_engine.queue_callback(self._end)

    def _end(self) -> None:
        assert self._begin_s is not None  # it is queued then
        self.seconds += self.trial.clock() - self._begin_s
        self.ended = True


def _now(state: ArrayState) -> ExecutionSchedule:
    return ExecutionSchedule(state.settings.block_size, state.settings.threads)


def _mode(state: ArrayState) -> tuple[Any, ...]:
    """What makes calls with equal inputs unlike each other."""
    return state.skeleton.training, settings()


def _name(function: Any) -> str:
    """The same in another process."""
    named = function if hasattr(function, "__qualname__") else type(function)
    return "" if function is None else f"{named.__module__}.{named.__qualname__}"
