"""Steps of an array that are recorded once and then replayed, where that is sure to be the same.

The first call of a kind runs as ever; the next two run as ever and are recorded. If both made the same calls, the
program of the second is run again from where it began and compared with it. From then on the program runs in place of
Python, autograd and `vmap`, as long as nothing has changed that the model's code could see.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor, nn

from hfta_nb.eager.blocks import leaf_blocks
from hfta_nb.eager.engine import Block, Call, Inputs
from hfta_nb.eager.gradients import Gradients
from hfta_nb.eager.state import ArrayState
from hfta_nb.errors import out_of_memory
from hfta_nb.kernels.cuda_graphs import capturing
from hfta_nb.kernels.strategy import streams
from hfta_nb.kernels.strategy.measuring import Choice
from hfta_nb.members.threads import at_hand
from hfta_nb.members.tree import flatten
from hfta_nb.replay import layouts
from hfta_nb.replay.check import Before, failure, proven
from hfta_nb.replay.deciding import decide
from hfta_nb.replay.delivery import Target, delivered
from hfta_nb.replay.kinds import (
    Kinds,
    Seen,
    form,
    identity,
    outputs_of,
    reads_of,
    rooms_for,
    state_of,
)
from hfta_nb.replay.program import Program, program
from hfta_nb.replay.reads import Reads, UnclearError
from hfta_nb.replay.record import NotRecordableError, Place, Recorder

_learns = operator.attrgetter("requires_grad")

Run = Callable[[Inputs], tuple[Gradients, Any]]


class Asked(NamedTuple):
    """The arguments of `FusedArray.backward`; `given` are input and target."""

    loss_fn: Any
    given: Any
    has_aux: bool
    scale: Tensor | None
    only: Collection[str] | None


@dataclass
class SeenStep(Seen):
    """A kind of `backward`.

    Attributes:
        targets: where it writes gradients.
    """

    scale: Tensor | None = None
    targets: list[Target] = field(default_factory=list)

    def drop(self) -> None:
        super().drop()
        self.inputs = None  # which may lie with channels last


class RecordedGradients(Gradients):
    """Notes where gradients are, beside doing what it does."""

    recorder: Recorder

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
        self.places: list[tuple[Place, Tensor]] = []
        self.grads: list[Tensor] = []
        self.trouble = ""
        if recorder.device.type == "cuda":
            recorder.recording.lanes = streams.MOST
        elif state.settings.threads == "blocks" and recorder.device.type == "cpu":
            recorder.recording.lanes = at_hand()

    def _take(self, block: Block, names: list[str], grads: Any) -> None:
        with self.recorder.quiet():
            for name, grad in zip(names, grads, strict=False):
                if grad is not None:
                    try:
                        self.places.append((self.recorder.place(grad), block.grad_rows[name]))
                        self.grads.append(grad)
                    except NotRecordableError as error:
                        self.trouble = str(error)
            super()._take(block, names, grads)
        self.recorder.recording.blocks.append(len(self.recorder.recording.calls))


class CapturedSteps:
    """The steps of an array by kind of call.

    Attributes:
        at_once: record the first call of a kind already, as such calls were made before.
        waiting: record and replay nothing for now.
        strict: an error of a replay is raised; else the program is given up and the call runs as ever.
    """

    def __init__(self, state: ArrayState) -> None:
        self.state = state
        self.at_once, self.waiting, self.strict = False, False, False
        self._kinds: Kinds[SeenStep] = Kinds()
        self._parameters: list[nn.Parameter] = []
        self._last: tuple[Asked, list[Any], SeenStep] | None = None

    def clear(self) -> None:
        """Forget all; wanted after the array's tensors have moved, or it runs in another way."""
        self._kinds.clear()
        self._parameters, self._last = [], None

    def keep(self, block_size: int, threads: str) -> None:
        """Forget what is of other block sizes, or runs on other threads."""
        self._last = None
        self._kinds.keep(lambda seen: (seen.block_size, seen.threads) == (block_size, threads))

    def notes(self) -> list[str]:
        """How calls run, each way once."""
        return self._kinds.notes()

    def seen(self) -> list[SeenStep]:
        """The kinds of calls that are known."""
        return list(self._kinds)

    def find(self, asked: Asked) -> SeenStep | None:
        """What is known of this kind of call; None where it is to run as ever."""
        state = self.state
        if not self._parameters:
            self._parameters = list(state.tensors.parameters())
        if not self._kinds.open(state) or self.waiting:
            return None
        try:
            key = (
                *(identity(asked.loss_fn), form(asked.given), asked.has_aux),
                None if asked.scale is None else (asked.scale.dtype, asked.scale.device),
                *state_of(state),
                None if asked.only is None else tuple(asked.only),
                tuple(p.requires_grad for p in self._parameters),
            )
        except NotRecordableError:
            return None
        how = state.settings
        seen = self._kinds.of(key, lambda: SeenStep((asked.loss_fn,), block_size=how.block_size, threads=how.threads))
        return None if seen.reason else seen

    def decisions(self) -> list[str]:
        """What has been decided about compiling what is replayed, each once."""
        notes = [s.program.decision.note for s in self._kinds if s.program is not None]
        return list(dict.fromkeys(note for note in notes if note))

    def kernels(self) -> list[set[str]]:
        """Names of the kernels of each step that is replayed, as they were recorded."""
        sources = [s.program.source for s in self._kinds if s.program is not None]
        return [{call.function._schema.name for call in source.calls} for source in sources if source is not None]

    def layouts(self) -> list[str]:
        """Of images in what is replayed, each once."""
        return self._kinds.layouts()

    def choices(self) -> list[Choice]:
        """Of kernels that can be computed in several ways, in what is replayed."""
        return self._kinds.choices()

    # Replaying.

    def again(self, asked: Asked) -> tuple[Any, Any] | None:
        """As `replay`, of a call like the last one that was replayed, found out in few steps; None where it is another.

        Of such calls input and target are one tensor each.
        """
        if self._last is None:
            return None
        before, like, seen = self._last
        same = asked.loss_fn is before.loss_fn and asked.only is before.only and asked.has_aux == before.has_aux
        x, y = asked.given
        if not same or asked.scale is not None or type(x) is not Tensor or type(y) is not Tensor:
            return None
        if not self.open() or self.like(x, y) != like:
            return None
        return self.replay(seen, asked)

    def open(self) -> bool:
        """Whether calls may be replayed, as things are."""
        return not self.waiting and self._kinds.open(self.state)

    def _remember(self, seen: SeenStep, asked: Asked) -> None:
        x, y = asked.given
        alone = type(x) is Tensor and type(y) is Tensor and asked.scale is None
        alone = alone and (asked.only is None or type(asked.only) in (tuple, frozenset))  # which stay as they are
        self._last = (asked._replace(given=None), self.like(x, y), seen) if alone else None

    def like(self, x: Tensor, y: Tensor) -> list[Any]:
        """What tells kinds of calls apart, beside their functions."""
        found: list[Any] = [*state_of(self.state), *map(_learns, self._parameters)]
        for t in (x, y):
            found += (t.shape, t.stride(), t.dtype, t.device, t.requires_grad, t.layout, t.is_inference())
        return found

    def replay(self, seen: SeenStep, asked: Asked) -> tuple[Any, Any] | None:
        """The losses and what comes with them, gradients delivered; None if this call must run as ever."""
        if seen.program is None or seen.reads is None:
            return None
        if not seen.reads.hold():
            seen.refuse("the model or the loss has changed since it was recorded", forget=True)
            self.state.verified.clear()
            return None
        x, y = asked.given
        alone = isinstance(x, Tensor) and isinstance(y, Tensor)
        self._fill(seen, (x, y) if alone else Inputs.of(asked.given, len(self.state)).leaves, asked.scale)
        if self._last is None or self._last[2] is not seen:
            self._remember(seen, asked)
        return self.run(seen)

    def run(self, seen: SeenStep) -> tuple[Any, Any] | None:
        """As `replay`, where the inputs are filled in, and model and loss are known to be as they were recorded."""
        ready = seen.program
        assert ready is not None  # as the caller has seen
        settings = self.state.settings
        if settings.compiling != "never" and not ready.decision.made:
            decide(ready, settings.compiling, settings.planned_steps)
        before = Before(self.state)
        try:
            results = delivered(self.state, seen.targets, ready.run)
        except BaseException as error:
            if capturing(self.state.generators.device):
                raise  # whoever captures has to know; nothing was done that could be undone
            before.put_back()
            if self.strict or not isinstance(error, Exception):
                raise
            seen.refuse(failure(error))
            return None
        told: tuple[Any, Any] = seen.told(results)
        return told

    # Recording.

    def recorder(self, seen: SeenStep, asked: Asked, call: Call) -> Run | None:
        """What does as `backward` does and records it; None where this call is not to be recorded."""
        state = self.state
        seen.calls += 1
        if (seen.calls == 1 and not self.at_once) or seen.program is not None:
            return None

        def run(inputs: Inputs) -> tuple[Gradients, Any]:
            if not inputs.copied:  # else the array has just found another way to run
                restore = state.snapshot()
                try:
                    return self._record(seen, asked, call, inputs, reads_of(state, (asked.loss_fn,)))
                except UnclearError as error:
                    seen.refuse(str(error))
                except Exception as error:
                    if not out_of_memory(error):
                        raise
                    seen.refuse("there is not enough memory to record it")  # which holds all that a step makes
                    restore()
            gradients = Gradients(state, inputs, scale=asked.scale, only=asked.only)
            return gradients, gradients.of(call, leaf_blocks(state))

        return run

    def _record(self, seen: SeenStep, asked: Asked, call: Call, inputs: Inputs, reads: Reads) -> tuple[Gradients, Any]:
        state = self.state
        if seen.inputs is None:
            seen.inputs = rooms_for(inputs)
            seen.scale = None if asked.scale is None else asked.scale.detach().clone()
        self._fill(seen, inputs.leaves, asked.scale)
        restore = state.snapshot()
        recorder, noted, result = self._noted(seen, asked, call, seen.inputs)
        self._after(seen, reads, recorder, noted, result, restore)
        if seen.program is not None:
            self._lay(seen, asked, call, restore)
        return noted, result

    def _noted(
        self, seen: SeenStep, asked: Asked, call: Call, inputs: Inputs, added: bool = True
    ) -> tuple[Recorder, RecordedGradients, tuple[Tensor, Any]]:
        """Run a step and record it; unless `added`, gradients that are there already are left as they are."""
        recorder = Recorder(self.state.generators.device)
        noted = RecordedGradients(self.state, inputs, seen.scale, asked.only, recorder)
        if not added:
            noted.fresh = set(noted.parameters)
        with self.state.generators.heard(recorder.member), recorder:
            result = noted.of(call, leaf_blocks(self.state))
        return recorder, noted, result

    def _lay(self, seen: SeenStep, asked: Asked, call: Call, restore: Callable[[], None]) -> None:
        """Choose the layout of images in a step that is replayed from now on."""
        state, given, reads = self.state, seen.program, seen.reads
        if state.settings.strategy != "measured" or given is None or given.source is None or seen.inputs is None:
            return
        source, found = given.source, [given]

        def make(inputs: Inputs) -> Callable[[], list[Tensor]]:
            recorder, noted, result = self._noted(seen, asked, call, inputs, added=False)
            with recorder:
                leaves = layouts.stored_alike(flatten(result)[0], source.outputs)
            outputs, told, trouble = outputs_of(recorder, leaves, "the loss")
            trouble = recorder.recording.reason or noted.trouble or trouble
            if trouble or told != seen.leaves or reads is None or not reads.hold():
                raise NotRecordableError(trouble or "the model does something else")
            found.append(program(recorder.recording, outputs, noted.places, state.generators))
            return found[-1].run

        rooms = [room for _, room in source.gradients]
        chosen = layouts.choose(state, source, seen.inputs, given.run, make, rooms, restore)
        if chosen is not None:
            seen.layout, inputs = chosen
            if inputs is not seen.inputs:
                seen.inputs, seen.program, seen.choices = inputs, found[-1], found[-1].choices

    def _after(
        self,
        seen: SeenStep,
        reads: Reads,
        recorder: Recorder,
        gradients: RecordedGradients,
        result: Any,
        restore: Callable[[], None],
    ) -> None:
        recording = recorder.recording
        leaves, rebuild = flatten(result)
        outputs, told, trouble = outputs_of(recorder, leaves, "the loss")
        reason = recording.reason or gradients.trouble
        try:
            targets = self._targets(gradients)
        except NotRecordableError as error:
            reason = reason or str(error)
        if not reads.hold() or (seen.reads is not None and not seen.reads.hold()):
            reason = reason or "the model or the loss changes what it reads"
        if reason or trouble:
            seen.refuse(reason or trouble)
            return
        if not seen.agrees(recording, reads, told):
            return

        def make(chosen: bool) -> tuple[Program, Callable[[], list[Tensor]]]:
            made = program(recording, outputs, gradients.places, self.state.generators, chosen)
            return made, made.run

        seen.rebuild, seen.targets = rebuild, targets
        written = [(grad, rows) for grad, (_, rows) in zip(gradients.grads, gradients.places, strict=True)]
        results = [v for v in leaves if isinstance(v, Tensor)]
        made, reason = proven(self.state, restore, results, make, written)
        seen.choices = made.choices
        if reason:
            seen.refuse(reason)
        else:
            seen.program = made

    def _targets(self, gradients: RecordedGradients) -> list[Target]:
        """Where gradients go, and which members have none, as `Gradients.deliver` would have it."""
        state, members = self.state, range(len(self.state))
        unused, across = state.engine.usage.unused(len(state)), state.engine.across
        targets = []
        for name, blocks in gradients.received.items():
            have = {i for b in blocks for i in range(b.start, b.stop)} - set(unused.get(name, ()))
            if not have:
                raise NotRecordableError("a parameter is used by no member")
            empty = tuple(i for i in members if i not in have)
            lacking = set() if across is None else set(across.lacking(name))
            missing = tuple(i for i in empty if i not in lacking)
            view = state.arena_of(name).grad_view(name)
            targets.append(Target(gradients.parameters[name], name, view, empty, missing))
        return targets

    def _fill(self, seen: SeenStep, leaves: Sequence[Any], scale: Tensor | None) -> None:
        seen.fill(leaves)
        if seen.scale is not None and scale is not None:
            seen.scale.copy_(scale.detach())
