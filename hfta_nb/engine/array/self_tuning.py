"""Tuning in a loop of the user's own: the first call of each kind finds the fastest schedule for that kind.

The kinds are `backward`, `array(x)` with gradients, and results only (`evaluate`, `array(x)` under `no_grad`). Each has
a separate block size and threads. Schedules are tried before the first call, on calls like it whose effects are undone
(`Tuning`); a result is often asked for once, so there it is before the second one. Results are kept for similar arrays.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from hfta_nb.engine.array.execution_schedule import ExecutionSchedule, slow_together
from hfta_nb.engine.array.schedule_tuner import Tuning, detached_inputs, ended
from hfta_nb.engine.eager.state import ArrayState
from hfta_nb.engine.kernels.cuda_graphs import capturing
from hfta_nb.engine.replay.array_call import BACKWARD, RESULTS, ArrayCall, CallKind
from hfta_nb.engine.replay.calls import Calls
from hfta_nb.engine.replay.signature import form as form_of
from hfta_nb.engine.replay.signature import watched
from hfta_nb.engine.replay.trace import NotRecordableError


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
        self._forms.pop(BACKWARD.name, None)
        self._busy = True
        try:
            yield
        finally:
            self._busy = False
        if self._open():
            self._begun(BACKWARD).end()

    def run(self, call: ArrayCall) -> Any:
        """Make a call, with the schedule of its kind. After one without gradients, the array returns to the schedule of
        training; the backward of ``array(x)`` follows the schedule of its forward, which is its fastest, too."""
        before = _now(self.state)
        form = self._entered(call.kind)
        if form is None:
            return self.calls.run(call)
        try:
            return form.run(call)
        finally:
            if call.kind is RESULTS:
                before.put(self.state)

    def _open(self) -> bool:
        return self.state.settings.self_tuning and self.state.settings.strategy == "measured"

    def _entered(self, kind: CallKind) -> _Form | None:
        """A kind of calls, with its schedule set; None if nothing is tuned."""
        if self._busy or not self._open() or self.state.pending:
            return None
        form = self._forms.get(kind.name) or self._begun(kind)
        form.put()
        return form

    def _begun(self, kind: CallKind) -> _Form:
        self._home = self.home
        home = self._home._replace(block_size=1) if slow_together(self.state) else self._home
        form = self._forms[kind.name] = _Form(self.calls, kind, home)
        return form


class _Form:
    """The schedule of one kind of calls.

    Args:
        calls: of the array.
        kind: of calls.
        home: the array's schedule before anything is tried.

    Attributes:
        way: the chosen schedule; None until then.
    """

    def __init__(self, calls: Calls, kind: CallKind, home: ExecutionSchedule) -> None:
        self.calls, self.state, self.kind, self.home = calls, calls.state, kind, home
        self.way: ExecutionSchedule | None = None
        self._wanted = kind is not RESULTS

    def put(self) -> None:
        """Set the array to the schedule of this kind."""
        (self.way or self.home).put(self.state)

    def end(self) -> None:
        """Choose the array's current schedule."""
        self.way = _now(self.state)

    def run(self, call: ArrayCall) -> Any:
        """Make a call, after the schedule was chosen."""
        open_yet = self.way is None and not self._watched(call.given)
        if open_yet and self._wanted:
            self._choose(call)
        size = _now(self.state).block_size
        try:
            result = self.calls.run(call)
            if open_yet and self._wanted:
                self.end()
            return result
        finally:
            self._wanted |= open_yet
            now = _now(self.state)
            if self.way is not None and now.block_size != size and now.block_size == 1:
                self.way = now  # members can't run together any more

    def _choose(self, call: ArrayCall) -> None:
        """Find the fastest schedule on calls like this one, which only the array notices."""
        details: tuple[Any, ...] = ()
        tried = call
        if call.kind is BACKWARD:
            details = call.has_aux, call.scale is None, None if call.only is None else tuple(call.only)
            tried = call.of(detached_inputs(call.given))
        what = f"by itself {self.kind.name} {_name(call.function)} {details}"
        ended(Tuning(self.calls, what, self.kind).choose(call.given, lambda: self.calls.run(tried)))

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
