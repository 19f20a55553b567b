"""One call of `array(x)` with gradients while it is recorded with its backward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from hfta_nb.engine.eager.autograd_nodes import nodes, own_function, reached
from hfta_nb.engine.eager.call_inputs import Inputs
from hfta_nb.engine.eager.differentiate import vector_jacobian
from hfta_nb.engine.replay.array_call import ArrayCall
from hfta_nb.engine.replay.cache_entry import CacheEntry, buffer_like, buffers_for
from hfta_nb.engine.replay.delivery import Target
from hfta_nb.engine.replay.program import Program
from hfta_nb.engine.replay.recording import Recording, Restore
from hfta_nb.engine.replay.split_program import SplitProgram
from hfta_nb.engine.replay.trace import BufferView, overlap, places
from hfta_nb.errors import out_of_memory


class RecordedForward(Recording):
    """A recorded call of ``array(x)``."""

    @classmethod
    def memory(cls, call: ArrayCall, entry: CacheEntry, given: Inputs) -> Inputs:
        # The graph that the caller gets may live on, so this call has separate memory.
        own = tuple(buffer_like(v).copy_(v) if isinstance(v, Tensor) else v for v in given.leaves)
        return replace(given, leaves=own)

    def __init__(self, call: ArrayCall, entry: CacheEntry, inputs: Inputs) -> None:
        super().__init__(call, entry, inputs)
        self.blocks = call.blocks()
        self.rows: dict[str, set[int]] = {}  # the members that a parameter has gradients of
        self.learned: set[int] = set()  # ids of the parameters on which outputs depend
        self.places = [self.recorder.place(v) for v in inputs.leaves if isinstance(v, Tensor)]
        self.recorder.trace.given = {p.storage for p in self.places}

    def compute(self) -> Any:
        return self.call.outputs(self.inputs, self.blocks)

    def record(self, stored: Sequence[BufferView] | None = None) -> Any:
        result = super().record(stored)
        state, trace = self.state, self.recorder.trace
        self.learned = reached(self.tensors)
        self.reason = self.reason or self._unfit()
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
            self.unusable, self.reason = True, "the backward writes into what the forward has made"
            self.entry.refuse(self.reason)
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
        if not entry.output_grads:
            # Stored like the outputs, as gradients of elementwise losses are: the backward need not copy them again.
            entry.output_grads = [buffer_like(t.detach()) for t in used]
        draw = torch.Generator(self.state.generators.device).manual_seed(0)
        with torch.no_grad():
            for buffer in entry.output_grads:
                buffer.copy_(torch.randn(buffer.shape, generator=draw, dtype=buffer.dtype, device=buffer.device))
        wanted = [(b, n) for b in self.blocks for n, p in b.parameters.items() if p.requires_grad]
        roots = [*(b.parameters[n] for b, n in wanted), *self.inputs.grad_leaves()]
        recorder.cut()
        # Without autocast, like the caller's backward.
        with recorder, torch.autocast(recorder.device.type, enabled=False):
            found = vector_jacobian(used, roots, entry.output_grads, retain_graph=True)
        for (block, name), grad in zip(wanted, found, strict=False):
            if grad is not None:
                buffer = self.state.arena_of(name).grad_view(name)
                self.keep(grad, buffer[block.start] if block.single else buffer[block.start : block.stop])
                self.rows.setdefault(name, set()).update(range(block.start, block.stop))
        self.input_grads = list(found[len(wanted) :])

        named, everyone = dict(self.state.tensors.named_parameters()), set(range(len(self.state)))
        self.targets = [
            Target(named[n], n, self.state.arena_of(n).grad_view(n), tuple(everyone - have))
            for n, have in self.rows.items()
        ]

    def program(self, chosen: bool = True) -> Program:
        state, entry = self.state, self.entry
        assert entry.used is not None  # known since the backward
        return SplitProgram(
            **vars(super().program(chosen)),
            threads=state.settings.threads,
            output_grads=entry.output_grads,
            used=entry.used,
            differentiable=tuple(t.requires_grad for t in self.tensors),
            learning=[p for p in state.tensors.parameters() if id(p) in self.learned],
            passes=tuple(g is not None for g in self.input_grads),
            needs=self._needed(),
        )

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

    def finish(self, restore: Restore) -> None:
        entry = self.entry
        entry.inputs = buffers_for(self.inputs)
        buffers = [v for v in entry.inputs.leaves if isinstance(v, Tensor)]
        for place, buffer in zip(self.places, buffers, strict=True):
            self.recorder.trace.held[place.storage] = buffer
        entry.fill(self.inputs.leaves)
        super().finish(restore)
