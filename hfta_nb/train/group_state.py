"""How far a group that trains is, in counts, and which rows of its step its members are in."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from hfta_nb.train.scores import EpochScores
from hfta_nb.train.step import ArrayStep, Step

T = TypeVar("T")


class GroupState:
    """How far a group that trains is, and the rows of its step.

    Args:
        deterministic: whether rows stay when their members leave.

    Attributes:
        epoch, batch: epochs done, and steps of the next.
        steps: in all.
        pass_, place: passes through the data done, and batches of the next.
        reported: steps of this epoch whose losses have been reported.
        ending: whether the epoch's steps are done, and what follows them is not.
        judged: the last epoch that was validated and whose values have had their effect.
        held_out: batches of the validation that is going on.
        step, scores: once it is built.
        rows: of the members that still train, in the step, which may have more: see `settle`.
        row_ids: per row of the step, the variant that it is built as.
    """

    step: Step
    scores: EpochScores

    def __init__(self, deterministic: bool) -> None:
        self._deterministic = deterministic
        self.epoch, self.batch, self.steps = 0, 0, 0
        self.pass_, self.place = 0, 0
        self.reported, self.ending, self.judged, self.held_out = 0, False, 0, 0
        self.rows: list[int] = []
        self.row_ids: list[int] = []
        self._filled = -1  # the steps that were done when a row that is nobody's was last filled

    def counts(self) -> dict[str, Any]:
        """How far it is, as plain data."""
        return {
            "epoch": self.epoch,
            "batch": self.batch,
            "steps": self.steps,
            "pass": self.pass_,
            "place": self.place,
            "told": self.reported,
            "ending": self.ending,
            "judged": self.judged,
        }

    def load_counts(self, state: Mapping[str, Any]) -> None:
        """Be as far as `counts` said."""
        self.epoch, self.batch, self.reported = int(state["epoch"]), int(state["batch"]), int(state["told"])
        self.steps, self.pass_, self.place = int(state["steps"]), int(state["pass"]), int(state["place"])
        self.ending, self.judged = bool(state.get("ending", False)), int(state.get("judged", 0))

    # Rows.

    @property
    def aligned(self) -> bool:
        """Whether the step has the members alone, in their order."""
        return self.rows == list(range(len(self.step)))

    def spread(self, values: Sequence[T], others: Sequence[T] = ()) -> list[T]:
        """One value per row of the step, from one per member that still trains; other rows get that of the first.

        Args:
            others: per row, what it gets instead if it is nobody's.
        """
        if self.aligned or not values:
            return list(values)
        found = list(others) or [values[0]] * len(self.step)
        for row, value in zip(self.rows, values, strict=True):
            found[row] = value
        return found

    def settle(self) -> None:
        """Cut the array down to the members that still train; a deterministic study keeps all rows.

        Kernels round otherwise for another number of members. A row that is nobody's trains on.
        """
        if self.rows and not (self.aligned or self._deterministic):
            self.choose(self.rows, range(len(self.rows)), [self.row_ids[row] for row in self.rows])

    def fill(self, row: int, source: int) -> None:
        """Let a row that is nobody's be a copy of a member's row."""
        chosen = [source if place == row else place for place in range(len(self.step))]
        self.choose(chosen, self.rows, [self.row_ids[place] for place in chosen])
        self._filled = self.steps

    @property
    def just_filled(self) -> bool:
        """Whether no step was made since a row was filled."""
        return self._filled == self.steps

    def choose(self, chosen: Sequence[int], rows: Sequence[int], row_ids: Sequence[int]) -> None:
        """Go on with these rows of the step, one of them several times where it is to be copied; see `go_on`."""
        self.scores.select(chosen)
        self.go_on(self.step.select(chosen), rows, row_ids)

    def go_on(self, step: Step, rows: Sequence[int], row_ids: Sequence[int], scores: EpochScores | None = None) -> None:
        """Train with this step from now on.

        Args:
            rows: of the members that still train; the others are nobody's.
            row_ids: per row, the variant that it is built as.
            scores: room for those of an epoch; that of before without.
        """
        self.step, self.rows, self.row_ids = step, list(rows), list(row_ids)
        if scores is not None:
            self.scores = scores
        if isinstance(step, ArrayStep):
            step.due = None if self.aligned else self.rows


def position_of(state: Mapping[str, Any] | None) -> tuple[int, float, int]:
    """The `GroupRun.position` of a state that is to be resumed."""
    if state is None:
        return 0, 0, 0
    epoch = int(state["epoch"])
    return (epoch - 1, math.inf, 0) if state.get("ending", False) else (epoch, int(state["batch"]), 0)
