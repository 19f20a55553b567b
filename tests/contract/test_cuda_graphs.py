"""CUDA graphs whose capture fails: the process continues, and the cause is reported.

`Gpu` stands for a GPU with a torch that leaves a capture open if its end fails (before 2.12), or closes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import hfta_nb as hfta
from hfta_nb.engine.eager import retry
from hfta_nb.engine.kernels import cuda_graphs
from hfta_nb.engine.kernels.capture import Part
from hfta_nb.engine.kernels.cuda_graphs import CudaGraphs
from hfta_nb.engine.replay import program_cache
from hfta_nb.train.step import ArrayStep
from hfta_nb.train.step.graph import StepGraph
from tests.contract.captured_steps import CPU, MEMBERS, ROW, SETTLED, batch, train_both

DEVICE = torch.device("cpu", 0)  # where the stand-in's tensors are
END = "operation failed due to a previous error during capture"


class Draws:
    """The default generator: its state belongs to a capture that is under way."""

    def __init__(self) -> None:
        self.state, self.capturing = torch.Generator().manual_seed(5), False

    def get_state(self) -> torch.Tensor:
        return self.state.get_state()

    def manual_seed(self, seed: int) -> None:
        self.state.manual_seed(seed)

    def graphsafe_set_state(self, state: torch.Generator) -> None:
        self.state, self.capturing = state, False

    def draw(self) -> torch.Tensor:
        if self.capturing:
            raise RuntimeError("Offset increment outside graph capture encountered unexpectedly.")
        return torch.rand(3, generator=self.state)


class Gpu:
    def __init__(self, cleans_up: bool = False) -> None:
        self.cleans_up, self.fails = cleans_up, ""  # "begin" or "end"
        self.underway: list[Any] = []
        self.pools, self.released = 0, []
        self.reserved, self.total = 0, 100
        self.stream, self.default = "main", Draws()

    def pool(self) -> tuple[int, int]:
        self.pools += 1
        return 0, self.pools

    def end(self, index: int, pool: Any) -> None:
        if pool not in self.underway:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        self.underway.remove(pool)

    def empty_cache(self) -> None:
        if self.underway:
            raise RuntimeError("captures_underway.empty() INTERNAL ASSERT FAILED")

    @contextmanager
    def on(self, stream: str) -> Iterator[None]:
        before, self.stream = self.stream, stream
        try:
            yield
        finally:
            self.stream = before

    def graph(self) -> SimpleNamespace:
        pools = []

        def begin(pool: Any, capture_error_mode: str) -> None:
            if self.underway:
                raise RuntimeError("a capture is under way")
            self.underway.append(pool)
            pools.append(pool)
            self.default.capturing = True
            if self.fails == "begin":
                raise RuntimeError("cudaStreamBeginCapture")

        def end() -> None:
            if self.fails == "end" and not self.cleans_up:
                raise RuntimeError(END)
            self.underway.remove(pools[0])
            self.default.capturing = False
            if self.fails == "end":
                raise RuntimeError(END)

        return SimpleNamespace(capture_begin=begin, capture_end=end, replay=lambda: None)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    made = Gpu()
    monkeypatch.setattr(cuda_graphs._Process, "trouble", "")
    monkeypatch.setattr(cuda_graphs, "side_stream", lambda device: "side")
    for name, value in {
        "graph_pool_handle": made.pool, "stream": made.on, "synchronize": lambda device: None,
        "empty_cache": made.empty_cache, "memory_reserved": lambda device: made.reserved,
        "mem_get_info": lambda device: (0, made.total), "default_generators": (made.default,), "CUDAGraph": made.graph,
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", made.end, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_releasePool", lambda i, pool: made.released.append(pool), raising=False)
    return made


def _capture(gpu: Gpu, action: Callable[[], Any] = lambda: None) -> None:
    with cuda_graphs.captured(gpu.graph(), DEVICE, "side"):
        assert gpu.stream == "side"
        action()


def _no() -> None:
    raise RuntimeError("no such kernel\nat line 3")


@pytest.mark.parametrize(("fails", "action"), [("end", _no), ("end", lambda: None), ("begin", lambda: None)])
def test_after_a_capture_that_can_not_be_ended_eager_work_goes_on(gpu: Gpu, fails: str, action: Any) -> None:
    gpu.fails = fails
    expected = torch.rand(3, generator=torch.Generator().manual_seed(5))
    cause = {"begin": "cudaStreamBeginCapture"}.get(fails, "no such kernel" if action is _no else END)
    with pytest.raises(RuntimeError, match=cause):
        _capture(gpu, action)
    assert gpu.stream == "main"
    assert torch.equal(gpu.default.draw(), expected)
    torch.cuda.empty_cache()
    assert gpu.released == [(0, 1)]
    gpu.fails = ""
    with pytest.raises(RuntimeError, match=f"no more graphs in this process, .*: {cause}$"):
        _capture(gpu)
    assert gpu.pools == 1


def test_what_torch_has_ended_itself_harms_no_later_capture(gpu: Gpu) -> None:
    gpu.fails, gpu.cleans_up = "end", True
    with pytest.raises(RuntimeError, match="no such kernel"):
        _capture(gpu, _no)
    gpu.fails = ""
    with pytest.raises(RuntimeError, match="no such kernel"):  # an error of Python's that spoils nothing
        _capture(gpu, _no)
    _capture(gpu)
    assert cuda_graphs.refused() == ""
    assert gpu.released == []


def test_kernels_are_timed_without_graphs_then(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu.fails = "end"
    with pytest.raises(RuntimeError):
        _capture(gpu)

    def run(count: int) -> None:
        raise AssertionError

    assert cuda_graphs.graphed(run, torch.device("cuda", 0)) is run


class _Faked(CudaGraphs):
    """Everything but streams and members' generators, of which a CPU has none."""

    def warm(self, action: Callable[[], Any]) -> Any:
        return action()


def test_steps_go_on_and_tell_the_cause_once(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = []
    for captured in (True, False):
        torch.manual_seed(0)
        array = hfta.fuse([nn.Linear(6, 4).double() for _ in range(MEMBERS)], [1, 2, 3])
        step = ArrayStep(array, [ROW] * MEMBERS, nn.functional.cross_entropy, {}, 10)
        step.graph = StepGraph(_Faked(CPU, array.generators), step.tensors) if captured else None
        pair.append(step)

    @contextmanager
    def generators(graph: Any) -> Iterator[list[Any]]:
        yield []

    monkeypatch.setattr(pair[0].array.generators, "captured", generators)
    gpu.fails = "begin"  # what a CPU is given within a capture, it would do
    for size in (5, 4, 3):
        train_both(pair, range(SETTLED + 2), size=size)
    assert gpu.pools == 1
    refused = f"not captured: {cuda_graphs.refused()}"
    assert pair[0].array.step_notes == ["not captured: cudaStreamBeginCapture", refused]


def _graph(graphs: CudaGraphs, gpu: Gpu, growth: int) -> cuda_graphs.CudaGraph:
    def run() -> list[torch.Tensor]:
        gpu.reserved += growth
        return [torch.ones(2)]

    return graphs.capture(Part(run, draws=False))


def test_the_graphs_of_an_array_share_one_bounded_pool(gpu: Gpu) -> None:
    graphs = CudaGraphs(DEVICE)
    first, second = _graph(graphs, gpu, 30), _graph(graphs, gpu, 10)
    assert gpu.pools == 1
    assert graphs.apart().capture(Part(list, draws=False)).is_valid()
    assert gpu.pools == 2  # between the parts of such a program, other graphs may run
    with pytest.raises(RuntimeError, match=r"graphs would take .* GiB"):
        _graph(graphs, gpu, 50)  # of 100, with those of before
    assert torch.equal(first.run()[0], second.run()[0])
    del first, second
    _graph(graphs, gpu, 70)  # torch has given the old pool up with its last graph
    assert gpu.pools == 3


@pytest.fixture
def within(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Whether a capture is under way."""
    state = SimpleNamespace(capturing=False)
    for module in (program_cache, retry):
        monkeypatch.setattr(module, "capturing", lambda device: state.capturing)
    return state


def test_an_error_of_a_replay_leaves_the_capture(within: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    array = hfta.fuse([nn.Linear(6, 4).double() for _ in range(MEMBERS)], [1, 2, 3])
    for number in range(5):
        array.backward(nn.functional.cross_entropy, *batch(number))
    (seen,) = array._calls.steps
    with monkeypatch.context() as patch:
        patch.setattr(type(seen.program), "run", lambda self: _no())
        within.capturing = True
        with pytest.raises(RuntimeError, match="no such kernel"):
            array.backward(nn.functional.cross_entropy, *batch(6))
    within.capturing = False
    assert array._calls.steps.notes() == ["recorded"]


def test_an_error_of_an_eager_call_leaves_the_capture(within: SimpleNamespace) -> None:
    array = hfta.fuse([nn.Linear(6, 4).double() for _ in range(MEMBERS)], [1, 2, 3])
    size = array.block_size

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no such kernel")

    within.capturing = True
    with pytest.raises(RuntimeError, match=r"^no such kernel$"):
        array.backward(loss, *batch(0))
    assert array.block_size == size


def test_no_capture_is_under_way_on_a_cpu() -> None:
    assert not cuda_graphs.capturing(CPU)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_after_a_failed_capture_dropout_and_the_cache_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graphs._Process, "trouble", "")
    device = torch.device("cuda", 0)
    x = torch.ones(100, device=device)
    before = torch.cuda.current_stream(device)

    def waits() -> None:
        nn.functional.dropout(x, 0.5)
        x.sum().item()

    with pytest.raises(RuntimeError), cuda_graphs.captured(torch.cuda.CUDAGraph(), device, torch.cuda.Stream(device)):
        waits()
    assert torch.cuda.current_stream(device) == before
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    waits()
