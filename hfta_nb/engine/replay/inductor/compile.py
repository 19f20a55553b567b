"""Compiles a recorded step by `torch.compile`'s compiler, which fuses its kernels as one graph.

No tracing is needed: the recording is a list of kernel calls. It becomes a `torch.fx` graph, so that the compiler sees
no Python, no `vmap` and no autograd. Random numbers are drawn before the graph runs, by the recorded kernels and from
the members' own streams, and passed to it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from hfta_nb.engine.replay.dynamic_call import Fetch
from hfta_nb.engine.replay.inductor.early_draws import Draws, drawn_first
from hfta_nb.engine.replay.inductor.norm_overloads import said, unsaid
from hfta_nb.engine.replay.inductor.to_fx import Graph
from hfta_nb.engine.replay.source import Source
from hfta_nb.engine.replay.trace import BufferView

COMPILE_THREADS = 8
"""The most threads or processes that compile kernels; torch's own limit, the number of cores at most, holds as well."""


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
        graph = Graph(calls, source.there, bases, source.outputs, source.gradients)
        self._inputs = graph.inputs
        examples = _examples([graph.geometry(value) for value in self._inputs], source.device)
        with torch.no_grad(), torch._C._DisableAutocast():  # the trace contains the casts of an active autocast
            self._graph = (compiler or _compiled)(graph.module, examples)

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
        return [v.clone() for v in found]


def _examples(views: Sequence[BufferView], device: torch.device) -> list[Tensor]:
    """Tensors without memory, of these geometries.

    None shares memory with another: views of one arena which the graph writes to would else become parts of one input.
    """
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv  # the import takes a second

    with FakeTensorMode(shape_env=ShapeEnv(), static_shapes=True):
        memory = [torch.empty(v.offset + v.reach, dtype=v.dtype, device=device) for v in views]
        return [m.as_strided(v.size, v.stride, v.offset) for m, v in zip(memory, views, strict=True)]


def _compiled(module: GraphModule, examples: list[Tensor]) -> Callable[..., Any]:
    """The compiled graph. The compiler keeps it on disk, in `torch.compile`'s cache, if a context has the environment
    of its shapes."""
    import torch._inductor as inductor  # the import takes seconds
    from torch._guards import TracingContext, detect_fake_mode, tracing

    with _compile_threads(), _key_of_instructions(examples), tracing(TracingContext(detect_fake_mode(examples))):
        found: Callable[..., Any] = inductor.compile(module, [*examples])
        return found


def _key_of_instructions(examples: Sequence[Tensor]) -> AbstractContextManager[Any]:
    """The vector instructions of the processor are part of the cache's key.

    Torch's key lacks them. The source of a kernel is for vectors of one width; what another processor has stored, or
    another ``ATEN_CPU_CAPABILITY``, is compiled for this one and computes other numbers.
    """
    from torch.compiler import config

    if all(v.device.type != "cpu" for v in examples):
        return nullcontext()
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    patch: AbstractContextManager[Any] = config.patch(cache_key_tag=f"{config.cache_key_tag} {pick_vec_isa()}")  # type: ignore[attr-defined]
    return patch


@contextmanager
def _compile_threads() -> Iterator[None]:
    """Kernels are compiled by several threads and processes, which end with the context unless they were there."""
    from torch._inductor import config
    from torch._inductor.async_compile import AsyncCompile

    pools = AsyncCompile.pool, AsyncCompile.process_pool
    before = [pool.cache_info().currsize for pool in pools]
    with config.patch(compile_threads=min(COMPILE_THREADS, config.compile_threads or 1)):
        try:
            yield
        finally:
            for pool, there in zip(pools, before, strict=True):
                if pool.cache_info().currsize > there:
                    pool().shutdown()
                    pool.cache_clear()
