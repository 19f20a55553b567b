"""The layout of images in a forward that is replayed in two halves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from hfta_nb.eager.engine import Inputs
from hfta_nb.members.tree import flatten
from hfta_nb.replay import layouts
from hfta_nb.replay.build_program import build_program
from hfta_nb.replay.cache_entry import outputs_of
from hfta_nb.replay.halves import CompiledForward, Halves
from hfta_nb.replay.recorded_forward import RecordedForward
from hfta_nb.replay.trace import BufferView, NotRecordableError


def lay(recorded: RecordedForward) -> None:
    """Choose the layout of images for calls like a recorded one."""
    if recorded.finished is None:
        return
    outputs, restore = recorded.finished
    state, entry, guards = recorded.state, recorded.entry, recorded.entry.guards
    made, inputs = entry.made, entry.inputs
    if state.settings.strategy != "measured" or made is None or inputs is None or recorded.inputs.grad_leaves():
        return
    source, found = made.halves.program.source, [made]
    if source is None:
        return

    def both(ready: CompiledForward) -> Callable[[], list[Tensor]]:
        return lambda: [*ready.halves.forward(), *ready.halves.backward()]

    def make(turned: Inputs) -> Callable[[], list[Tensor]]:
        halves, needs = _laid(recorded, turned, outputs)
        if guards is None or not guards.hold():
            raise NotRecordableError("the model does something else")
        found.append(replace(made, halves=halves, needs=needs))
        return both(found[-1])

    rooms = [room for _, room in recorded.written]
    chosen = layouts.choose(state, source, inputs, both(made), make, rooms, restore)
    if chosen is not None:
        entry.layout, other = chosen
        if other is not inputs:
            entry.inputs, entry.made, entry.choices = other, found[-1], found[-1].halves.program.choices


def _laid(recorded: RecordedForward, inputs: Inputs, outputs: Sequence[BufferView]) -> tuple[Halves, Any]:
    """The same call recorded with another layout of the inputs, and what its backward reads.

    Args:
        inputs: the memory that the program will read them from.
        outputs: the locations of this call's outputs.

    Raises:
        NotRecordableError: with the reason.
    """
    other = type(recorded)(recorded.state, recorded.entry, inputs, recorded.run)
    other.inputs, trace = inputs, other.recorder.trace
    result = other.forward()
    with other.recorder:
        leaves = layouts.stored_alike(flatten(result)[0], outputs)
    places, told, trouble = outputs_of(other.recorder, leaves, "the model")
    tensors = [v for v in leaves if isinstance(v, Tensor)]
    made_until = len(trace.held)
    trouble = trace.reason or trouble or other.unfit(tensors, places)
    gradients = [] if trouble else other.backward(tensors)
    trouble = trouble or trace.reason
    if trouble or other.harmed(made_until) or told != recorded.entry.leaves:
        raise NotRecordableError(trouble or "the model does something else")
    made = build_program(trace, places, gradients, recorded.state.generators)
    return Halves(made, len(places), recorded.state.settings.threads), other.needed()
