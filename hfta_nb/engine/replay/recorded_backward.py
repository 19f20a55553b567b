"""One call of `array.backward` while it is recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hfta_nb.engine.eager.engine import Block
from hfta_nb.engine.eager.gradients import Gradients
from hfta_nb.engine.kernels.strategy import gpu_streams
from hfta_nb.engine.members.threads import available_threads
from hfta_nb.engine.replay import layouts
from hfta_nb.engine.replay.delivery import Target
from hfta_nb.engine.replay.program import Program
from hfta_nb.engine.replay.recording import Recording, Restore
from hfta_nb.engine.replay.trace import BufferView, NotRecordableError
from hfta_nb.engine.replay.verify import left_alone


class RecordedBackward(Recording):
    """A recorded call of `backward`."""

    def record(self, stored: Sequence[BufferView] | None = None) -> Any:
        self._gradients = _RecordedGradients(self)
        if self.repeats:
            self._gradients.fresh = set(self._gradients.parameters)
        result = super().record(stored)
        try:
            self.targets = self._gradients.targets()
        except NotRecordableError as error:
            self.reason = self.reason or str(error)
        return self._gradients, result

    def compute(self) -> Any:
        return self._gradients.of(self.call.of_member(), self.call.blocks())

    def proven(self, restore: Restore, program: Callable[[bool], Program]) -> tuple[Program, str]:
        turned: list[Program] = []

        def in_known_layout(chosen: bool) -> Program:
            made = program(chosen)
            if chosen and not turned:
                turned.append(self._known_layout(made, restore) or made)
                made = turned[0]
            return made

        entry = self.entry
        given = entry.inputs
        found = super().proven(restore, in_known_layout)
        if entry.layout is None or found[0] is turned[0]:
            return found
        entry.inputs, entry.layout = given, None  # its numbers are others
        return super().proven(restore, in_known_layout)

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
                made = self.turned(inputs)
            except Exception:  # `layouts.choose` tells of it
                return None
        entry.inputs, entry.layout = inputs, layout
        return made


class _RecordedGradients(Gradients):
    """Delivers gradients and records where they are."""

    def __init__(self, recording: Recording) -> None:
        call, recorder = recording.call, recording.recorder
        super().__init__(call.state, recording.inputs, scale=recording.entry.scale, only=call.only)
        self._recording = recording
        if recorder.device.type == "cuda":
            recorder.trace.branches = gpu_streams.MOST
        elif call.state.settings.threads == "blocks" and recorder.device.type == "cpu":
            recorder.trace.branches = available_threads()

    def _take(self, block: Block, names: list[str], grads: Any) -> None:
        recorder = self._recording.recorder
        with recorder.paused():
            for name, grad in zip(names, grads, strict=False):
                if grad is not None:
                    self._recording.keep(grad, block.grad_rows[name])
            super()._take(block, names, grads)
        recorder.trace.blocks.append(len(recorder.trace.calls))

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
