"""One call while it is recorded: what all kinds of calls have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from hfta_nb.engine.eager.call_inputs import Inputs
from hfta_nb.engine.members.generators import MemberGenerators
from hfta_nb.engine.members.tree import Rebuild, flatten, tensor_map
from hfta_nb.engine.replay import layouts
from hfta_nb.engine.replay.array_call import ArrayCall
from hfta_nb.engine.replay.build_program import build_program, source_of
from hfta_nb.engine.replay.cache_entry import CacheEntry, buffers_for, outputs_of
from hfta_nb.engine.replay.delivery import Target
from hfta_nb.engine.replay.guards import Guards
from hfta_nb.engine.replay.program import Program
from hfta_nb.engine.replay.record import Recorder
from hfta_nb.engine.replay.source import Source, half_of
from hfta_nb.engine.replay.trace import BufferView, NotRecordableError, Trace
from hfta_nb.engine.replay.verify import placed, proven

Restore = Callable[[], None]


class Recording:
    """One recorded call.

    Args:
        call: the call.
        entry: its entry.
        inputs: in the memory that the call reads.

    Attributes:
        outputs: the locations of the results.
        leaves, rebuild: put the results together, see `CacheEntry`.
        tensors: among the results.
        gradients: sources and destinations.
        written: values of the gradients, and their destinations.
        input_grads: the gradients of inputs, for the caller of a forward.
        targets: the parameters that get gradients.
        reason: why the call cannot be replayed; empty if it can be.
        unusable: the call has to run again without recording.
        repeats: whether it only repeats a call, and changes no gradient that there is.
    """

    outputs: list[BufferView]
    leaves: list[Any]
    rebuild: Rebuild
    tensors: list[Tensor]

    def __init__(self, call: ArrayCall, entry: CacheEntry, inputs: Inputs) -> None:
        self.call, self.entry, self.inputs, self.state = call, entry, inputs, call.state
        self.recorder = Recorder(self.state.generators.device)
        self.gradients: list[tuple[BufferView, Tensor]] = []
        self.written: list[tuple[Tensor, Tensor]] = []
        self.input_grads: list[Tensor | None] = []
        self.targets: list[Target] = []
        self.reason, self.unusable, self.repeats = "", False, False

    @classmethod
    def memory(cls, call: ArrayCall, entry: CacheEntry, given: Inputs) -> Inputs:
        """The memory that a call reads, with its inputs in it."""
        if entry.inputs is None:
            entry.inputs = buffers_for(given)
        if call.scale is not None and entry.scale is None:
            entry.scale = call.scale.detach().clone()
        entry.fill(given.leaves, call.scale)
        return entry.inputs

    def result(self, given: Inputs, guards: Guards) -> Any:
        """The result of the call, which is recorded; a program is created after the second recording.

        Args:
            given: the inputs as the caller has given them.
            guards: created before the call.
        """
        restore = self.state.snapshot()
        result = self.record()
        if self.unusable:
            restore()
            return self.call.eagerly(given)
        if self.entry.accepts(self.recorder.trace, guards, self.leaves, self.reason, self.call.kind.code):
            self.entry.rebuild = self.rebuild
            self.finish(restore)
            self.lay(restore)
        return result

    def record(self, stored: Sequence[BufferView] | None = None) -> Any:
        """Run the call; returns what its caller gets.

        Args:
            stored: locations; tensors among the results get their layouts.
        """
        with self.state.generators.listening(self.recorder.member), self.recorder:
            result = self.compute()
        leaves, self.rebuild = flatten(result)
        if stored is not None:
            with self.recorder:
                leaves = layouts.stored_alike(leaves, stored)
        self.outputs, self.leaves, trouble = outputs_of(self.recorder, leaves, self.call.kind.returning)
        self.tensors = [v for v in leaves if isinstance(v, Tensor)]
        self.reason = self.recorder.trace.reason or self.reason or trouble
        return result

    def compute(self) -> Any:
        """The results of the call."""
        return self.call.outputs(self.inputs, self.call.blocks())

    def keep(self, grad: Tensor, buffer: Tensor) -> None:
        """Record a gradient and its destination."""
        try:
            self.gradients.append((self.recorder.place(grad), buffer))
            self.written.append((grad, buffer))
        except NotRecordableError as error:
            self.reason = str(error)

    def passed(self) -> list[Tensor]:
        """The gradients of inputs that there are."""
        return [grad for grad in self.input_grads if grad is not None]

    def results(self) -> list[Tensor]:
        """What a program of this call returns."""
        return [*(t.detach() for t in self.tensors), *self.passed()]

    def placed(self) -> Sequence[Tensor]:
        """The results, with the gradients where a program puts them."""
        return placed(self.results(), self.written)

    def program(self, chosen: bool = True) -> Program:
        """The program of this call.

        Args:
            chosen: choose kernels.
        """
        made = build_program(*self._recorded(), chosen, self.state.scratch)
        made.targets = self.targets
        return made

    def source(self) -> Source:
        """The calls of which `program` makes a program."""
        return source_of(*self._recorded())

    def _recorded(self) -> tuple[Trace, list[BufferView], list[tuple[BufferView, Tensor]], MemberGenerators]:
        results = [*self.outputs, *map(self.recorder.place, self.passed())]
        return self.recorder.trace, results, self.gradients, self.state.generators

    def finish(self, restore: Restore) -> None:
        """Create the program, and compare it with this call.

        Args:
            restore: restores the array's state before the call.
        """
        made, reason = self.proven(restore, self.program)
        if reason:
            self.entry.refuse(reason)
        else:
            self.entry.program = made

    def proven(self, restore: Restore, program: Callable[[bool], Program]) -> tuple[Program, str]:
        """A program that gives the results of this call, or the last one tried and how it differs.

        Args:
            restore: as for `finish`.
            program: creates one, with or without choosing kernels.
        """

        def make(chosen: bool) -> tuple[Program, Callable[[], list[Tensor]]]:
            made = program(chosen)
            return made, made.run

        def again() -> Sequence[Tensor]:
            return self.repeated(self.inputs).placed()

        return proven(self.state, restore, self.placed, again, make, half_of(self.recorder.trace.calls))

    def lay(self, restore: Restore) -> None:
        """Choose the layout of images for calls that are replayed from now on; arguments as for `finish`."""
        state, entry = self.state, self.entry
        given, inputs = entry.program, entry.inputs
        if state.settings.strategy != "measured" or entry.layout is not None or self.inputs.grad_leaves():
            return
        if given is None or given.source is None or inputs is None:
            return
        found = [given]

        def make(turned: Inputs) -> Callable[[], list[Tensor]]:
            found.append(self.turned(turned))
            return found[-1].run

        chosen = layouts.choose(state, given.source, inputs, given.run, make, restore, entry.like)
        if chosen is not None:
            entry.layout, other = chosen
            if other is not inputs:
                entry.inputs, entry.program = other, found[-1]

    def repeated(self, inputs: Inputs, stored: Sequence[BufferView] | None = None) -> Recording:
        """The same call once more, whose results nobody gets; arguments as for `record`."""
        other = type(self)(self.call, self.entry, inputs)
        other.repeats = True
        other.record(stored)
        return other

    def turned(self, inputs: Inputs) -> Program:
        """The program of the same call for inputs in another layout; as `alike`."""
        return self.alike(inputs, self.outputs).program()

    def alike(self, inputs: Inputs, stored: Sequence[BufferView]) -> Recording:
        """The same call, recorded in another way; arguments as for `record`.

        Raises:
            NotRecordableError: the call is another one.
        """
        other, guards = self.repeated(inputs, stored), self.entry.guards
        if other.reason or other.leaves != self.entry.leaves or guards is None or not guards.hold():
            raise NotRecordableError(other.reason or "the model does something else")
        return other


class RecordedResults(Recording):
    """A recorded call without gradients: `evaluate`, or ``array(x)`` under `no_grad`."""

    def record(self, stored: Sequence[BufferView] | None = None) -> Any:
        result = super().record(stored)
        entry = self.entry
        if entry.layout is not None and any(t.ndim > 2 for t in self.tensors):
            # Not only scores: the caller is to get what is stored as a plain module stores it.
            entry.as_given, entry.inputs, entry.layout, self.unusable = True, None, None, True
        return tensor_map(Tensor.clone, result)  # the caller must not get memory that the program reads or writes

    def lay(self, restore: Restore) -> None:
        """Images have the layout that they have in training."""
