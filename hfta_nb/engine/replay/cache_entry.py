"""The cache entry of one signature."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from hfta_nb.engine.eager.call_inputs import Inputs
from hfta_nb.engine.eager.state import ArrayState
from hfta_nb.engine.members.tree import Rebuild, unflatten
from hfta_nb.engine.replay.guards import Guards
from hfta_nb.engine.replay.layouts import Layout
from hfta_nb.engine.replay.program import Program
from hfta_nb.engine.replay.program_graphs import ProgramGraphs
from hfta_nb.engine.replay.record import Recorder
from hfta_nb.engine.replay.trace import BufferView, NotRecordableError, Trace

TENSOR = object()

_PATTERNS = 3
"""After this many changes of which outputs are used, a kind of call is recorded no more."""


@dataclass
class CacheEntry:
    """The state of the calls of one signature.

    Attributes:
        alive: objects whose address is part of the signature, so that no other object gets it.
        calls: their number so far.
        reason: why they are not replayed; empty if they are, or may be later.
        known: whether such calls were replayed of more members: one trace is enough.
        like: the layout of images that was found with more members or another batch size, if there was a choice.
        inputs: memory that replaces the inputs in a replay.
        scale: memory that replaces the factors of the losses.
        output_grads: memory that replaces the gradients of the used outputs of a forward.
        used: for each output of a forward that has a gradient, whether it is used; None if that is unknown.
        changes: how often `used` has changed.
        first: the earlier of two traces.
        guards: values that the model's code can read.
        rebuild, leaves: put the results together; `TENSOR` stands for a tensor.
        program: the program, once there is one.
        graphs: decide on a GPU whether it runs as graphs.
        layout: of images, if there was a choice.
        as_given: the inputs of a call without gradients keep their layout.
        block_size: how many members run at once.
        threads: see `FusedArray.threads`.
    """

    alive: tuple[Any, ...] = ()
    calls: int = 0
    reason: str = ""
    known: bool = False
    like: Layout | None = None
    inputs: Inputs | None = None
    scale: Tensor | None = None
    output_grads: list[Tensor] = field(default_factory=list)
    used: tuple[bool, ...] | None = None
    changes: int = 0
    first: Trace | None = None
    guards: Guards | None = None
    rebuild: Rebuild | None = None
    leaves: list[Any] = field(default_factory=list)
    program: Program | None = None
    graphs: ProgramGraphs | None = None
    layout: Layout | None = None
    as_given: bool = False
    block_size: int = 0
    threads: str = ""
    kept: int = 0

    @property
    def ready(self) -> bool:
        """True if it can be replayed."""
        return self.program is not None

    def drop(self) -> None:
        """Discard the program and what belongs to it."""
        self.inputs = None  # they may be channels last
        self.first, self.guards, self.program, self.layout, self.graphs = None, None, None, None, None

    def refuse(self, reason: str, forget: bool = False) -> None:
        """Refuse to replay it, for this reason; with `forget`, it is recorded again."""
        self.drop()
        self.known, self.like = False, None
        self.calls = 1
        self.reason = "" if forget else reason.splitlines()[0]

    def other_outputs(self, used: tuple[bool, ...]) -> None:
        """Record that the caller's loss uses other outputs than expected, so that other gradients are None."""
        self.changes += 1
        self.used, self.output_grads = used, []
        self.refuse("the outputs that are used differ from call to call", forget=self.changes <= _PATTERNS)

    def fill(self, leaves: Sequence[Any], scale: Tensor | None = None) -> None:
        """Copy the leaves of the inputs, and the factors of the losses, to the memory that the program reads."""
        assert self.inputs is not None  # allocated before the first recording
        if scale is not None:
            assert self.scale is not None  # as the inputs
            self.scale.copy_(scale.detach())
        for buffer, value in zip(self.inputs.leaves, leaves, strict=True):
            if isinstance(buffer, Tensor):
                buffer.copy_(value.detach() if value.requires_grad else value)

    def prepare(self, state: ArrayState) -> None:
        """On a GPU, run the program as graphs from now on if that is faster. Its inputs are filled in."""
        backend = state.graphs
        if backend is not None:
            if self.graphs is None:
                assert self.program is not None  # it is about to run
                self.graphs = ProgramGraphs(state, self.program, backend)
            self.graphs.prepare()

    def rebuilt(self, results: Sequence[Tensor]) -> Any:
        """The results in the form in which the call returns them."""
        assert self.rebuild is not None  # known since the recording
        if self.rebuild is next and results:  # one tensor
            return results[0]
        left = iter(results)
        return unflatten(self.rebuild, [next(left) if v is TENSOR else v for v in self.leaves])

    def accepts(self, trace: Trace, guards: Guards, leaves: list[Any], reason: str, what: str) -> bool:
        """True if this trace is the second of two equal ones. Otherwise it becomes the first, or the reason against it
        is kept.

        Args:
            trace: the trace of a call.
            guards: its guards, created before the call.
            leaves: the result, with `TENSOR` for tensors.
            reason: why it cannot be replayed, if that is already known.
            what: the code that the guards belong to.
        """
        if not guards.hold() or (self.guards is not None and not self.guards.hold()):
            reason = reason or f"{what} changes what it reads"
        if trace.constants and guards.makes_tensors:
            reason = reason or "a tensor is made of numbers that may be values of others"
        if self.first is not None and not (leaves == self.leaves and self.first.like(trace)):
            reason = reason or "two calls are not alike"
        if reason:
            self.refuse(reason)
            return False
        if self.first is None:
            self.guards, self.leaves = guards, leaves
            if not self.known:
                trace.forget_made()
                self.first = trace
                return False
        self.first = None
        for i in trace.constants:  # tensors created by the model may be returned to the caller
            trace.held[i] = trace.held[i].clone()
        return True


def buffers_for(inputs: Inputs) -> Inputs:
    """Permanent memory for inputs of the same structure."""
    return replace(inputs, leaves=tuple(buffer_like(v) for v in inputs.leaves))


def buffer_like(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    buffer = torch.empty_like(value, requires_grad=False)
    return (
        buffer
        if buffer.stride() == value.stride()
        else torch.empty(value.shape, dtype=value.dtype, device=value.device)
    )


def outputs_of(recorder: Recorder, leaves: Sequence[Any], what: str) -> tuple[list[BufferView], list[Any], str]:
    """The locations of tensors among the results, the results with `TENSOR` for them, and a reason against replay."""
    outputs: list[BufferView] = []
    reason = ""
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            try:
                outputs.append(recorder.place(leaf))
            except NotRecordableError as error:
                reason = reason or str(error)
        elif not (leaf is None or isinstance(leaf, bool | int | float | str)):
            reason = reason or f"{what} returns a {type(leaf).__name__}"
    return outputs, [TENSOR if isinstance(v, Tensor) else v for v in leaves], reason
