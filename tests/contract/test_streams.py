"""Work on several streams of a GPU: forked streams are joined, and parts of a convolution make up the convolution.

Stand-ins for streams record the order of forks and joins. That a GPU computes the same is tested on a GPU only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

import hfta_nb as hfta
from hfta_nb.engine.kernels.strategy.gpu_streams import MOST, Parted, Streams, in_turn, partings, runner_of
from hfta_nb.engine.kernels.strategy.kernel_variants import Operand, variants_of
from hfta_nb.engine.replay import build_program as capture

aten = torch.ops.aten


class Noted:
    """A stream that notes what is asked of it."""

    def __init__(self, name: str, log: list[tuple[str, str]]) -> None:
        self.name, self.log = name, log

    def record_event(self) -> str:
        self.log.append((self.name, "records"))
        return f"event of {self.name}"

    def wait_event(self, event: str) -> None:
        self.log.append((self.name, f"waits for {event}"))


def _noted(count: int) -> tuple[Streams, list[tuple[str, str]]]:
    log: list[tuple[str, str]] = []
    current = [Noted("main", log)]

    @contextmanager
    def on(side: Noted) -> Iterator[None]:
        current.append(side)
        try:
            yield
        finally:
            current.pop()

    return Streams([Noted(f"side {i}", log) for i in range(count)], lambda: current[-1], on), log


def test_what_is_forked_is_joined() -> None:
    streams, log = _noted(2)
    streams([lambda i=i: log.append((streams._current().name, f"runs {i}")) for i in range(3)])  # type: ignore[misc]
    assert log == [
        ("main", "records"),
        ("side 0", "waits for event of main"),
        ("side 1", "waits for event of main"),
        ("side 0", "runs 0"),
        ("side 1", "runs 1"),
        ("side 0", "runs 2"),
        ("side 0", "records"),
        ("main", "waits for event of side 0"),
        ("side 1", "records"),
        ("main", "waits for event of side 1"),
    ]


def test_streams_without_work_are_left_alone() -> None:
    streams, log = _noted(4)
    streams([lambda: None])
    assert not [entry for entry in log if entry[0] not in ("main", "side 0")]


def test_after_an_error_all_are_joined() -> None:
    streams, log = _noted(2)

    def fails() -> None:
        raise RuntimeError("no such kernel")

    with pytest.raises(RuntimeError, match="no such kernel"):
        streams([lambda: None, fails, lambda: log.append(("never", ""))])
    assert log[-4:] == [
        ("side 0", "records"),
        ("main", "waits for event of side 0"),
        ("side 1", "records"),
        ("main", "waits for event of side 1"),
    ]
    assert ("never", "") not in log


def test_a_cpu_has_no_streams() -> None:
    assert runner_of(torch.device("cpu")) is in_turn
    assert runner_of(torch.device("cuda", 0), 1) is in_turn
    seen: list[int] = []
    in_turn([lambda i=i: seen.append(i) for i in range(3)])  # type: ignore[misc]
    assert seen == [0, 1, 2]


def test_ways_to_part() -> None:
    assert partings(1) == []
    assert partings(3) == [(3, 1), (3, 2)]
    assert partings(8) == [(8, 1), (8, 2), (8, 4), (8, 8)]
    assert partings(96) == [(2, 2), (4, 4), (8, 8)]
    assert all(96 % parts == 0 and count <= MOST for parts, count in partings(96))


LAYOUTS = [torch.contiguous_format, torch.channels_last]
CASES = {
    "plain": {"groups": 4},
    "two groups a part": {"groups": 8, "parts": 4},
    "strided, padded": {"groups": 4, "stride": [2, 1], "padding": [1, 2], "dilation": [1, 2]},
    "without a bias": {"groups": 4, "bias": False},
    "transposed": {"groups": 4, "transposed": True, "stride": [2, 2], "output_padding": [1, 0]},
    "half": {"groups": 4, "dtype": torch.bfloat16},
}


def _case(case: dict[str, Any], layout: Any, device: torch.device) -> tuple[list[Any], int]:
    groups, transposed = case["groups"], case.get("transposed", False)
    dtype = case.get("dtype", torch.float32)
    x = torch.randn(3, 2 * groups, 7, 6, device=device, dtype=dtype).to(memory_format=layout)
    shape = (2 * groups, 3, 3, 2) if transposed else (3 * groups, 2, 3, 2)
    weight = torch.randn(shape, device=device, dtype=dtype).to(memory_format=layout)
    bias = torch.randn(3 * groups, device=device, dtype=dtype) if case.get("bias", True) else None
    stride, padding = case.get("stride", [1, 1]), case.get("padding", [0, 0])
    dilation, extra = case.get("dilation", [1, 1]), case.get("output_padding", [0, 0])
    return [x, weight, bias, stride, padding, dilation, transposed, extra, groups], case.get("parts", groups)


def _agree(found: Any, wanted: Any) -> None:
    assert (found is None) == (wanted is None)
    if wanted is not None:
        assert (found.shape, found.stride(), found.dtype) == (wanted.shape, wanted.stride(), wanted.dtype)
        rough = wanted.dtype == torch.bfloat16
        torch.testing.assert_close(found, wanted, rtol=5e-2 if rough else 1e-4, atol=5e-2 if rough else 1e-4)


@pytest.mark.pairs
@pytest.mark.each("case")
@pytest.mark.parametrize("count", [1, 2, 8])
@pytest.mark.parametrize("layout", LAYOUTS, ids=["channels first", "channels last"])
@pytest.mark.parametrize("case", CASES)
def test_parts_of_a_convolution_are_the_convolution(case: str, layout: Any, count: int, device: torch.device) -> None:
    with torch.backends.cudnn.flags(allow_tf32=False):
        args, parts = _case(CASES[case], layout, device)
        parted = Parted(aten.convolution.default, parts, count)
        wanted = aten.convolution.default(*args)
        for _ in range(3):
            _agree(parted(*args), wanted)
        gradient, sizes = torch.randn_like(wanted), None if args[2] is None else [len(args[2])]
        for mask in ([True, True, sizes is not None], [False, True, False]):
            given = [gradient, *args[:2], sizes, *args[3:], mask]
            parted = Parted(aten.convolution_backward.default, parts, count)
            every = aten.convolution_backward.default(*given)
            for _ in range(3):
                for found, true in zip(parted(*given), every, strict=True):
                    _agree(found, true)


def _operand(tensor: Any) -> Any:
    return Operand(tuple(tensor.shape), tensor.stride(), tensor.dtype) if isinstance(tensor, torch.Tensor) else tensor


def test_on_a_gpu_they_are_among_the_ways() -> None:
    gpu = torch.device("cuda", 0)  # named, not used
    args = [_operand(v) for v in _case(CASES["plain"], LAYOUTS[0], torch.device("cpu"))[0]]
    names = [f.name for f in variants_of(aten.convolution.default, args, gpu)]
    assert names == ["4 parts on 1 streams", "4 parts on 2 streams", "4 parts on 4 streams"]
    args[-1] = 1
    assert variants_of(aten.convolution.default, args, gpu) == []
    assert variants_of(aten.bmm.default, args[:2], gpu) == []
    double = [_operand(v.double() if isinstance(v, torch.Tensor) else v)
              for v in _case(CASES["plain"], LAYOUTS[0], torch.device("cpu"))[0]]  # fmt: skip
    assert variants_of(aten.convolution.default, double, gpu) == []


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("count", [2, 4, 8])
def test_streams_are_branches_of_a_cuda_graph(count: int) -> None:
    device = torch.device("cuda", 0)
    args, parts = _case({"groups": 8}, LAYOUTS[0], device)
    parted = Parted(aten.convolution.default, parts, count)
    side, graph = torch.cuda.Stream(device), torch.cuda.CUDAGraph()
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        for _ in range(3):
            parted(*args)
    torch.cuda.current_stream(device).wait_stream(side)
    with torch.backends.cudnn.flags(allow_tf32=False), torch.cuda.graph(graph, stream=side):
        found = parted(*args)
    for _ in range(3):
        args[0].normal_()
        graph.replay()
        with torch.backends.cudnn.flags(allow_tf32=False):
            _agree(found, aten.convolution.default(*args))


def test_blocks_of_members_are_forked_and_joined_like_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU blocks of members have a stream each; here their lanes run through streams that only note it."""
    streams, log = _noted(2)
    monkeypatch.setattr(capture, "run_parallel", streams)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        arrays = []
        for threads in ("blocks", "one"):
            torch.manual_seed(0)
            modules = [nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))
                       for _ in range(4)]  # fmt: skip
            array = hfta.fuse([m.double() for m in modules], [1, 2, 3, 4])
            array.threads, array.block_size = threads, 2
            arrays.append(array)
        for number in range(6):
            generator = torch.Generator().manual_seed(number)
            x = torch.randn(6, 5, generator=generator, dtype=torch.float64)
            y = torch.randint(0, 3, (6,), generator=generator)
            log.clear()
            for array in arrays:
                array.zero_grad()
            losses = [array.backward(nn.functional.cross_entropy, x, y) for array in arrays]
            assert torch.equal(*losses)
            for p, q in zip(arrays[0].parameters(), arrays[1].parameters(), strict=True):
                assert torch.equal(p.grad, q.grad)
        assert log.count(("main", "records")) == 1
        assert [entry for entry in log if entry[0] == "main"][1:] == [
            ("main", "waits for event of side 0"),
            ("main", "waits for event of side 1"),
        ]
    finally:
        torch.set_num_threads(before)
