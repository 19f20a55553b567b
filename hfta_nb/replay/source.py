"""What a program was made of, for those who make another one of it, and what came of that."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hfta_nb.kernels.strategy.times import Times
from hfta_nb.members.generators import MemberGenerators
from hfta_nb.replay.record import BufferView, Instruction


@dataclass(frozen=True)
class Source:
    """What a program was made of.

    Attributes:
        calls: in order.
        there: tensors of storages that are there before, or hold what never changes.
        outputs: what is returned.
        gradients: what goes where.
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

    @property
    def draws(self) -> bool:
        """Whether random numbers are drawn."""
        return any(call.draws for call in self.calls)

    def digest(self) -> str:
        """The same for steps that make the same calls."""
        told = [(str(c.function), c.args, c.kwargs, c.results) for c in self.calls]
        return hashlib.sha256(repr(told).encode()).hexdigest()[:16]


@dataclass
class Decision:
    """What a back end has decided about a program.

    Attributes:
        made: whether anything has been.
        note: what, in words; empty where nobody asked.
        compiled: runs in the program's place.
        measured: seconds of a step replayed and compiled, and of compiling, where that was tried now.
    """

    made: bool = False
    note: str = ""
    compiled: Callable[[], list[Tensor]] | None = None
    measured: Times | None = None
