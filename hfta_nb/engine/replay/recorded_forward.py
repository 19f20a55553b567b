"""One call of `array(x)` with gradients while it is recorded with its backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from hfta_nb.engine.eager.autograd_nodes import nodes, own_function, reached
from hfta_nb.engine.eager.blocks import graph_blocks
from hfta_nb.engine.eager.call_inputs import Inputs
from hfta_nb.engine.eager.differentiate import vector_jacobian
from hfta_nb.engine.eager.state import ArrayState
from hfta_nb.engine.members.tree import Rebuild, flatten
from hfta_nb.engine.replay import layouts
from hfta_nb.engine.replay.build_program import build_program
from hfta_nb.engine.replay.cache_entry import outputs_of, room_like, rooms_for
from hfta_nb.engine.replay.delivery import Target
from hfta_nb.engine.replay.guards import Guards
from hfta_nb.engine.replay.halves import CompiledForward, ForwardEntry
from hfta_nb.engine.replay.node import Run
from hfta_nb.engine.replay.overlap import overlap
from hfta_nb.engine.replay.record import Recorder
from hfta_nb.engine.replay.trace import BufferView, NotRecordableError, places
from hfta_nb.engine.replay.verify import placed, proven
from hfta_nb.errors import out_of_memory


def recorded(state: ArrayState, entry: ForwardEntry, inputs: Inputs, run: Run, guards: Guards) -> Any:
    """The outputs of a call, which is recorded; a program is created after the second recording."""
    restore = state.snapshot()
    # The graph that the caller gets may live on, so this call has separate memory.
    own = tuple(room_like(v).copy_(v) if isinstance(v, Tensor) else v for v in inputs.leaves)
    call = RecordedForward(state, entry, replace(inputs, leaves=own), run)
    result = call.record()
    if call.harmed:
        entry.refuse(call.reason)
        restore()
        return run(inputs, graph_blocks(state))
    if entry.accepts(call.recorder.trace, guards, call.told, call.reason, "the model"):
        entry.rebuild = call.rebuild
        call.finish(restore)
        call.lay(restore)
    return result


class RecordedForward:
    """One recorded call.

    Args:
        state: of the array.
        entry: the entry of the call.
        inputs: in the memory that the call reads.
        run: computes the outputs eagerly.

    Attributes:
        outputs: the locations of the outputs.
        told, rebuild: put the results together, see `CacheEntry`.
        reason: why it cannot be replayed; empty if it can be.
        learned: the ids of the parameters on which outputs depend.
        harmed: whether the backward writes to tensors of the forward, or to others that existed.
    """

    outputs: list[BufferView]
    told: list[Any]
    rebuild: Rebuild
    reason: str
    harmed = False

    def __init__(self, state: ArrayState, entry: ForwardEntry, inputs: Inputs, run: Run) -> None:
        self.state, self.entry, self.inputs, self.run = state, entry, inputs, run
        self.recorder = Recorder(state.generators.device)
        self.blocks = graph_blocks(state)
        self.gradients: list[tuple[BufferView, Tensor]] = []
        self.written: list[tuple[Tensor, Tensor]] = []
        self.rows: dict[str, set[int]] = {}
        self.upstream: list[Tensor | None] = []
        self.learned: set[int] = set()

    def record(self, stored: Sequence[BufferView] | None = None) -> Any:
        """Run the call and its backward; returns the outputs.

        Args:
            stored: locations; tensors among the outputs get their layouts.
        """
        state, trace = self.state, self.recorder.trace
        with self.recorder.paused():
            self.places = [self.recorder.place(v) for v in self.inputs.leaves if isinstance(v, Tensor)]
        trace.given = {p.storage for p in self.places}
        with state.generators.listening(self.recorder.member), self.recorder:
            result = self.run(self.inputs, self.blocks)
        leaves, self.rebuild = flatten(result)
        if stored is not None:
            with self.recorder:
                leaves = layouts.stored_alike(leaves, stored)
        self.outputs, self.told, trouble = outputs_of(self.recorder, leaves, "the model")
        self.tensors = [v for v in leaves if isinstance(v, Tensor)]
        self.learned = reached(self.tensors)
        self.reason = trace.reason or trouble or self._unfit()
        if self.reason:
            return result
        after, made_until = state.snapshot(), len(trace.held)
        try:
            self._backward()
        except Exception as error:
            if out_of_memory(error):
                raise
            self.reason = str(error).strip().partition("\n")[0] or type(error).__name__
        after()
        self.reason = self.reason or trace.reason
        old = trace.outside | set(range(made_until))
        if trace.cut is not None and any(call.writes & old for call in trace.calls[trace.cut :]):
            self.harmed, self.reason = True, "the backward writes into what the forward has made"
        return result

    def _unfit(self) -> str:
        """Why these outputs cannot be replayed."""
        trace, outputs = self.recorder.trace, self.outputs
        if not any(t.requires_grad for t in self.tensors):
            return "no output depends on anything that requires a gradient"
        if any(p.storage in trace.outside for p in outputs):
            return "an output is an input, a parameter or a buffer"
        if any(call.writes & trace.given for call in trace.calls):
            return "the model writes into its input"
        if any(overlap(a, b) for i, a in enumerate(outputs) for b in outputs[:i]):
            return "outputs share memory"
        reason = self._learns_more()
        if reason:
            return reason
        if any(m._backward_hooks or m._backward_pre_hooks for m in self.state.skeleton.modules()):
            return "a submodule has a backward hook"
        return ""

    def _learns_more(self) -> str:
        """Why a backward from these outputs may change more than gradients."""
        known = {id(p) for p in self.state.tensors.parameters()}
        for node in nodes(self.tensors, [v.grad_fn for v in self.inputs.grad_leaves()]):
            if type(node).__name__ == "AccumulateGrad" and id(node.variable) not in known:
                return "something learns that is neither a parameter of the array nor an input"
            name = own_function(node)
            if name:
                return f"the backward of {name} may differentiate by itself"
        return ""

    def _backward(self) -> None:
        """Send gradients back; collect the resulting ones."""
        entry, recorder = self.entry, self.recorder
        outputs = [t for t in self.tensors if t.requires_grad]
        entry.used = entry.used or (True,) * len(outputs)
        used = [t for t, u in zip(outputs, entry.used, strict=True) if u]
        if not entry.grads:
            # Stored like the outputs, as gradients of elementwise losses are: the backward need not copy them again.
            entry.grads = [room_like(t.detach()) for t in used]
        draw = torch.Generator(self.state.generators.device).manual_seed(0)
        with torch.no_grad():
            for room in entry.grads:
                room.copy_(torch.randn(room.shape, generator=draw, dtype=room.dtype, device=room.device))
        wanted = [(b, n) for b in self.blocks for n, p in b.parameters.items() if p.requires_grad]
        roots = [*(b.parameters[n] for b, n in wanted), *self.inputs.grad_leaves()]
        recorder.cut()
        # Without autocast, like the caller's backward.
        with recorder, torch.autocast(recorder.device.type, enabled=False):
            found = vector_jacobian(used, roots, entry.grads, retain_graph=True)
        for (block, name), grad in zip(wanted, found, strict=False):
            if grad is not None:
                room = self.state.arena_of(name).grad_view(name)
                room = room[block.start] if block.single else room[block.start : block.stop]
                self.gradients.append((recorder.place(grad), room))
                self.written.append((grad, room))
                self.rows.setdefault(name, set()).update(range(block.start, block.stop))
        self.upstream = list(found[len(wanted) :])

    def compiled(self, chosen: bool = True) -> CompiledForward:
        """The program of this call.

        Args:
            chosen: choose kernels.
        """
        state, entry = self.state, self.entry
        results = [*self.outputs, *(self.recorder.place(g) for g in self.upstream if g is not None)]
        program = build_program(self.recorder.trace, results, self.gradients, state.generators, chosen)
        named = dict(state.tensors.named_parameters())
        targets = [
            Target(named[n], n, state.arena_of(n).grad_view(n), tuple(set(range(len(state))) - have))
            for n, have in self.rows.items()
        ]
        assert entry.used is not None  # known since the backward
        kinds = tuple(t.requires_grad for t in self.tensors)
        learning = [p for p in state.tensors.parameters() if id(p) in self.learned]
        passes = tuple(g is not None for g in self.upstream)
        alone = self.rebuild is next and kinds == (True,)
        way, needs = state.settings.threads, self._needed()
        return CompiledForward(program, way, targets, entry.grads, entry.used, kinds, learning, passes, needs, alone)

    def _needed(self) -> tuple[list[nn.Parameter], list[int]]:
        """The parameters and inputs that the backward reads, which must not change before it."""
        trace, state = self.recorder.trace, self.state
        read = [
            p
            for call in trace.calls[trace.cut or 0 :]
            for p in places((call.args, call.kwargs))
            if p.storage in trace.outside
        ]
        inputs = {p.storage for p in read}
        leaves = [i for i, v in enumerate(self.inputs.leaves) if isinstance(v, Tensor)]
        parameters = []
        for name, p in state.tensors.named_parameters():
            arena = state.arena_of(name)
            span, columns = arena.span(name), arena.data.shape[1]
            number = self.recorder.known(arena.data)
            offsets = {(r.offset - arena.data.storage_offset()) % columns for r in read if r.storage == number}
            if any(span.start <= o < max(span.stop, span.start + 1) for o in offsets):
                parameters.append(p)
        return parameters, [i for i, p in zip(leaves, self.places, strict=True) if p.storage in inputs]

    def finish(self, restore: Callable[[], None]) -> None:
        """Create the program and compare it with this call.

        Args:
            restore: restores the array's state before the call.
        """
        entry, trace = self.entry, self.recorder.trace
        entry.inputs = rooms_for(self.inputs)
        rooms = [v for v in entry.inputs.leaves if isinstance(v, Tensor)]
        for place, room in zip(self.places, rooms, strict=True):
            trace.held[place.storage] = room

        def make(chosen: bool) -> tuple[CompiledForward, Callable[[], list[Tensor]]]:
            made = self.compiled(chosen)
            return made, made.both

        entry.fill(self.inputs.leaves)
        made, reason = proven(self.state, restore, self._results, self._again, make)
        entry.choices = made.program.choices
        if reason:
            entry.refuse(reason)
        else:
            entry.made = made

    def _results(self) -> Sequence[Tensor]:
        """The outputs and the gradients of inputs, with the gradients of parameters where a program puts them."""
        return placed([*(t.detach() for t in self.tensors), *(g for g in self.upstream if g is not None)], self.written)

    def _again(self) -> Sequence[Tensor]:
        call = RecordedForward(self.state, self.entry, self.inputs, self.run)
        call.record()
        return call._results()

    def lay(self, restore: Callable[[], None]) -> None:
        """Choose the layout of images for calls that are replayed from now on; arguments as for `finish`."""
        state, entry, guards = self.state, self.entry, self.entry.guards
        made, inputs = entry.made, entry.inputs
        if state.settings.strategy != "measured" or made is None or inputs is None or self.inputs.grad_leaves():
            return
        source, found = made.program.source, [made]
        if source is None:
            return

        def make(turned: Inputs) -> Callable[[], list[Tensor]]:
            other = RecordedForward(state, entry, turned, self.run)
            other.record(self.outputs)
            if other.reason or other.told != entry.leaves or guards is None or not guards.hold():
                raise NotRecordableError(other.reason or "the model does something else")
            found.append(other.compiled())
            return found[-1].both

        chosen = layouts.choose(state, source, inputs, made.both, make, restore)
        if chosen is not None:
            entry.layout, other = chosen
            if other is not inputs:
                entry.inputs, entry.made, entry.choices = other, found[-1], found[-1].program.choices
