"""`array.backward`, replayed or recorded."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor

from hfta_nb.engine.eager.blocks import leaf_blocks
from hfta_nb.engine.eager.call_inputs import Inputs
from hfta_nb.engine.eager.engine import Call
from hfta_nb.engine.eager.gradients import Gradients
from hfta_nb.engine.eager.state import ArrayState
from hfta_nb.engine.members.identity import identity
from hfta_nb.engine.replay.delivery import delivered
from hfta_nb.engine.replay.guards import Guards
from hfta_nb.engine.replay.inductor.decide import decide
from hfta_nb.engine.replay.program_cache import ProgramCache
from hfta_nb.engine.replay.recorded_step import RecordedStep, StepEntry
from hfta_nb.engine.replay.signature import form
from hfta_nb.engine.replay.verify import Before


class BackwardArgs(NamedTuple):
    """The arguments of `FusedArray.backward`; `given` are input and target."""

    loss_fn: Any
    given: Any
    has_aux: bool
    scale: Tensor | None
    only: Collection[str] | None


class CapturedSteps:
    """The calls of `FusedArray.backward`.

    Attributes:
        cache: their programs.
    """

    def __init__(self, state: ArrayState) -> None:
        self.state = state
        self.cache: ProgramCache[StepEntry] = ProgramCache(state)

    def find(self, args: BackwardArgs) -> StepEntry | None:
        """The entry of a call; None if it must run eagerly."""

        def signature() -> tuple[Any, ...]:
            scale = None if args.scale is None else (args.scale.dtype, args.scale.device)
            only = None if args.only is None else tuple(args.only)
            learning = tuple(p.requires_grad for p in self.cache.parameters)
            return identity(args.loss_fn), form(args.given), args.has_aux, scale, only, learning

        return self.cache.find(signature, lambda: StepEntry((args.loss_fn,)))

    # Replaying.

    def again(self, args: BackwardArgs) -> tuple[Any, Any] | None:
        """Fast path: replay if this call's signature equals the last one's. Input and target are one tensor each."""
        entry = self.cache.last
        before: BackwardArgs | None = None if entry is None else entry.args
        if before is None or args.scale is not None:
            return None
        same = args.loss_fn is before.loss_fn and args.only is before.only and args.has_aux == before.has_aux
        x, y = args.given
        if not same or type(x) is not Tensor or type(y) is not Tensor or not self.cache.repeats((x, y)):
            return None
        return self.replay(entry, args)

    def replay(self, entry: StepEntry | None, args: BackwardArgs) -> tuple[Any, Any] | None:
        """The losses and auxiliary results, with gradients delivered; None if this call must run eagerly."""
        if entry is None or entry.program is None:
            return None
        x, y = args.given
        alone = isinstance(x, Tensor) and isinstance(y, Tensor)
        leaves = (x, y) if alone else Inputs.of(args.given, len(self.state)).leaves
        run = partial(self._run, entry, args.scale)
        program = entry.program
        # A graph runs whole, or the device is lost.
        before = None if program.graphs else Before.replay(self.state, program.draws)
        found = self.cache.replay(entry, leaves, run, "the model or the loss", before)
        if found is None:
            return None
        if self.cache.last is not entry:
            self._remember(entry, args)
        return found[0]

    def _run(self, entry: StepEntry, scale: Tensor | None) -> tuple[Any, Any]:
        """Run the program, its inputs filled in."""
        ready, settings = entry.program, self.state.settings
        assert ready is not None  # checked by the caller
        if entry.scale is not None and scale is not None:
            entry.scale.copy_(scale.detach())
        if settings.compiling != "never" and not ready.decision.made:
            decide(ready, settings.compiling, settings.planned_steps)
        if ready.decision.compiled is None:
            entry.prepare(self.state, ready)
        told: tuple[Any, Any] = entry.told(delivered(self.state, entry.targets, ready.run))
        return told

    def _remember(self, entry: StepEntry, args: BackwardArgs) -> None:
        x, y = args.given
        alone = type(x) is Tensor and type(y) is Tensor and args.scale is None
        alone = alone and (args.only is None or type(args.only) in (tuple, frozenset))  # these types are immutable
        entry.args = args._replace(given=None) if alone else None
        self.cache.remember(entry, (x, y) if alone else None)

    # Recording.

    def recorder(
        self, entry: StepEntry | None, args: BackwardArgs, call: Call
    ) -> Callable[[Inputs], tuple[Gradients, tuple[Tensor, Any]]]:
        """A function that runs a call, and records it if it may be replayed."""

        def eager(inputs: Inputs) -> tuple[Gradients, Any]:
            gradients = Gradients(self.state, inputs, scale=args.scale, only=args.only)
            return gradients, gradients.of(call, leaf_blocks(self.state))

        def record(entry: StepEntry, inputs: Inputs, guards: Guards) -> tuple[Gradients, Any]:
            return RecordedStep(self.state, entry, call, args.only).result(inputs, args.scale, guards)

        return self.cache.recorder(entry, (args.loss_fn,), record, eager)

    # Descriptions.

    def decisions(self) -> list[str]:
        """Decisions about compiling replayed programs, each once."""
        notes = [s.program.decision.note for s in self.cache if s.program is not None]
        return list(dict.fromkeys(note for note in notes if note))

    def kernels(self) -> list[set[str]]:
        """Names of the kernels of each replayed step, as recorded."""
        sources = [s.program.source for s in self.cache if s.program is not None]
        return [{call.function._schema.name for call in source.calls} for source in sources if source is not None]
