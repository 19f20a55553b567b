"""Calls without gradients, `evaluate` and `array(x)` within `no_grad`, that are recorded and replayed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from hfta_nb.eager.engine import Inputs
from hfta_nb.eager.state import ArrayState
from hfta_nb.kernels.cuda_graphs import capturing
from hfta_nb.kernels.strategy.measuring import Choice
from hfta_nb.members.tree import flatten, unflatten
from hfta_nb.replay.check import failure, proven, undone_if_it_fails
from hfta_nb.replay.kinds import Kinds, Seen, form, identity, outputs_of, reads_of, rooms_for, state_of
from hfta_nb.replay.program import Program, program
from hfta_nb.replay.reads import Reads, UnclearError
from hfta_nb.replay.record import NotRecordableError, Recorder

Run = Callable[[Inputs], Any]


class CapturedResults:
    """The calls of an array that give results only, by kind.

    Attributes:
        at_once: record the first call of a kind already, as such calls were made before.
        waiting: record and replay nothing for now.
    """

    def __init__(self, state: ArrayState) -> None:
        self.state = state
        self.at_once, self.waiting = False, False
        self._kinds: Kinds[Seen] = Kinds()

    def clear(self) -> None:
        """Forget all; wanted after the array's tensors have moved, or it runs in another way."""
        self._kinds.clear()

    def keep(self, block_size: int, threads: str) -> None:
        """Forget what is of other block sizes, or runs on other threads."""
        self._kinds.keep(lambda seen: (seen.block_size, seen.threads) == (block_size, threads))

    def choices(self) -> list[Choice]:
        """Of kernels that can be computed in several ways, in what is replayed."""
        return self._kinds.choices()

    def layouts(self) -> list[str]:
        """Of images in what is replayed, each once."""
        return self._kinds.layouts()

    def notes(self) -> list[str]:
        """How calls run, each way once."""
        return self._kinds.notes()

    def find(self, what: tuple[str, Any], given: Any) -> Seen | None:
        """What is known of this kind of call, by its name and what is computed from the model's output."""
        if not self._kinds.open(self.state) or self.waiting:
            return None
        try:
            key = what[0], identity(what[1]), form(given, grads=True), *state_of(self.state)
        except NotRecordableError:
            return None
        how = self.state.settings
        seen = self._kinds.of(key, lambda: Seen(what, block_size=how.block_size, threads=how.threads))
        return None if seen.reason else seen

    def replay(self, seen: Seen, inputs: Inputs) -> tuple[Any] | None:
        """The results in a tuple; None if this call must run as ever."""
        ready, reads = seen.program, seen.reads
        if ready is None or reads is None:
            return None
        if not reads.hold():
            seen.refuse("the model or the function has changed since it was recorded", forget=True)
            self.state.verified.clear()
            return None
        seen.fill(inputs.leaves)
        try:
            with undone_if_it_fails(self.state):
                return (seen.told(ready.run()),)
        except Exception as error:
            if capturing(self.state.generators.device):
                raise
            seen.refuse(failure(error))
            return None

    def recorder(self, seen: Seen, run: Run) -> Run | None:
        """What does as `run` does and records it; None where this call is not to be recorded."""
        seen.calls += 1
        if (seen.calls == 1 and not self.at_once) or seen.ready:
            return None

        def recorded(inputs: Inputs) -> Any:
            if not inputs.copied:  # else the array has just found another way to run
                try:
                    reads = reads_of(self.state, seen.alive)
                except UnclearError as error:
                    seen.refuse(str(error))
                else:
                    return self._record(seen, run, inputs, reads)
            return run(inputs)

        return recorded

    def _record(self, seen: Seen, run: Run, inputs: Inputs, reads: Reads) -> Any:
        state = self.state
        if seen.inputs is None:
            seen.inputs = rooms_for(inputs)
        seen.fill(inputs.leaves)
        recorder, restore = Recorder(state.generators.device), state.snapshot()
        with state.generators.heard(recorder.member), recorder:
            result = run(seen.inputs)
        leaves, rebuild = flatten(result)
        outputs, told, trouble = outputs_of(recorder, leaves, "it")
        reason = recorder.recording.reason or trouble
        if not reads.hold() or (seen.reads is not None and not seen.reads.hold()):
            reason = reason or "the model or the function changes what it reads"
        if reason:
            seen.refuse(reason)
            return result
        # What the caller gets must not be memory that the program reads or writes.
        own = unflatten(rebuild, [v.clone() if isinstance(v, Tensor) else v for v in leaves])
        if seen.agrees(recorder.recording, reads, told):

            def make(chosen: bool) -> tuple[Program, Callable[[], list[Tensor]]]:
                made = program(recorder.recording, outputs, (), state.generators, chosen)
                return made, made.run

            made, reason = proven(state, restore, [v for v in leaves if isinstance(v, Tensor)], make)
            seen.rebuild, seen.choices = rebuild, made.choices
            if reason:
                seen.refuse(reason)
            else:
                seen.program = made
        return own
