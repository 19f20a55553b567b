"""One call of `array(x)` with gradients while it is recorded with its backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from hfta_nb.eager.autograd_nodes import nodes, own_function
from hfta_nb.eager.blocks import graph_blocks
from hfta_nb.eager.engine import Inputs
from hfta_nb.eager.gradients import vector_jacobian
from hfta_nb.eager.state import ArrayState
from hfta_nb.members.tree import flatten
from hfta_nb.replay.build_program import build_program
from hfta_nb.replay.cache_entry import outputs_of, room_like, rooms_for
from hfta_nb.replay.delivery import Target
from hfta_nb.replay.forward_entry import ForwardEntry
from hfta_nb.replay.guards import Guards
from hfta_nb.replay.halves import CompiledForward, Halves
from hfta_nb.replay.node import Run
from hfta_nb.replay.overlap import overlap
from hfta_nb.replay.record import Recorder
from hfta_nb.replay.trace import BufferView, places
from hfta_nb.replay.verify import proven


class RecordedForward:
    """One recorded call.

    Attributes:
        finished: the locations of its outputs, and a function that restores the array's state before the call; set once
            such calls are replayed.
    """

    finished: tuple[list[BufferView], Callable[[], None]] | None = None

    def __init__(self, state: ArrayState, entry: ForwardEntry, inputs: Inputs, run: Run) -> None:
        self.state, self.entry, self.run, self.given = state, entry, run, inputs
        # The graph that the caller gets may live on, so this call has separate memory.
        own = tuple(room_like(v).copy_(v) if isinstance(v, Tensor) else v for v in inputs.leaves)
        self.inputs = type(inputs)(own, inputs.per_member, inputs.rebuild)
        self.recorder = Recorder(state.generators.device)
        self.blocks = graph_blocks(state)
        self.written: list[tuple[Tensor, Tensor]] = []
        self.upstream: list[Tensor | None] = []

    def result(self, guards: Guards) -> Any:
        """The outputs, computed eagerly and recorded."""
        restore, entry = self.state.snapshot(), self.entry
        result = self.forward()
        leaves, rebuild = flatten(result)
        outputs, told, trouble = outputs_of(self.recorder, leaves, "the model")
        after = self.state.snapshot()
        tensors = [v for v in leaves if isinstance(v, Tensor)]
        reason = self.recorder.trace.reason or trouble or self.unfit(tensors, outputs)
        gradients: list[tuple[BufferView, Tensor]] = []
        if not reason:
            made_until = len(self.recorder.trace.held)
            try:
                gradients = self.backward(tensors)
            except Exception as error:
                reason = str(error).strip().partition("\n")[0] or type(error).__name__
            after()
            reason = reason or self.recorder.trace.reason
            if self.harmed(made_until):
                entry.refuse("the backward writes into what the forward has made")
                restore()
                return self.run(self.given, graph_blocks(self.state))
        if entry.accepts(self.recorder.trace, guards, told, reason, "the model"):
            entry.rebuild = rebuild
            self._finish(tensors, outputs, gradients, restore)
        return result

    def forward(self) -> Any:
        """Run the call and record it."""
        with self.recorder.paused():
            self.places = [self.recorder.place(v) for v in self.inputs.leaves if isinstance(v, Tensor)]
        self.recorder.trace.given = {p.storage for p in self.places}
        with self.state.generators.listening(self.recorder.member), self.recorder:
            return self.run(self.inputs, self.blocks)

    def unfit(self, tensors: list[Tensor], outputs: list[BufferView]) -> str:
        """Why these outputs cannot be replayed."""
        trace = self.recorder.trace
        if not any(t.requires_grad for t in tensors):
            return "no output depends on anything that requires a gradient"
        if any(p.storage in trace.outside for p in outputs):
            return "an output is an input, a parameter or a buffer"
        if any(call.writes & trace.given for call in trace.calls):
            return "the model writes into its input"
        if any(overlap(a, b) for i, a in enumerate(outputs) for b in outputs[:i]):
            return "outputs share memory"
        reason = self._learns_more(tensors)
        if reason:
            return reason
        if any(m._backward_hooks or m._backward_pre_hooks for m in self.state.skeleton.modules()):
            return "a submodule has a backward hook"
        return ""

    def _learns_more(self, tensors: list[Tensor]) -> str:
        """Why a backward from these outputs may change more than gradients."""
        known = {id(p) for p in self.state.tensors.parameters()}
        for node in nodes(tensors, [v.grad_fn for v in self.inputs.grad_leaves()]):
            if type(node).__name__ == "AccumulateGrad" and id(node.variable) not in known:
                return "something learns that is neither a parameter of the array nor an input"
            name = own_function(node)
            if name:
                return f"the backward of {name} may differentiate by itself"
        return ""

    def backward(self, tensors: list[Tensor]) -> list[tuple[BufferView, Tensor]]:
        """Send gradients back; returns sources and destinations of the resulting gradients."""
        entry, recorder = self.entry, self.recorder
        outputs = [t for t in tensors if t.requires_grad]
        entry.used = entry.used or (True,) * len(outputs)
        used = [t for t, u in zip(outputs, entry.used, strict=True) if u]
        if not entry.grads:
            # Stored like the outputs, as gradients of elementwise losses are: the backward need not copy them again.
            entry.grads = [room_like(t.detach()) for t in used]
        draw = torch.Generator(self.state.generators.device).manual_seed(0)
        with torch.no_grad():
            for room in entry.grads:
                room.copy_(torch.randn(room.shape, generator=draw, dtype=room.dtype, device=room.device))
        names = [[n for n, p in b.parameters.items() if p.requires_grad] for b in self.blocks]
        wanted = [b.parameters[n] for b, own in zip(self.blocks, names, strict=True) for n in own]
        wanted += self.inputs.grad_leaves()
        recorder.cut()
        # Without autocast, like the caller's backward.
        with recorder, torch.autocast(recorder.device.type, enabled=False):
            found = vector_jacobian(used, wanted, entry.grads)
        left = iter(found)
        places = []
        rows: dict[str, set[int]] = {}
        for block, own in zip(self.blocks, names, strict=True):
            for name in own:
                grad = next(left)
                if grad is not None:
                    room = self.state.arena_of(name).grad_view(name)
                    room = room[block.start] if block.single else room[block.start : block.stop]
                    places.append((recorder.place(grad), room))
                    self.written.append((grad, room))
                    rows.setdefault(name, set()).update(range(block.start, block.stop))
        self.upstream = list(left)
        self.rows = rows
        return places

    def harmed(self, made_until: int) -> bool:
        """True if the backward writes to storages of the forward (the first ones), or to others that existed."""
        trace = self.recorder.trace
        if trace.cut is None:
            return False
        old = trace.outside | set(range(made_until))
        return any(call.writes & old for call in trace.calls[trace.cut :])

    def _finish(
        self,
        tensors: list[Tensor],
        outputs: list[BufferView],
        gradients: list[tuple[BufferView, Tensor]],
        restore: Callable[[], None],
    ) -> None:
        """Create the program and compare it with this call."""
        state, entry, trace = self.state, self.entry, self.recorder.trace
        entry.inputs = rooms_for(self.inputs)
        rooms = [v for v in entry.inputs.leaves if isinstance(v, Tensor)]
        for place, room in zip(self.places, rooms, strict=True):
            trace.held[place.storage] = room
        upstream = [g for g in self.upstream if g is not None]
        results = [*outputs, *(self.recorder.place(g) for g in upstream)]
        needs = self.needed()

        def make(chosen: bool) -> tuple[Halves, Callable[[], list[Tensor]]]:
            whole = build_program(trace, results, gradients, state.generators, chosen)
            halves = Halves(whole, len(outputs), state.settings.threads)
            return halves, lambda: [*halves.forward(), *halves.backward()]

        named = dict(state.tensors.named_parameters())
        targets = [
            Target(named[n], n, state.arena_of(n).grad_view(n), tuple(set(range(len(state))) - have))
            for n, have in self.rows.items()
        ]
        entry.fill(self.inputs.leaves)
        halves, reason = proven(state, restore, [*(t.detach() for t in tensors), *upstream], make, self.written)
        entry.choices = halves.program.choices
        if reason:
            entry.refuse(reason)
        else:
            assert entry.used is not None  # known since the backward
            learning = [p for p in state.tensors.parameters() if p.requires_grad]
            passes = tuple(g is not None for g in self.upstream)
            kinds = tuple(t.requires_grad for t in tensors)
            changes = halves.program.generators is not None or bool(state.buffer_arenas)
            alone = entry.rebuild is next and kinds == (True,)
            entry.made = CompiledForward(
                halves, targets, entry.grads, entry.used, kinds, learning, passes, needs, changes, alone
            )
            self.finished = outputs, restore

    def needed(self) -> tuple[list[nn.Parameter], list[int]]:
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
