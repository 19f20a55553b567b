"""Steps are compiled once per machine: a later process finds them in the compiler's cache."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx

from hfta_nb.engine.replay.inductor import compile as compiling
from hfta_nb.engine.replay.trace import BufferView
from tests.contract.test_compiling import needs_compiler, quiet

ROOT = Path(__file__).resolve().parents[2]
PROCESS = """
import json, warnings

warnings.simplefilter("ignore")
from torch._dynamo.utils import counters

from tests.contract.test_compiling import _array, _norms, _train

array, plain = _array(_norms), _array(_norms)
array.compiling = "always"
off = float((_train(array, 6) - _train(plain, 6)).abs().max())
[note] = [entry.program.decision.note for entry in array._calls.steps]
print(json.dumps({"off": off, "note": note, **counters["inductor"]}))
"""


def _in_a_process(folder: Path, **more: str) -> dict[str, Any]:
    names = {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"), "HFTA_NB_CACHE": str(folder / "times"), **more}
    done = subprocess.run(
        [sys.executable, "-c", PROCESS], capture_output=True, text=True, cwd=ROOT, env={**os.environ, **names}
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.long
@needs_compiler
def test_the_second_process_finds_the_graph_in_the_cache(tmp_path: Path) -> None:
    first, second = _in_a_process(tmp_path), _in_a_process(tmp_path)
    assert (first["fxgraph_cache_miss"], second["fxgraph_cache_hit"]) == (1, 1)
    for other in ("fxgraph_cache_hit", "fxgraph_cache_bypass"):
        assert other not in first
    for other in ("fxgraph_cache_miss", "fxgraph_cache_bypass"):
        assert other not in second
    for run in (first, second):
        assert run["off"] < 1e-12
        assert run["note"].startswith("compiled in")


@pytest.mark.long
@needs_compiler
def test_a_processor_with_other_instructions_does_not_use_the_cached_graph(tmp_path: Path) -> None:
    first = _in_a_process(tmp_path)
    other = _in_a_process(tmp_path, ATEN_CPU_CAPABILITY="default", HFTA_NB_CACHE=str(tmp_path / "other"))
    assert (first["fxgraph_cache_miss"], other["fxgraph_cache_miss"]) == (1, 1)
    assert "fxgraph_cache_hit" not in other
    for run in (first, other):
        assert run["off"] < 1e-12
        assert run["note"].startswith("compiled in")


class _Pool:
    """A pool of the compiler's, created on demand and kept, as `functools.lru_cache` keeps it."""

    def __init__(self, size: int) -> None:
        self.currsize, self.ended = size, False

    def __call__(self) -> _Pool:
        self.currsize = 1
        return self

    def cache_info(self) -> _Pool:
        return self

    def cache_clear(self) -> None:
        self.currsize = 0

    def shutdown(self) -> None:
        self.ended = True


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """What holds where the compiler runs, which is replaced by one that uses both pools and returns the graph."""
    import torch._inductor as inductor
    from torch._guards import TracingContext
    from torch._inductor.async_compile import AsyncCompile

    found: dict[str, Any] = {"pools": (_Pool(0), _Pool(0))}
    for name, pool in zip(("pool", "process_pool"), found["pools"], strict=True):
        monkeypatch.setattr(AsyncCompile, name, pool)

    def compile(module: fx.GraphModule, examples: list[torch.Tensor]) -> fx.GraphModule:
        found["threads"] = inductor.config.compile_threads
        found["context"] = TracingContext.try_get()
        for pool in found["pools"]:
            pool()
        return module

    monkeypatch.setattr(inductor, "compile", compile)
    with inductor.config.patch(compile_threads=32):
        yield found
        assert inductor.config.compile_threads == 32


def _compile() -> None:
    graph = fx.Graph()
    graph.output((graph.call_function(torch.ops.aten.relu.default, (graph.placeholder("x"),)),))
    place = BufferView(0, (2, 3), (1, 2), 4, torch.float32)
    [example] = compiling._examples([place], torch.device("cpu"))
    assert (example.shape, example.stride(), example.storage_offset()) == ((2, 3), (1, 2), 4)
    compiling._compiled(fx.GraphModule(torch.nn.Module(), graph), [example])


@quiet
def test_the_compiler_runs_where_its_cache_may_be_used(seen: dict[str, Any]) -> None:
    _compile()
    assert seen["context"].fake_mode.shape_env is not None


@quiet
@pytest.mark.parametrize("there", [0, 1])
def test_threads_and_processes_end_unless_they_were_there(seen: dict[str, Any], there: int) -> None:
    for pool in seen["pools"]:
        pool.currsize = there
    _compile()
    assert seen["threads"] == 8
    assert [pool.ended for pool in seen["pools"]] == [not there] * 2
    assert [pool.currsize for pool in seen["pools"]] == [there] * 2
