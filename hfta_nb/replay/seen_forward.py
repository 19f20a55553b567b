"""What is known of a kind of `array(x)` with gradients, and of what the caller does with its output."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from hfta_nb.replay.halves import Ready
from hfta_nb.replay.kinds import Seen
from hfta_nb.replay.steps import SeenStep

_SURE = 2
"""How often the four calls must have followed each other before they are put off."""
_TRIED = 6
"""How often in a row something else may follow, or the whole step not be replayed, until nothing is put off."""
_PATTERNS = 3
"""How often other outputs may be used than before until a kind is not recorded again."""


class Losses(Protocol):
    """What computes the losses of outputs that are there."""

    def computed(self, output: Any, y: Any) -> Tensor:
        """The losses of a plain output."""

    def outstanding(self) -> bool:
        """Whether a backward through losses is to come."""


@dataclass
class Habit:
    """What follows a kind of `array(x)`.

    Attributes:
        inner: what computes the losses, which stands for their function.
        target: what the target looked like.
        whole: from an output and the target to the loss and the output: the loss of the whole step.
        step: the kind of `array.backward` that the whole step is, once it is replayed.
        only: the parameters that this gives gradients to; None for all.
        outputs: empty tensors like the outputs.
        structure: what holds the outputs.
        losses: an empty tensor like the losses.
        times: how often in a row the four calls have followed each other.
        misses: how often in a row something else has followed.
        slow: whole steps that were not replayed.
        over: nothing is to be put off, nor watched, any more.
    """

    inner: Losses | None = None
    target: tuple[Any, ...] = ()
    whole: Callable[..., Any] | None = None
    step: SeenStep | None = None
    only: tuple[str, ...] | None = None
    outputs: tuple[Tensor, ...] = ()
    structure: Any = None
    losses: Any = None
    times: int = 0
    misses: int = 0
    slow: int = 0
    over: bool = False

    @property
    def sure(self) -> bool:
        return self.times >= _SURE and not self.over

    def follow(self) -> None:
        """The four calls have followed each other."""
        self.times, self.misses = self.times + 1, 0

    def miss(self) -> None:
        """Something else has followed."""
        self.times, self.misses = 0, self.misses + 1
        self.over = self.misses == _TRIED

    def ran(self, step: SeenStep | None, only: tuple[str, ...] | None) -> None:
        """They were one step, of this kind."""
        if step is not None and step.ready:
            self.step, self.only = step, only
        else:
            self.slow += 1
            self.over = self.slow == _TRIED

    def holds(self, seen: Seen) -> bool:
        """Whether model and loss are as they were recorded."""
        if self.step is not None and self.step.reads is not None and self.step.reads.hold():
            return True
        self.step = None
        return seen.reads is not None and seen.reads.hold()


@dataclass
class SeenForward(Seen):
    """A kind of forward with gradients.

    Attributes:
        made: to be run, once there is something.
        grads: memory that stands for the gradients of the outputs used.
        used: of the outputs that have gradients, whether each is used; None where that is not known yet.
        changes: how often `used` has changed.
        habit: what the caller does with the output.
    """

    made: Ready | None = None
    grads: list[Tensor] = field(default_factory=list)
    used: tuple[bool, ...] | None = None
    changes: int = 0
    habit: Habit = field(default_factory=Habit)

    @property
    def ready(self) -> bool:
        return self.made is not None

    def drop(self) -> None:
        super().drop()
        self.made = None

    def other_outputs(self, used: tuple[bool, ...]) -> None:
        """Note that the caller's loss uses other outputs than was thought, which leaves other gradients None."""
        self.changes += 1
        self.used, self.grads = used, []
        self.refuse("the outputs that are used differ from call to call", forget=self.changes <= _PATTERNS)
