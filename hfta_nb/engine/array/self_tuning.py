"""Tuning in a loop of the user's own: the first call of each kind finds the fastest schedule for that kind.

The kinds are `backward`, `array(x)` with gradients, and results only (`evaluate`, `array(x)` under `no_grad`). Each has
a separate block size and threads. Schedules are tried before the first call, on calls like it whose effects are undone
(`Tuning`); a result is often asked for once, so there it is before the second one. Results are kept for similar arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import torch

from hfta_nb.engine.array.execution_schedule import ExecutionSchedule, slow_together
from hfta_nb.engine.array.schedule_tuner import Tuning, detached_inputs
from hfta_nb.engine.eager.state import ArrayState
from hfta_nb.engine.kernels.cuda_graphs import capturing
from hfta_nb.engine.replay.calls import Calls
from hfta_nb.engine.replay.program_cache import ProgramCache
from hfta_nb.engine.replay.signature import form as form_of
from hfta_nb.engine.replay.signature import watched
from hfta_nb.engine.replay.steps import BackwardArgs
from hfta_nb.engine.replay.trace import NotRecordableError

T = TypeVar("T")


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
        self._forms.pop("backward", None)
        self._busy = True
        try:
            yield
        finally:
            self._busy = False
        if self._open():
            self._begun("backward").end()

    # The kinds of calls.

    def backward(self, asked: BackwardArgs, run: Callable[[BackwardArgs], T]) -> T:
        """`FusedArray.backward`."""
        form = self._entered("backward")
        if form is None:
            return run(asked)
        only = None if asked.only is None else tuple(asked.only)

        def tried() -> T:
            return run(asked._replace(given=detached_inputs(asked.given)))

        told = asked.has_aux, asked.scale is None, only
        return form.call(asked.loss_fn, asked.given, partial(run, asked), tried, told)

    def forward(self, args: Any, kwargs: Any, run: Callable[[], T]) -> T:
        """`array(x)`. Its backward is not timed: it follows the schedule of its forward, which is its fastest, too."""
        if not self.calls.forwards.learning():
            return self.results(None, (args, kwargs), run)
        form = self._entered("forward")
        return run() if form is None else form.call(None, (args, kwargs), run, run)

    def results(self, function: Any, given: Any, run: Callable[[], T]) -> T:
        """`evaluate`, or `array(x)` without gradients. Afterwards the array returns to the schedule of training."""
        before = _now(self.state)
        form = self._entered("results")
        if form is None:
            return run()
        try:
            return form.call(function, given, run, run)
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
        home = self._home._replace(block_size=1) if slow_together(self.state) else self._home
        form = self._forms[name] = _Form(calls, name, caches[name], home)
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
        self._wanted = name != "results"

    def put(self) -> None:
        """Set the array to the schedule of this kind."""
        (self.way or self.home).put(self.state)

    def end(self) -> None:
        """Choose the array's current schedule."""
        self.way = _now(self.state)

    def call(
        self, function: Any, given: Any, run: Callable[[], T], tried: Callable[[], Any], told: tuple[Any, ...] = ()
    ) -> T:
        """Make a call, after the schedule was chosen.

        Args:
            function: of the model's output; None if there is none.
            given: the call's inputs.
            run: makes the call.
            tried: makes such a call that only the array notices.
            told: what distinguishes such calls, besides inputs, function and modes.
        """
        open_yet = self.way is None and not self._watched(given)
        if open_yet and self._wanted:
            Tuning(self.calls, f"by itself {self.name} {_name(function)} {told}", self.cache).choose(given, tried)
        size = _now(self.state).block_size
        try:
            result = run()
            if open_yet and self._wanted:
                self.end()
            return result
        finally:
            self._wanted |= open_yet
            now = _now(self.state)
            if self.way is not None and now.block_size != size and now.block_size == 1:
                self.way = now  # members can't run together any more

    def _watched(self, given: Any) -> bool:
        """True if someone sees what is called, or the call is not like any other."""
        if watched() or torch.compiler.is_compiling() or capturing(self.state.generators.device):
            return True
        try:
            form_of(given, grads=True)
        except NotRecordableError:
            return True
        return False


def _now(state: ArrayState) -> ExecutionSchedule:
    return ExecutionSchedule(state.settings.block_size, state.settings.threads)


def _name(function: Any) -> str:
    """A name that is the same in other processes."""
    named = function if hasattr(function, "__qualname__") else type(function)
    return "" if function is None else f"{named.__module__}.{named.__qualname__}"
