"""Programs as CUDA graphs: equal to the same kernels launched one by one.

On a CPU a stand-in captures: it notes a part of the program and runs it at each replay.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.engine.array import FusedArray
from hfta_nb.engine.eager.state import ArrayState
from hfta_nb.engine.kernels import cuda_graphs
from hfta_nb.engine.kernels.capture import Part
from hfta_nb.engine.kernels.cuda_graphs import CudaGraphs
from hfta_nb.engine.replay import program_graphs
from tests.contract.captured_steps import Captured, StandIn
from tests.contract.replay import (
    EXACT,
    NOT,
    REPLAYED,
    TIGHT,
    backward,
    forget,
    mlp,
    notes,
    one_step,
    pair,
    pair_of,
    same,
)
from tests.contract.rows import MODULES, ModuleRow
from tests.contract.serial import loss_of

PLAIN, ONE, TWO = 2, "captured as one graph", "captured as two graphs"
STEPS = 9
"""One call as ever, two recorded, `PLAIN` by single kernels, one captured, three more."""


@pytest.fixture
def graphs(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """Programs are captured after `PLAIN` replays, whether that saves time or not."""
    monkeypatch.setattr(program_graphs, "PLAIN_RUNS", PLAIN)
    monkeypatch.setattr(program_graphs, "HOST_BOUND", math.inf)
    stand_in = StandIn(None)
    if device.type == "cpu":
        monkeypatch.setattr(ArrayState, "graphs", stand_in)
    return stand_in


def told(array: FusedArray, what: str) -> list[str]:
    """What `explain` says of graphs."""
    return [note for note in notes(array, what).split("; ") if "captured" in note]


@pytest.mark.long
@pytest.mark.parametrize("block", [3, 1])
@pytest.mark.parametrize("row", MODULES, ids=lambda r: r.name)
def test_every_module(row: ModuleRow, block: int, graphs: StandIn, device: torch.device) -> None:
    array, other, target = pair_of(row, block, device)
    for step in range(STEPS):
        x = row.x().to(device)
        torch.testing.assert_close(*(backward(a, loss_of, x, target + step) for a in (array, other)), **TIGHT)
        same(array, other, EXACT)
    assert told(array, "backward") == [ONE] * (row.name not in NOT)


@pytest.mark.long
@pytest.mark.parametrize("block", [3, 1])
@pytest.mark.parametrize("row", MODULES, ids=lambda r: r.name)
def test_every_module_in_two_halves(row: ModuleRow, block: int, graphs: StandIn, device: torch.device) -> None:
    array, other, target = pair_of(row, block, device)
    for step in range(STEPS):
        x = row.x().to(device)
        for a in (array, other):
            forget(a)
            torch.func.vmap(loss_of, (0, None))(a(x), target + step).sum().backward()
        same(array, other)
    assert told(array, "array(x)") == [TWO] * (row.name not in NOT)


def test_gradients_are_added(x: Tensor, y: Tensor, graphs: StandIn, device: torch.device) -> None:
    array, other = pair(mlp, device)
    for step in range(STEPS + 4):
        for a in (array, other):
            if step % 4 == 0:
                forget(a)
            a.backward(loss_of, x * step, y)
        same(array, other, EXACT)
    assert told(array, "backward") == [ONE]


def test_without_gradients(x: Tensor, y: Tensor, graphs: StandIn, device: torch.device) -> None:
    array, other = pair(mlp, device)
    for step in range(STEPS):
        torch.testing.assert_close(*(a.evaluate(loss_of, x * step, y) for a in (array, other)), **TIGHT)
        with torch.no_grad():
            first, second = array(x * step), other(x * step)
        torch.testing.assert_close(first, second, **TIGHT)
        same(array, other)
    kept = first.clone()
    with torch.no_grad():
        array(x + 1)
    assert torch.equal(first, kept)
    assert told(array, "without gradients") == [ONE]


def test_a_backward_that_is_not_the_next_thing(x: Tensor, graphs: StandIn, device: torch.device) -> None:
    """Two forwards before a backward, gradients that are returned, and another batch size in between."""
    array, other = pair(mlp, device)
    for _ in range(STEPS):
        torch.testing.assert_close(one_step(array, x), one_step(other, x), **TIGHT)
    assert told(array, "array(x)") == [TWO]
    for a in (array, other):
        forget(a)
        first, second, third = a(x), a(x + 1), a(x[:4])
        (second.square().sum() + third.sum()).backward()
        first.sin().sum().backward()
    same(array, other)
    found = [torch.autograd.grad(a(x).square().sum(), list(a.parameters())) for a in (array, other)]
    torch.testing.assert_close(*found, **TIGHT)
    same(array, other)


def test_streams_that_are_replaced(x: Tensor, y: Tensor, graphs: StandIn, device: torch.device) -> None:
    """A graph draws from generators that a loaded state replaces: it is captured anew, but not for ever."""
    array, other = pair(mlp, device)
    for time in range(4):
        for a in (array, other):
            a.load_state_dict(a.state_dict())
        for graph in graphs.made:
            graph.standing = False
        for _ in range(STEPS):
            torch.testing.assert_close(*(backward(a, loss_of, x, y) for a in (array, other)), **TIGHT)
            same(array, other, EXACT)
        again = "not captured: what it depends on changes again and again"
        assert told(array, "backward") == [ONE if time < 3 else again]


def test_kernels_that_take_longer_than_launching_them(
    x: Tensor, y: Tensor, graphs: StandIn, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program_graphs, "HOST_BOUND", 1.5)
    graphs.ratio = 2.0
    array, other = pair(mlp, device)
    for _ in range(STEPS):
        torch.testing.assert_close(*(backward(a, loss_of, x, y) for a in (array, other)), **TIGHT)
        same(array, other, EXACT)
    assert told(array, "backward") == ["not captured: its kernels take 2.0 times the time of launching them"]


@pytest.mark.parametrize("what", ["fails", "memory", "results", "gradients", "buffers"])
def test_a_capture_that_does_not_do_it(
    what: str, x: Tensor, y: Tensor, device: torch.device, monkeypatch: pytest.MonkeyPatch, graphs: StandIn
) -> None:
    if device.type != "cpu":
        pytest.skip("nothing fails by itself on a GPU")
    array, other = pair(mlp, device)
    graphs.fails = {"fails": "operation not permitted", "memory": "CUDA out of memory"}.get(what, "")
    spoilt: dict[str, Any] = {
        "results": lambda results: results[0].add_(1),
        "gradients": lambda _: array.arenas[0].grad.add_(1),
        "buffers": lambda _: next(array.buffers()).add_(1),
    }
    capture = graphs.capture

    def wrong(part: Part) -> Captured:
        def run() -> list[Tensor]:
            results: list[Tensor] = part.run()
            spoilt.get(what, lambda _: None)(results)
            return results

        return capture(Part(run, part.draws))

    monkeypatch.setattr(graphs, "capture", wrong)
    for step in range(STEPS):
        given = [backward(array, loss_of, x, y), backward(other, loss_of, x, y)] if step % 2 else [
            a.backward(loss_of, x, y) for a in (array, other)
        ]  # fmt: skip
        torch.testing.assert_close(*given, **TIGHT)
        same(array, other, EXACT)
    reasons = {"fails": "operation not permitted", "memory": "there is not enough memory"}
    [note] = told(array, "backward")
    assert note.startswith(f"not captured: {reasons.get(what, 'captured, it gives other numbers: ')}")
    assert REPLAYED in notes(array, "backward").split("; ")


def test_a_process_that_captures_no_more(
    x: Tensor, y: Tensor, graphs: StandIn, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_graphs._Process, "trouble", "a fault")
    array, _ = pair(mlp, device)
    for _ in range(STEPS):
        backward(array, loss_of, x, y)
    assert told(array, "backward") == [f"not captured: {cuda_graphs.refused()}"]
    assert not graphs.made


def test_nothing_is_captured_within_another_capture(
    x: Tensor, y: Tensor, graphs: StandIn, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    array, other = pair(lambda: nn.Linear(5, 3), device)
    monkeypatch.setattr(program_graphs, "capturing", lambda _: True)
    for _ in range(STEPS):
        torch.testing.assert_close(*(backward(a, loss_of, x, y) for a in (array, other)), **TIGHT)
    assert told(array, "backward") == []
    assert not graphs.made


def test_a_program_runs_on_the_stream_of_captures_before_it_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the workspace that cuBLAS keeps for this stream would lie in the memory of a graph, and outlive it."""
    streams: list[Any] = ["current"]

    @contextmanager
    def on(stream: Any) -> Iterator[None]:
        streams.append(stream)
        yield
        streams.pop()

    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "stream", on)
    waited: list[str] = []
    current, side = (SimpleNamespace(wait_stream=lambda _, name=name: waited.append(name)) for name in ("main", "side"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current)
    monkeypatch.setattr(cuda_graphs, "side_stream", lambda device: side)
    seen: list[Any] = []
    assert CudaGraphs(torch.device("cuda")).launching(lambda: seen.append(streams[-1])) >= 1
    assert (seen, streams, waited) == ([side], ["current"], ["side", "main"])


def test_exact_resume_with_graphs(x: Tensor, y: Tensor, graphs: StandIn, device: torch.device) -> None:
    """A checkpoint that is taken after a capture goes on as without one."""
    array, other = pair(mlp, device)
    for _ in range(STEPS):
        for a in (array, other):
            backward(a, loss_of, x, y)
    fresh = hfta.fuse([mlp().double().to(device) for _ in range(len(array))])
    fresh.load_state_dict(array.state_dict())
    for _ in range(STEPS):
        torch.testing.assert_close(*(backward(a, loss_of, x, y) for a in (fresh, other)), **TIGHT)
        same(fresh, other, EXACT)
