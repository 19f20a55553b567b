"""`array.backward`, replayed, or recorded."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor

from hfta_nb.eager.blocks import leaf_blocks
from hfta_nb.eager.engine import Call, Inputs
from hfta_nb.eager.gradients import Gradients
from hfta_nb.eager.state import ArrayState
from hfta_nb.replay.delivery import delivered
from hfta_nb.replay.guards import Reads
from hfta_nb.replay.inductor.decide import decide
from hfta_nb.replay.program_cache import ProgramCache
from hfta_nb.replay.recorded_step import RecordedStep, SeenStep
from hfta_nb.replay.signature import form, identity
from hfta_nb.replay.verify import Before


class Asked(NamedTuple):
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
        self.cache: ProgramCache[SeenStep] = ProgramCache(state)

    def find(self, asked: Asked) -> SeenStep | None:
        """The entry of a call; None where it is to run eagerly."""

        def signature() -> tuple[Any, ...]:
            scale = None if asked.scale is None else (asked.scale.dtype, asked.scale.device)
            only = None if asked.only is None else tuple(asked.only)
            learning = tuple(p.requires_grad for p in self.cache.parameters)
            return identity(asked.loss_fn), form(asked.given), asked.has_aux, scale, only, learning

        return self.cache.find(signature, lambda: SeenStep((asked.loss_fn,)))

    # Replaying.

    def again(self, asked: Asked) -> tuple[Any, Any] | None:
        """Fast path: replay if this call's signature equals the last one's. Input and target are one tensor each."""
        seen = self.cache.last
        before: Asked | None = None if seen is None else seen.asked
        if before is None or asked.scale is not None:
            return None
        same = asked.loss_fn is before.loss_fn and asked.only is before.only and asked.has_aux == before.has_aux
        x, y = asked.given
        if not same or type(x) is not Tensor or type(y) is not Tensor or not self.cache.repeats((x, y)):
            return None
        return self.replay(seen, asked)

    def replay(self, seen: SeenStep | None, asked: Asked) -> tuple[Any, Any] | None:
        """The losses and what comes with them, gradients delivered; None if this call must run eagerly."""
        if seen is None or seen.program is None:
            return None
        x, y = asked.given
        alone = isinstance(x, Tensor) and isinstance(y, Tensor)
        leaves = (x, y) if alone else Inputs.of(asked.given, len(self.state)).leaves
        run = partial(self._run, seen, asked.scale)
        found = self.cache.replay(seen, leaves, run, "the model or the loss", Before(self.state))
        if found is None:
            return None
        if self.cache.last is not seen:
            self._remember(seen, asked)
        return found[0]

    def _run(self, seen: SeenStep, scale: Tensor | None) -> tuple[Any, Any]:
        """Run the program, its inputs filled in."""
        ready, settings = seen.program, self.state.settings
        assert ready is not None  # as the caller has seen
        if seen.scale is not None and scale is not None:
            seen.scale.copy_(scale.detach())
        if settings.compiling != "never" and not ready.decision.made:
            decide(ready, settings.compiling, settings.planned_steps)
        told: tuple[Any, Any] = seen.told(delivered(self.state, seen.targets, ready.run))
        return told

    def _remember(self, seen: SeenStep, asked: Asked) -> None:
        x, y = asked.given
        alone = type(x) is Tensor and type(y) is Tensor and asked.scale is None
        alone = alone and (asked.only is None or type(asked.only) in (tuple, frozenset))  # which stay as they are
        seen.asked = asked._replace(given=None) if alone else None
        self.cache.remember(seen, (x, y) if alone else None)

    # Recording.

    def recorder(
        self, seen: SeenStep | None, asked: Asked, call: Call
    ) -> Callable[[Inputs], tuple[Gradients, tuple[Tensor, Any]]]:
        """What runs a call, and records it where it may be replayed from then on."""

        def eager(inputs: Inputs) -> tuple[Gradients, Any]:
            gradients = Gradients(self.state, inputs, scale=asked.scale, only=asked.only)
            return gradients, gradients.of(call, leaf_blocks(self.state))

        def record(seen: SeenStep, inputs: Inputs, reads: Reads) -> tuple[Gradients, Any]:
            return RecordedStep(self.state, seen, call, asked.only).result(inputs, asked.scale, reads)

        return self.cache.recorder(seen, (asked.loss_fn,), record, eager)

    # What is told of it.

    def decisions(self) -> list[str]:
        """What has been decided about compiling what is replayed, each once."""
        notes = [s.program.decision.note for s in self.cache if s.program is not None]
        return list(dict.fromkeys(note for note in notes if note))

    def kernels(self) -> list[set[str]]:
        """Names of the kernels of each step that is replayed, as they were recorded."""
        sources = [s.program.source for s in self.cache if s.program is not None]
        return [{call.function._schema.name for call in source.calls} for source in sources if source is not None]
