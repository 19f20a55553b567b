"""Compiles a recorded step by `torch.compile`'s compiler, which fuses its kernels as one graph.

No tracing is needed: the recording is a list of kernel calls. It becomes a `torch.fx` graph, so that the compiler sees
no Python, no `vmap` and no autograd. Random numbers are drawn before the graph runs, by the recorded kernels and from
the members' own streams, and passed to it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from hfta_nb.engine.replay.dynamic_call import Fetch
from hfta_nb.engine.replay.inductor.early_draws import Draws, drawn_first
from hfta_nb.engine.replay.inductor.norm_overloads import said, unsaid
from hfta_nb.engine.replay.inductor.to_fx import Graph
from hfta_nb.engine.replay.source import Source


def why_not(source: Source, device: torch.device) -> str:
    """Why a step cannot be compiled; empty if it can."""
    if any(map(unsaid, source.calls)):
        return "its batch norm writes running statistics without saying so"
    if device.type == "cpu" and not any(map(shutil.which, ("g++", "clang++", "c++", "cl"))):
        return "there is no C++ compiler"
    if device.type == "cuda":
        from torch.utils._triton import has_triton  # `import torch` does not load it

        if not has_triton():
            return "there is no Triton"
    return ""


Compiler = Callable[[GraphModule, list[Tensor]], Callable[..., Any]]


class Compiled:
    """A compiled program; a call does the same as `Program.run`.

    Args:
        source: of the program.
        compiler: compiles the graph for these examples of its inputs; torch's by default.

    Raises:
        NotRecordableError: it cannot be written as draws and one graph.
        Exception: the compiler's own.
    """

    def __init__(self, source: Source, compiler: Compiler | None = None) -> None:
        draws, calls = drawn_first(said(source.calls))
        bases = {r.storage: r for _, c in draws for r in c.results if r is not None and r.storage in c.makes}
        self._made: list[Any] = [None] * (1 + max((s for c in source.calls for s in c.makes), default=0))
        self._generators = source.generators if draws else None
        self._draws = Draws(draws, source.there, bases, self._made, source.generators)
        graph = Graph(calls, source.there, bases, [*source.outputs, *(place for place, _ in source.gradients)])
        self._inputs, self._outputs = graph.inputs, len(source.outputs)
        self._buffers = [*(buffer for _, buffer in source.gradients), *graph.written]
        with torch.no_grad(), torch._C._DisableAutocast():  # the trace contains the casts of an active autocast
            self._graph = (compiler or _compiled)(graph.module, [graph.example(value) for value in self._inputs])

    @torch.no_grad()
    def __call__(self) -> list[Tensor]:
        """Compute; returns copies of the results, writes gradients to their destinations, and advances the
        generators."""
        with torch._C._DisableAutocast():
            with self._generators.borrowed() if self._generators is not None else nullcontext():
                self._draws.run()
            given = [v.get(self._made) if isinstance(v, Fetch) else v for v in self._inputs]
            found: list[Tensor] = list(self._graph(*given))
        self._made[:] = [None] * len(self._made)
        if self._buffers:
            torch._foreach_copy_(self._buffers, found[self._outputs :])
        return [v.clone() for v in found[: self._outputs]]


def _compiled(module: GraphModule, examples: list[Tensor]) -> Callable[..., Any]:
    import torch._inductor as inductor  # the import takes seconds

    with inductor.config.patch(compile_threads=1):  # no processes that outlive this one
        found: Callable[..., Any] = inductor.compile(module, [*examples])
        return found
