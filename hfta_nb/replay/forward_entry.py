"""The cache entry of one kind of `array(x)` with gradients."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from hfta_nb.replay.cache_entry import CacheEntry
from hfta_nb.replay.halves import CompiledForward

_PATTERNS = 3
"""After this many changes of which outputs are used, a kind of call is recorded no more."""


@dataclass
class ForwardEntry(CacheEntry):
    """A kind of forward with gradients.

    Attributes:
        made: the compiled forward, once there is one.
        grads: memory that replaces the gradients of the used outputs.
        used: for each output with a gradient, whether it is used; None if that is unknown.
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
        """Record that the caller's loss uses other outputs than expected, so that other gradients are None."""
        self.changes += 1
        self.used, self.grads = used, []
        self.refuse("the outputs that are used differ from call to call", forget=self.changes <= _PATTERNS)
