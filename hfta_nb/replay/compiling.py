"""A recorded step compiled by `torch.compile`'s compiler, which gets the kernels that it called as one graph to fuse.

There is nothing to trace: the recording is a list of kernel calls. It becomes a `torch.fx` graph, and the compiler sees
no Python, no `vmap` and no autograd. Random numbers are drawn outside of it, by the kernels that were recorded and from
the members' own streams, and given to it.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from hfta_nb.kernels.strategy.times import Times
from hfta_nb.members.generators import MemberGenerators
from hfta_nb.replay.graphing import Graph
from hfta_nb.replay.late import Fetch
from hfta_nb.replay.norms import said, unsaid
from hfta_nb.replay.parts import Draws, bases_of, parts_of, used_after
from hfta_nb.replay.record import Call, Place


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

    calls: Sequence[Call]
    there: Mapping[int, Tensor]
    outputs: Sequence[Place]
    gradients: Sequence[tuple[Place, Tensor]]
    generators: MemberGenerators

    @property
    def device(self) -> torch.device:
        """Of all tensors."""
        return self.generators.device

    def digest(self) -> str:
        """The same for steps that make the same calls."""
        told = [(str(c.function), c.args, c.kwargs, c.results) for c in self.calls]
        return hashlib.sha256(repr(told).encode()).hexdigest()[:16]


def why_not(source: Source, device: torch.device) -> str:
    """Why a step can't be compiled; empty where it can."""
    if any(map(unsaid, source.calls)):
        return "its batch norm writes running statistics without saying so"
    if device.type == "cpu" and not any(map(shutil.which, ("g++", "clang++", "c++", "cl"))):
        return "there is no C++ compiler"
    if device.type == "cuda":
        from torch.utils._triton import has_triton  # `import torch` does not load it

        if not has_triton():
            return "there is no Triton"
    return ""


class Compiled:
    """A compiled program.

    Args:
        source: of the program.

    Attributes:
        parts: how many graphs it has become; random numbers are drawn before each.

    Raises:
        NotRecordableError: it can't be written as graphs.
        Exception: the compiler's own.
    """

    def __init__(self, source: Source) -> None:
        self._generators = source.generators if any(call.draws for call in source.calls) else None
        self._outputs, self._rooms = len(source.outputs), [room for _, room in source.gradients]
        self._made: list[Any] = [None] * (1 + max((s for c in source.calls for s in c.makes), default=0))
        self._parts = [_Part(draws, graph, self._made) for draws, graph in written(source, self._made)]
        self.parts = len(self._parts)

    @torch.no_grad()
    def run(self) -> list[Tensor]:
        """Compute; the results are copies, the gradients are where they go, and the members' generators go on."""
        with self._generators.borrowed() if self._generators is not None else nullcontext():
            for part in self._parts:
                found = part.run()
        self._made[:] = [None] * len(self._made)
        if self._rooms:
            torch._foreach_copy_(self._rooms, found[self._outputs :])
        return [v.clone() for v in found[: self._outputs]]


@dataclass
class Decision:
    """What has been decided about a program.

    Attributes:
        made: whether anything has.
        note: what, in words; empty where nobody asked.
        compiled: runs in the program's place.
        measured: seconds of a step replayed and compiled, and of compiling, where that was tried now.
    """

    made: bool = False
    note: str = ""
    compiled: Compiled | None = None
    measured: Times | None = None


def written(source: Source, made: list[Any]) -> Iterator[tuple[Draws, Graph]]:
    """The parts of a step as draws and graphs; the last graph gives outputs and gradients.

    Args:
        source: of the step.
        made: by number of a storage, what a run has made; in it tensors pass between parts.

    Raises:
        NotRecordableError: a view of memory that can't be written as one.
    """
    calls = said(source.calls)
    parts, bases = parts_of(calls), bases_of(calls)
    wanted = [*source.outputs, *(p for p, _ in source.gradients)]
    before: set[int] = set()
    for part, later in zip(parts, used_after(parts, wanted), strict=True):
        draws = Draws(part.draws, source.there, bases, made, source.generators)
        before |= {s for _, call in part.draws for s in call.makes}
        results = wanted if part is parts[-1] else []
        known = {s: bases[s] for s in before}
        yield draws, Graph(part.calls, source.there, known, results, later)
        before |= {s for call in part.calls for s in call.makes}


class _Part:
    """Draws and a compiled graph."""

    def __init__(self, draws: Draws, graph: Graph, made: list[Any]) -> None:
        self._draws, self._made = draws, made
        self._inputs, self._written, self._kept = graph.inputs, graph.written, list(graph.kept.values())
        with torch.no_grad(), torch._C._DisableAutocast():  # the casts of an autocast under way are among the calls
            self._run = _compiled(graph.module, [graph.example(value) for value in self._inputs])

    def run(self) -> list[Tensor]:
        """What was asked of the graph; all else is where it belongs."""
        made = self._made
        with torch._C._DisableAutocast():
            self._draws.run()
            given = [v.get(made) if isinstance(v, Fetch) else v for v in self._inputs]
            found: list[Tensor] = list(self._run(*given))
        end = len(found) - len(self._kept)
        for place, tensor in zip(self._kept, found[end:], strict=True):
            made[place.storage] = _lying_as(place, tensor)
        first = end - len(self._written)
        if self._written:
            torch._foreach_copy_(self._written, found[first:end])
        return found[:first]


def _compiled(module: GraphModule, examples: list[Tensor]) -> Callable[..., Any]:
    import torch._inductor as inductor  # it takes seconds

    with inductor.config.patch(compile_threads=1):  # no processes that outlive this
        found: Callable[..., Any] = inductor.compile(module, [*examples])
        return found


def _lying_as(place: Place, tensor: Tensor) -> Tensor:
    if tensor.stride() == place.stride and tensor.storage_offset() == place.offset:
        return tensor
    return torch.empty_strided(place.size, place.stride, dtype=place.dtype, device=tensor.device).copy_(tensor)
