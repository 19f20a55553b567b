"""One call of `array.backward` while it is recorded."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor

from hfta_nb.engine.eager.blocks import leaf_blocks
from hfta_nb.engine.eager.call_inputs import Inputs
from hfta_nb.engine.eager.engine import Block, Call
from hfta_nb.engine.eager.gradients import Gradients
from hfta_nb.engine.eager.state import ArrayState
from hfta_nb.engine.kernels.strategy import gpu_streams
from hfta_nb.engine.members.threads import available_threads
from hfta_nb.engine.members.tree import flatten
from hfta_nb.engine.replay import layouts
from hfta_nb.engine.replay.build_program import build_program
from hfta_nb.engine.replay.cache_entry import CacheEntry, outputs_of, rooms_for
from hfta_nb.engine.replay.delivery import Target
from hfta_nb.engine.replay.guards import Guards
from hfta_nb.engine.replay.program import Program
from hfta_nb.engine.replay.record import Recorder
from hfta_nb.engine.replay.source import Source
from hfta_nb.engine.replay.trace import BufferView, NotRecordableError
from hfta_nb.engine.replay.verify import left_alone, placed, proven

Restore = Callable[[], None]


@dataclass
class StepEntry(CacheEntry):
    """The state of the calls of one signature.

    Attributes:
        scale: memory that replaces the factors of the losses.
        targets: destinations of the gradients.
        args: of the last replayed call, without inputs.
    """

    scale: Tensor | None = None
    targets: list[Target] = field(default_factory=list)
    args: Any = None

    def drop(self) -> None:
        super().drop()
        self.inputs = None  # they may be channels last


class RecordedGradients(Gradients):
    """Delivers gradients and records where they are."""

    def __init__(
        self,
        state: ArrayState,
        inputs: Inputs,
        scale: Tensor | None,
        only: Collection[str] | None,
        recorder: Recorder,
    ) -> None:
        super().__init__(state, inputs, scale=scale, only=only)
        self.recorder = recorder
        self.places: list[tuple[BufferView, Tensor]] = []
        self.grads: list[Tensor] = []
        self.trouble = ""
        if recorder.device.type == "cuda":
            recorder.trace.lanes = gpu_streams.MOST
        elif state.settings.threads == "blocks" and recorder.device.type == "cpu":
            recorder.trace.lanes = available_threads()

    def _take(self, block: Block, names: list[str], grads: Any) -> None:
        with self.recorder.paused():
            for name, grad in zip(names, grads, strict=False):
                if grad is not None:
                    try:
                        self.places.append((self.recorder.place(grad), block.grad_rows[name]))
                        self.grads.append(grad)
                    except NotRecordableError as error:
                        self.trouble = str(error)
            super()._take(block, names, grads)
        self.recorder.trace.blocks.append(len(self.recorder.trace.calls))

    def targets(self) -> list[Target]:
        """The destinations of gradients, and the members without one, as in `deliver`.

        Raises:
            NotRecordableError: a parameter is used by no member.
        """
        state, members = self.state, range(len(self.state))
        unused, architectures = state.engine.usage.unused(), state.engine.architectures
        targets = []
        for name, blocks in self.received.items():
            have = {i for b in blocks for i in range(b.start, b.stop)} - set(unused.get(name, ()))
            if not have:
                raise NotRecordableError("a parameter is used by no member")
            empty = tuple(i for i in members if i not in have)
            lacking = set() if architectures is None else set(architectures.lacking(name))
            missing = tuple(i for i in empty if i not in lacking)
            view = state.arena_of(name).grad_view(name)
            targets.append(Target(self.parameters[name], name, view, empty, missing))
        return targets


class RecordedStep:
    """One recorded call.

    Args:
        state: of the array.
        entry: the entry of the call.
        call: what is computed for a member.
        only: see `FusedArray.backward`.
    """

    def __init__(self, state: ArrayState, entry: StepEntry, call: Call, only: Collection[str] | None) -> None:
        self.state, self.entry, self.call, self.only = state, entry, call, only

    def result(self, inputs: Inputs, scale: Tensor | None, guards: Guards) -> tuple[Gradients, Any]:
        """The result of the call, which is recorded; a program is created after the second recording."""
        entry = self.entry
        if entry.inputs is None:
            entry.inputs = rooms_for(inputs)
            entry.scale = None if scale is None else scale.detach().clone()
        entry.fill(inputs.leaves)
        if entry.scale is not None and scale is not None:
            entry.scale.copy_(scale.detach())
        restore = self.state.snapshot()
        recorder, gradients, result = self._recorded(entry.inputs)
        self._finish(guards, recorder, gradients, result, restore)
        if entry.program is not None and entry.layout is None:
            self._lay(restore)
        return gradients, result

    def _recorded(self, inputs: Inputs, added: bool = True) -> tuple[Recorder, RecordedGradients, Any]:
        """Run the call and record it; unless `added`, existing gradients are left unchanged."""
        state = self.state
        recorder = Recorder(state.generators.device)
        gradients = RecordedGradients(state, inputs, self.entry.scale, self.only, recorder)
        if not added:
            gradients.fresh = set(gradients.parameters)
        with state.generators.listening(recorder.member), recorder:
            result = gradients.of(self.call, leaf_blocks(state))
        return recorder, gradients, result

    def _finish(
        self, guards: Guards, recorder: Recorder, gradients: RecordedGradients, result: Any, restore: Restore
    ) -> None:
        """Store the trace; after the second of two equal ones, create the program and compare it with this call."""
        state, entry, trace = self.state, self.entry, recorder.trace
        leaves, rebuild = flatten(result)
        outputs, told, trouble = outputs_of(recorder, leaves, "the loss")
        reason, targets = trace.reason or gradients.trouble, []
        try:
            targets = gradients.targets()
        except NotRecordableError as error:
            reason = reason or str(error)
        if not entry.accepts(trace, guards, told, reason or trouble, "the model or the loss"):
            return

        turned: list[Program] = []

        def make(chosen: bool) -> tuple[Program, Callable[[], list[Tensor]]]:
            made = build_program(trace, outputs, gradients.places, state.generators, chosen)
            if chosen and not turned:
                turned.append(self._known_layout(made, restore) or made)
                made = turned[0]
            return made, made.run

        entry.rebuild, entry.targets = rebuild, targets
        written = [(grad, rows) for grad, (_, rows) in zip(gradients.grads, gradients.places, strict=True)]
        given = entry.inputs
        assert given is not None  # allocated before the first recording
        recorded = partial(placed, [v for v in leaves if isinstance(v, Tensor)], written)
        ways = state, restore, recorded, partial(self._again, given), make
        made, reason = proven(*ways)
        if entry.layout is not None and made is not turned[0]:  # its numbers are others
            entry.inputs, entry.layout = given, None
            made, reason = proven(*ways)
        entry.choices = made.choices
        if reason:
            entry.refuse(reason)
        else:
            entry.program = made

    def _again(self, inputs: Inputs) -> Sequence[Tensor]:
        """The call once more; returns its results, with the gradients where a program puts them."""
        _, gradients, result = self._recorded(inputs, added=False)
        written = [(grad, rows) for grad, (_, rows) in zip(gradients.grads, gradients.places, strict=True)]
        return placed([v for v in flatten(result)[0] if isinstance(v, Tensor)], written)

    def _known_layout(self, given: Program, restore: Restore) -> Program | None:
        """The program with channels-last images if such steps are known to be faster so; `entry` gets its inputs."""
        state, entry, source = self.state, self.entry, given.source
        if source is None or entry.inputs is None:
            return None
        layout = layouts.known_last(source, entry.inputs, entry.like)
        if layout is None:
            return None
        inputs = layouts.turned_all(entry.inputs)
        with left_alone(state), layouts.trying_last(source):
            restore()
            try:
                made = self._laid(source, inputs)
            except Exception:  # `layouts.choose` tells of it
                return None
        entry.inputs, entry.layout = inputs, layout
        return made

    def _laid(self, source: Source, inputs: Inputs) -> Program:
        """The program of the same call for inputs in another layout.

        Raises:
            NotRecordableError: the call is another one.
        """
        entry, guards = self.entry, self.entry.guards
        recorder, gradients, result = self._recorded(inputs, added=False)
        with recorder:
            leaves = layouts.stored_alike(flatten(result)[0], source.outputs)
        outputs, told, trouble = outputs_of(recorder, leaves, "the loss")
        trouble = recorder.trace.reason or gradients.trouble or trouble
        if trouble or told != entry.leaves or guards is None or not guards.hold():
            raise NotRecordableError(trouble or "the model does something else")
        return build_program(recorder.trace, outputs, gradients.places, self.state.generators)

    def _lay(self, restore: Restore) -> None:
        """Choose the layout of images in a step that is replayed from now on."""
        state, entry = self.state, self.entry
        given = entry.program
        if state.settings.strategy != "measured" or given is None or given.source is None or entry.inputs is None:
            return
        source, found = given.source, [given]

        def make(inputs: Inputs) -> Callable[[], list[Tensor]]:
            found.append(self._laid(source, inputs))
            return found[-1].run

        chosen = layouts.choose(state, source, entry.inputs, given.run, make, restore, entry.like)
        if chosen is not None:
            entry.layout, inputs = chosen
            if inputs is not entry.inputs:
                entry.inputs, entry.program, entry.choices = inputs, found[-1], found[-1].choices
