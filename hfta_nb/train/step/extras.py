"""What an array's step has beside its updates: gradients that are added up, and averages of weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from hfta_nb.engine.array import FusedArray
from hfta_nb.optim import GradScaler
from hfta_nb.train.step.accumulation import Accumulation, check_accumulated, every_of
from hfta_nb.train.step.ema import WeightAverages, averages_of
from hfta_nb.train.step.step_protocol import Row, Scores
from hfta_nb.train.step.update import Update


@dataclass
class Extras:
    """See the module.

    Attributes:
        accumulation: None where each mini-batch makes an optimizer step.
        averages: None where weights are validated as they are.
    """

    accumulation: Accumulation | None
    averages: WeightAverages | None

    @classmethod
    def of(cls, array: FusedArray, rows: Sequence[Row], phases: Sequence[Any]) -> Extras:
        """Those that the members' rows ask for.

        Raises:
            OptimError: gradients can't be added up.
        """
        check_accumulated(rows[0], bool(phases))
        every = every_of(rows[0])
        return cls(Accumulation(every, len(rows)) if every > 1 else None, averages_of(array, rows))

    @property
    def pending(self) -> bool:
        """Whether there are gradients that no optimizer step has used yet."""
        return self.accumulation is not None and self.accumulation.count > 0

    def accumulate(
        self, array: FusedArray, updates: Sequence[Update], differentiated: Callable[[Update], Any], y: Any
    ) -> tuple[bool, Scores]:
        """Take a mini-batch with targets `y` in; whether an optimizer step is due, and the scores."""
        assert self.accumulation is not None  # as the caller has seen
        for update in updates:
            update.optimizer.zero_grad()
        losses, found = differentiated(updates[0])
        return self.accumulation.take(array, updates[0].share(y)), {"loss": losses, **found}

    def step(self, array: FusedArray, updates: Sequence[Update], scaler: GradScaler | None) -> None:
        """The optimizer step of the gradients so far."""
        assert self.accumulation is not None  # as the caller has seen
        self.accumulation.put(array)
        for update in updates:
            update.step(scaler, lambda: None)
        for update in updates:
            update.optimizer.zero_grad()
        if scaler is not None:
            scaler.update()

    def updated(self) -> None:
        """After an optimizer step."""
        if self.averages is not None:
            self.averages.update()

    def validating(self) -> AbstractContextManager[None]:
        """What is entered around calls without training."""
        return nullcontext() if self.averages is None else self.averages.in_place()

    def weights(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """What is taken home, of the array's tensors."""
        return tensors if self.averages is None else self.averages.of(tensors)

    def select(self, indices: Sequence[int], array: FusedArray) -> Extras:
        """The same for these members alone."""
        sums = None if self.accumulation is None else self.accumulation.select(indices)
        return Extras(sums, None if self.averages is None else self.averages.select(indices, array))

    def take_member(self, array: FusedArray, place: int, other: Extras, source: FusedArray, src: int) -> None:
        """A member goes on from member `src` of another step.

        Args:
            array, source: of this step, and of the other one.
        """
        if self.averages is not None and other.averages is not None:
            self.averages.take_member(place, other.averages, src)
        if self.accumulation is not None and other.accumulation is not None and other.pending:
            self.accumulation.take_member(array, place, other.accumulation, source, src)

    def state(self, array: FusedArray) -> dict[str, Any]:
        return {
            "accumulation": None if self.accumulation is None else self.accumulation.state(array),
            "averages": None if self.averages is None else self.averages.state(),
        }

    def load_state(self, state: Mapping[str, Any], array: FusedArray) -> None:
        if self.averages is not None:
            self.averages.load_state(state.get("averages"))
        if self.accumulation is not None:
            self.accumulation.load_state(state.get("accumulation"), array)
