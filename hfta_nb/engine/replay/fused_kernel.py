"""What passes over a trace have in common that replace several calls by kernels of this package."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import torch

from hfta_nb.engine.kernels.strategy.autotune import Choice, choose
from hfta_nb.engine.kernels.strategy.kernel_variants import COMPILED, KernelVariant, Operand
from hfta_nb.engine.replay.trace import BufferView, Instruction, places

DEVICES = {"cuda"}
"""Types of the devices where Triton's kernels are used."""


class FusedKernel(ABC):
    """Stands for a call of a kernel of this package in a program, in place of an overload.

    Attributes:
        buffers: names of its arguments for the results.
        in_place: each entry of the result depends on the same entry of a tensor of the same geometry, whose memory may
            be used for it, and on no other entry of that tensor.
    """

    buffers: tuple[str, ...]
    in_place: ClassVar[bool] = False

    @property
    @abstractmethod
    def _schema(self) -> SimpleNamespace: ...

    @abstractmethod
    def bind(self) -> Callable[..., None]:
        """The function that computes it, called with the tensors of a run and, by name, memory for the results."""


@dataclass(frozen=True)
class PatternKernel(FusedKernel):
    """A kernel that replaces a pattern of calls.

    Attributes:
        name: shown to people.
        settings: what it depends on beside tensors, as text; part of the key of kept times.
        function: takes tensors and, by name, memory for the results.
    """

    name: str
    settings: str
    function: Callable[..., None] = field(repr=False)
    buffers: tuple[str, ...] = ("out",)
    in_place: bool = False  # type: ignore[misc]

    @property
    def _schema(self) -> SimpleNamespace:
        return SimpleNamespace(name=self.name, overload_name="", arguments=())

    def bind(self) -> Callable[..., None]:
        return self.function

    def __str__(self) -> str:
        return f"{self.name} {self.settings}"


@dataclass(frozen=True)
class Replacement:
    """Calls that do the work of others.

    Attributes:
        gone: indices of the calls that are replaced.
        made: the calls that replace them, by the index of the call in whose place each runs.
        choice: between the two, by time.
        sizes: bytes of storages that are no longer as large.
    """

    gone: Collection[int]
    made: Mapping[int, Instruction]
    choice: Choice
    sizes: Mapping[int, int] = field(default_factory=dict)


class Uses:
    """Which calls make, read and write which storages.

    Args:
        calls: of a program.
        wanted: storages that contain results.
        apart: per call, a value that must be equal for all calls that one kernel replaces.
        sizes: bytes of all storages.
        device: of all tensors.

    Attributes:
        written: storages that calls write to after they have been made.
    """

    def __init__(
        self,
        calls: Sequence[Instruction],
        wanted: Collection[int],
        apart: Sequence[Any],
        sizes: Sequence[int],
        device: torch.device,
    ) -> None:
        self.calls, self.wanted, self.apart, self.sizes, self.device = calls, wanted, apart, sizes, device
        self._readers: dict[int, list[int]] = {}
        self._maker: dict[int, int] = {}
        self.written = {s for call in calls for s in call.writes}
        for i, call in enumerate(calls):
            for storage in call.reads():
                self._readers.setdefault(storage, []).append(i)
            self._maker.update(dict.fromkeys(call.makes, i))

    def maker(self, place: Any, function: Any) -> int | None:
        """The call of this function that makes the storage of a value."""
        i = self._maker.get(place.storage) if isinstance(place, BufferView) else None
        return i if i is not None and self.calls[i].function is function else None

    def made_by(self, storage: int) -> Instruction | None:
        """The call that makes a storage; None if it was there before."""
        return self.calls[self._maker[storage]] if storage in self._maker else None

    def touching(self, storage: int) -> list[Instruction]:
        """The calls that make or read a storage."""
        maker = self.made_by(storage)
        return [*([] if maker is None else [maker]), *(self.calls[i] for i in self._readers.get(storage, []))]

    def readers(self, i: int) -> list[int]:
        """The calls that read the first result of a call."""
        place = self.calls[i].results[0]
        return [] if place is None else self._readers.get(place.storage, [])

    def only(self, i: int, function: Any) -> int | None:
        """The call of this function that alone uses the first result of a call, if so."""
        found, place = self.readers(i), self.calls[i].results[0]
        if len(found) != 1 or self.calls[found[0]].function is not function or place is None:
            return None
        return None if place.storage in self.wanted or place.storage in self.written else found[0]

    def whole(self, *values: Any) -> bool:
        """True if each value is a contiguous view of a whole storage."""
        return all(
            isinstance(p, BufferView)
            and p.operand.contiguous
            and not p.offset
            and math.prod(p.size) * p.dtype.itemsize == self.sizes[p.storage]
            for p in values
        )

    def unchanged(self, *values: Any) -> bool:
        """True if no call writes to these values after they have been made."""
        return not {p.storage for p in places(list(values))} & self.written

    def together(self, *parts: Sequence[int]) -> bool:
        """True if a kernel may replace each of these parts, which are run at their last calls."""
        return all(len({self.apart[i] for i in part}) == 1 for part in parts if part)


def replaced(calls: Sequence[Instruction], found: Sequence[Replacement]) -> tuple[list[Instruction], list[int]]:
    """The calls with replacements, and for each its former index."""
    gone = {i for one in found for i in one.gone}
    made = {i: call for one in found for i, call in one.made.items()}
    every = [(made.get(i, call), i) for i, call in enumerate(calls) if i in made or i not in gone]
    return [call for call, _ in every], [i for _, i in every]


def faster(
    kernel: PatternKernel,
    ours: Callable[..., Any],
    torchs: Callable[..., Any],
    tensors: Sequence[Operand],
    device: torch.device,
) -> Choice | None:
    """The faster of two ways to compute a pattern, both from tensors to a tuple of tensors; None if only torch's is
    possible."""

    def guarded(*given: Any) -> Any:
        try:
            return ours(*given)
        except Exception as error:  # no compiler, a GPU that Triton does not know, ...
            raise RuntimeError(f"{kernel.name}: {error}") from error

    choice = choose(kernel, torchs, tensors, {}, device, [KernelVariant(COMPILED, lambda _: guarded)])
    return choice if choice is not None and choice.chosen.name == COMPILED else None


@cache
def triton_kernels() -> ModuleType | None:
    """The module of Triton's kernels; None without Triton."""
    try:
        from hfta_nb.engine.kernels import triton_kernels as found
    except ImportError:  # as on Windows
        return None
    return found
