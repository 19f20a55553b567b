"""The calls and tensors that a program was created from, for back ends, and their decisions."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from hfta_nb.engine.comparison import HALVES
from hfta_nb.engine.kernels.strategy.times import Times
from hfta_nb.engine.members.generators import MemberGenerators
from hfta_nb.engine.replay.trace import BufferView, Instruction


@dataclass(frozen=True)
class Source:
    """The calls and tensors that a program was created from.

    Attributes:
        calls: in order.
        there: tensors of storages that existed before, or are constant.
        outputs: the locations of results.
        gradients: sources and destinations.
        generators: of the members.
    """

    calls: Sequence[Instruction]
    there: Mapping[int, Tensor]
    outputs: Sequence[BufferView]
    gradients: Sequence[tuple[BufferView, Tensor]]
    generators: MemberGenerators

    @property
    def device(self) -> torch.device:
        """Of all tensors."""
        return self.generators.device

    @cached_property
    def half(self) -> torch.dtype | None:
        """See `half_of`."""
        return half_of(self.calls)

    @property
    def draws(self) -> bool:
        """True if random numbers are drawn."""
        return any(call.draws for call in self.calls)

    def digest(self) -> str:
        """A hash that is equal for steps with the same calls."""
        described = [(str(c.function), c.args, c.kwargs, c.results) for c in self.calls]
        return hashlib.sha256(repr(described).encode()).hexdigest()[:16]


class Pending(Protocol):
    """Compiles a program elsewhere.

    Attributes:
        seconds: how long that took, once it has ended.
    """

    seconds: float

    @property
    def failure(self) -> str:
        """Why it was not compiled, once that has ended; empty if it was."""

    def is_done(self) -> bool:
        """True if it has ended."""


def half_of(calls: Iterable[Instruction]) -> torch.dtype | None:
    """The 16-bit floating dtype of fewest bits in these calls, as under autocast or where a model casts; or None."""
    found = {place.dtype for call in calls for place in call.results if place is not None and place.dtype in HALVES}
    return max(found, key=lambda dtype: torch.finfo(dtype).eps, default=None)


@dataclass
class Decision:
    """The decision of a back end about a program.

    Attributes:
        made: whether a decision was made.
        note: the decision in words; empty if nothing was requested.
        compiled: runs instead of the program.
        measured: seconds of a step replayed and compiled, and of compiling, if measured now.
        pending: compiles the program while it is replayed; None if nothing does.
        candidates: what is compiled, until one is chosen: the step by block size, 0 for the blocks of the program.
    """

    made: bool = False
    note: str = ""
    compiled: Callable[[], list[Tensor]] | None = None
    measured: Times | None = None
    pending: Pending | None = None
    candidates: Mapping[int, Source] = field(default_factory=dict)

    @property
    def is_due(self) -> bool:
        """True if a program was compiled that can take this one's place."""
        return self.pending is not None and self.pending.is_done()
