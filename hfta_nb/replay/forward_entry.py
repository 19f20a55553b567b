"""What is known of a kind of `array(x)` with gradients."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from hfta_nb.replay.cache_entry import CacheEntry
from hfta_nb.replay.halves import CompiledForward

_PATTERNS = 3
"""How often other outputs may be used than before until a kind is not recorded again."""


@dataclass
class ForwardEntry(CacheEntry):
    """A kind of forward with gradients.

    Attributes:
        made: to be run, once there is something.
        grads: memory that stands for the gradients of the outputs used.
        used: of the outputs that have gradients, whether each is used; None where that is not known yet.
        changes: how often `used` has changed.
    """

    made: CompiledForward | None = None
    grads: list[Tensor] = field(default_factory=list)
    used: tuple[bool, ...] | None = None
    changes: int = 0

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
