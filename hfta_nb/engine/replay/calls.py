"""Runs the calls of an array: replayed if possible, otherwise eagerly, with recording where it may help.

The first call of a kind runs through `vmap`; the next two are recorded; later ones are replayed. A call of `array(x)`
with gradients is recorded with its backward, for random gradients; the caller gets autograd's own graph, unaffected by
the recording. Replayed, it is one node of the graph; see `node`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hfta_nb.engine.eager.call_inputs import Inputs
from hfta_nb.engine.eager.recomputation import in_backward, refuse_checkpoint, same_streams
from hfta_nb.engine.eager.retry import RetryHelpers, run_with_retry
from hfta_nb.engine.eager.shared_input_warning import warn_of_summed_gradients
from hfta_nb.engine.eager.state import ArrayState
from hfta_nb.engine.members.threads import thread_scope
from hfta_nb.engine.replay.array_call import BACKWARD, FORWARD, RESULTS, ArrayCall, CallKind
from hfta_nb.engine.replay.cache_entry import CacheEntry
from hfta_nb.engine.replay.delivery import delivered
from hfta_nb.engine.replay.guards import Guards
from hfta_nb.engine.replay.inductor.decide import decide, swap
from hfta_nb.engine.replay.layouts import LAST, Layout, turned_all
from hfta_nb.engine.replay.node import SavedContext
from hfta_nb.engine.replay.program_cache import ProgramCache
from hfta_nb.engine.replay.recorded_backward import RecordedBackward
from hfta_nb.engine.replay.recorded_forward import RecordedForward
from hfta_nb.engine.replay.recording import RecordedResults, Recording
from hfta_nb.engine.replay.source import Source
from hfta_nb.engine.replay.split_program import SplitProgram
from hfta_nb.engine.replay.verify import Before, left_alone

_RECORDED: dict[CallKind, type[Recording]] = {
    BACKWARD: RecordedBackward,
    FORWARD: RecordedForward,
    RESULTS: RecordedResults,
}


class Calls:
    """Runs the calls of an array.

    Args:
        state: of the array.
        helpers: functions of the array for the first run of a call.

    Attributes:
        caches: the programs of each kind of calls.
        steps: those of `FusedArray.backward`.
    """

    def __init__(self, state: ArrayState, helpers: RetryHelpers) -> None:
        self.state, self.helpers = state, helpers
        self.caches: dict[CallKind, ProgramCache] = {kind: ProgramCache(state) for kind in _RECORDED}
        self.steps = self.caches[BACKWARD]
        self._outstanding: weakref.ref[SavedContext] | None = None

    def learn(self, other: Calls) -> None:
        """Know the calls that another array replays, of which this one has some of the members."""
        for kind, cache in self.caches.items():
            cache.learn(other.caches[kind])

    def clear(self) -> None:
        """Discard all recordings."""
        for cache in self.caches.values():
            cache.clear()

    def forward(self, given: Any, compute: Callable[[nn.Module, Any], Any], plain: Inputs | None = None) -> ArrayCall:
        """The call that computes outputs, with gradients if any may be needed; arguments as for `ArrayCall`."""
        call = ArrayCall(self.state, RESULTS, given, compute=compute, plain=plain)
        if torch.is_grad_enabled() and (
            any(p.requires_grad for p in self.steps.parameters)
            or any(isinstance(v, Tensor) and v.requires_grad for v in call.leaves)
        ):
            call.kind = FORWARD
        return call

    def run(self, call: ArrayCall) -> Any:
        """The result of a call; a `backward` delivers its gradients, too."""
        state = self.state
        with thread_scope(state.settings.threads):
            # The next call often has the signature of the last one.
            entry = self.caches[call.kind].again(call)
            if entry is not None and (call.function is not None or not (state.missing_grads or in_backward())):
                replayed = self._replayed(entry, call)
                if replayed is not None:
                    return replayed[0]
            if call.function is not None:
                return self._found(call)
            warn_of_summed_gradients(state, call.inputs)
            refuse_checkpoint()
            state.engine.usage.clear()
            with same_streams(state.generators) if in_backward() else nullcontext():
                result = self._found(call)
            if torch.is_grad_enabled():
                state.note_unused()
            return result

    def _found(self, call: ArrayCall) -> Any:
        """The result of a call, replayed if its signature is known, otherwise computed eagerly."""
        cache = self.caches[call.kind]
        entry = cache.find(call)
        replayed = None if entry is None else self._replayed(entry, call)
        if entry is not None and replayed is not None:
            cache.remember(entry, call)
            return replayed[0]
        run = cache.recorder(entry, call, partial(self._recorded, call))
        eager = call.eagerly if call.kind is FORWARD else None
        result = run_with_retry(self.state, self.helpers, call.name, call.inputs, run, call.computation(), eager)
        if call.kind is BACKWARD:
            gradients, result = result
            gradients.deliver()
        if call.function is not None:
            self.state.met.add(call.function)
        return result

    def _recorded(self, call: ArrayCall, entry: CacheEntry, inputs: Inputs, guards: Guards) -> Any:
        if call.kind is RESULTS and entry.inputs is None and not entry.as_given and self._trains_channels_last():
            entry.inputs, entry.layout = turned_all(inputs), Layout(LAST, {}, f"images {LAST}, as in training")
        kind = _RECORDED[call.kind]
        return kind(call, entry, kind.memory(call, entry, inputs)).result(inputs, guards)

    def _trains_channels_last(self) -> bool:
        """True if training steps run with channels-last images, which was measured."""
        entries = [*self.caches[BACKWARD], *self.caches[FORWARD]]
        chosen = any(entry.layout is not None and entry.layout.chosen == LAST for entry in entries)
        return chosen and self.state.settings.strategy == "measured"

    # Replaying.

    def _replayed(self, entry: CacheEntry, call: ArrayCall) -> tuple[Any] | None:
        """The result in a tuple; None if this call must run eagerly."""
        program, cache = entry.program, self.caches[call.kind]
        if program is None or (isinstance(program, SplitProgram) and self._is_outstanding()):
            return None
        # A graph runs whole, or the device is lost; but the backward of a forward may compute it again.
        undone = not program.graphs or call.kind is FORWARD
        before = Before.replay(self.state, program.draws) if undone else None
        found = cache.replay(entry, call, partial(self._run, entry, call), before)
        if found is None or not isinstance(program, SplitProgram):
            return found
        context = SavedContext(entry, program, call, before)
        self._outstanding = weakref.ref(context)
        return (context.attached(found[0]),)

    def _run(self, entry: CacheEntry, call: ArrayCall) -> Any:
        """Run the program, its inputs filled in."""
        program, settings = entry.program, self.state.settings
        assert program is not None  # checked by the caller
        if call.kind is BACKWARD and settings.compiling != "never" and not program.decision.made:
            decide(program, settings.compiling, settings.planned_steps, partial(self._in_other_blocks, entry, call))
        if program.decision.is_due:
            swap(program, settings.planned_steps)
        entry.prepare(self.state)
        if isinstance(program, SplitProgram):
            return program.forward()
        return entry.rebuilt(delivered(self.state, program.targets, program.run))

    def _in_other_blocks(self, entry: CacheEntry, call: ArrayCall) -> dict[int, Source]:
        """The same step in blocks of one and of all members, by block size, if it is replayed in others because these
        were faster; compiled, others may be."""
        state, settings, found = self.state, self.state.settings, dict[int, Source]()
        source = None if entry.program is None else entry.program.source
        if not settings.tuned or state.engine.architectures is not None or source is None or entry.inputs is None:
            return found
        before = settings.block_size
        try:
            for size in {1, len(state)} - {before}:
                settings.block_size = size
                with left_alone(state), suppress(Exception):  # such as too little memory
                    recording = _RECORDED[call.kind](call, entry, entry.inputs)
                    found[size] = recording.alike(entry.inputs, source.outputs).source()
        finally:
            settings.block_size = before
        return found

    def _is_outstanding(self) -> bool:
        """True if a later backward needs the content of the program's memory."""
        before = None if self._outstanding is None else self._outstanding()
        return before is not None and not before.spent
