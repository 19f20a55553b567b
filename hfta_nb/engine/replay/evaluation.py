"""Calls without gradients, `evaluate` and `array(x)` under `no_grad`, replayed or recorded."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from hfta_nb.engine.eager.call_inputs import Inputs
from hfta_nb.engine.eager.state import ArrayState
from hfta_nb.engine.members.identity import identity
from hfta_nb.engine.members.tree import flatten, unflatten
from hfta_nb.engine.replay.build_program import build_program
from hfta_nb.engine.replay.cache_entry import CacheEntry, outputs_of, rooms_for
from hfta_nb.engine.replay.guards import Guards
from hfta_nb.engine.replay.layouts import LAST, Layout, turned_all
from hfta_nb.engine.replay.program import Program
from hfta_nb.engine.replay.program_cache import ProgramCache
from hfta_nb.engine.replay.record import Recorder
from hfta_nb.engine.replay.signature import form
from hfta_nb.engine.replay.verify import Before, proven

Run = Callable[[Inputs], Any]


class CapturedResults:
    """The calls of an array without gradients.

    Args:
        state: of the array.
        channels_last: whether its training steps run with channels-last images, which was measured: then so do these.

    Attributes:
        cache: their programs.
    """

    def __init__(self, state: ArrayState, channels_last: Callable[[], bool]) -> None:
        self.state, self._channels_last = state, channels_last
        self.cache: ProgramCache[CacheEntry] = ProgramCache(state)

    def find(self, what: tuple[str, Any], given: Any) -> CacheEntry | None:
        """The entry of a call, by its name and the function of the model's output; None if it runs eagerly."""
        return self.cache.find(lambda: (what[0], identity(what[1]), form(given, grads=True)), lambda: CacheEntry(what))

    def replay(self, entry: CacheEntry | None, inputs: Inputs) -> tuple[Any] | None:
        """The results in a tuple; None if this call must run eagerly."""
        if entry is None or entry.program is None:
            return None
        ready = entry.program

        def run() -> Any:
            entry.prepare(self.state, ready)
            return entry.told(ready.run())

        before = None if ready.graphs else Before.replay(self.state, ready.draws)
        return self.cache.replay(entry, inputs.leaves, run, "the model or the function", before)

    def recorder(self, entry: CacheEntry | None, run: Run) -> Run:
        """A function that runs a call, and records it if it may be replayed."""
        functions = () if entry is None else (*entry.alive, *self.state.called)
        return self.cache.recorder(entry, functions, partial(self._record, run), run)

    def _record(self, run: Run, entry: CacheEntry, inputs: Inputs, guards: Guards) -> Any:
        state = self.state
        if entry.inputs is None:
            entry.inputs = self._rooms(entry, inputs)
        entry.fill(inputs.leaves)
        rooms, recorder, restore = entry.inputs, Recorder(state.generators.device), state.snapshot()
        with state.generators.listening(recorder.member), recorder:
            result = run(entry.inputs)
        trace = recorder.trace
        leaves, rebuild = flatten(result)
        if entry.layout is not None and any(isinstance(v, Tensor) and v.ndim > 2 for v in leaves):
            # Not only scores: the caller is to get what is stored as a plain module stores it.
            entry.as_given, entry.inputs, entry.layout = True, None, None
            restore()
            return run(inputs)
        outputs, told, trouble = outputs_of(recorder, leaves, "it")
        reason = trace.reason or trouble
        if reason:
            entry.refuse(reason)
            return result
        # The caller must not get memory that the program reads or writes.
        own = unflatten(rebuild, [v.clone() if isinstance(v, Tensor) else v for v in leaves])
        if entry.accepts(trace, guards, told, "", "the model or the function"):

            def make(chosen: bool) -> tuple[Program, Callable[[], list[Tensor]]]:
                made = build_program(trace, outputs, (), state.generators, chosen)
                return made, made.run

            def again() -> list[Tensor]:
                return [v for v in flatten(run(rooms))[0] if isinstance(v, Tensor)]

            results = [v for v in leaves if isinstance(v, Tensor)]
            made, reason = proven(state, restore, lambda: results, again, make)
            entry.rebuild, entry.choices = rebuild, made.choices
            if reason:
                entry.refuse(reason)
            else:
                entry.program = made
        return own

    def _rooms(self, entry: CacheEntry, inputs: Inputs) -> Inputs:
        """Permanent memory for the inputs, with channels last if training steps have it."""
        if entry.as_given or self.state.settings.strategy != "measured" or not self._channels_last():
            return rooms_for(inputs)
        entry.layout = Layout(LAST, {}, f"images {LAST}, as in training")
        return turned_all(inputs)
