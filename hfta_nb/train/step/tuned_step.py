"""How the training step of an array finds its fastest block size."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from hfta_nb.engine.array import FusedArray
from hfta_nb.engine.array.access import tuning_of
from hfta_nb.engine.array.schedule_tuner import Tuning
from hfta_nb.train.step.precision import Precision
from hfta_nb.train.step.update import Update


class TunedStep:
    """The part of `ArrayStep` that times steps."""

    array: FusedArray
    precision: Precision
    updates: list[Update]
    tuning: Tuning | None
    steps: int
    done: int

    def _differentiated(self, update: Update, x: Any, y: Any) -> Any:
        """See `ArrayStep`."""
        raise NotImplementedError

    def tune_at_first(self) -> None:
        """Find the fastest block size before the next step."""
        words = [type(u.optimizer).__name__ for u in self.updates]
        self.tuning = tuning_of(self.array, f"{self.precision.name} {words}")

    def measures(self, x: Any, y: Any) -> bool:
        """Whether `choose_schedule` takes time, as nothing is known about such steps."""
        return self.tuning is not None and self.tuning.measures(self._tuned(x, y))

    def choose_schedule(self, x: Any, y: Any) -> Generator[str, None, None]:
        """Set the array to the block size that is fastest with such a batch, if asked for; nothing else changes.

        Yields:
            How many have been tried, for people.
        """
        tuning, self.tuning = self.tuning, None
        if tuning is None:
            return
        self.array.train()

        def differentiated() -> None:
            for update in self._due():
                if not update.follows:
                    self._differentiated(update, x, y)

        yield from tuning.choose(self._tuned(x, y), differentiated)

    def _tuned(self, x: Any, y: Any) -> Any:
        """What steps depend on that take as long as one with this batch."""
        return x, y, tuple(u.phase and u.phase.name for u in self._due()), self.done

    def _due(self) -> list[Update]:
        return [u for u in self.updates if u.phase is None or u.phase.due(self.steps)]

    def tune(self, x: Any, y: Any, budget_s: float) -> dict[int, float]:
        """See `FusedArray.tune`; of a step with phases, seconds of all of them."""
        self.array.train()
        size = self.array.block_size
        total: dict[int, float] = {}
        for update in self.updates:
            if update.follows:
                continue
            self.array.block_size = size
            given, target = update.batch(x, y)
            with self.precision.products(), self.precision.autocast():
                laps = self.array.tune(
                    update.score, given, target, budget_s=budget_s / len(self.updates), has_aux=True, only=update.only
                )
            if not laps:  # only one size is possible
                return {}
            total = {size: total.get(size, 0.0) + seconds for size, seconds in laps.items()}
        self.array.block_size = min(total, key=lambda size: total[size])
        return total
