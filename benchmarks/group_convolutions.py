"""Grouped convolutions on a GPU, compared with one convolution per member.

For each shape, the time of both in a CUDA graph, and whether a group that is not finite reaches other groups, as it
does where a kernel multiplies the channels of other groups by zero.

    python benchmarks/group_convolutions.py [--members 8] [--precisions bf16,tf32]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.common import write

SHAPES = {
    "cnn, first": (32, 1, 16, 3, 28, 1),
    "cnn, second": (32, 16, 32, 3, 14, 1),
    "8 channels": (32, 8, 8, 3, 14, 1),
    "resnet, 64 channels": (128, 64, 64, 3, 32, 1),
    "resnet, 64 channels, batch 1000": (1000, 64, 64, 3, 32, 1),
    "resnet, 256 channels": (128, 256, 256, 3, 8, 1),
    "dcgan": (64, 64, 128, 4, 32, 2),
    "pointwise": (128, 96, 24, 1, 32, 1),
    "depthwise": (256, 96, 96, 3, 16, 1),
}
"""Samples, channels in and out, kernel, side of the image, stride."""

_forward, _backward = torch.ops.aten.convolution.default, torch.ops.aten.convolution_backward.default
_MASK = [True, True, False]


def measure(name: str, precision: str, last: bool, members: int) -> dict[str, Any]:
    """One row."""
    samples, inputs, outputs, kernel, side, stride = SHAPES[name]
    own = inputs if name == "depthwise" else 1
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    layout = torch.channels_last if last else torch.contiguous_format
    new = {"device": "cuda", "dtype": dtype}
    x = torch.randn(samples, members * inputs, side, side, **new).contiguous(memory_format=layout)  # type: ignore[call-overload]
    weight = torch.randn(members * outputs, inputs // own, kernel, kernel, **new)  # type: ignore[call-overload]
    how = [[stride] * 2, [(kernel - 1) // 2] * 2, [1, 1], False, [0, 0]]
    grad = torch.randn_like(_forward(x, weight, None, *how, members * own))
    each = [
        [part.contiguous(memory_format=layout) for part in grad.chunk(members, 1)],
        [part.contiguous(memory_format=layout) for part in x.chunk(members, 1)],
        list(weight.chunk(members)),
    ]
    parts = list(zip(*each, strict=True))
    runs: dict[str, Callable[[], Any]] = {
        "forward_grouped_us": lambda: _forward(x, weight, None, *how, members * own),
        "forward_each_us": lambda: [_forward(a, w, None, *how, own) for _, a, w in parts],
        "backward_grouped_us": lambda: _backward(grad, x, weight, None, *how, members * own, _MASK),
        "backward_each_us": lambda: [_backward(g, a, w, None, *how, own, _MASK) for g, a, w in parts],
    }
    row: dict[str, Any] = {"shape": name, "precision": precision, "channels_last": last, "members": members}
    row["crosses"] = _crosses(grad, x, weight, lambda *t: _grouped(*t, how, members * own), members)
    return row | {what: _microseconds(run) for what, run in runs.items()}


def _grouped(grad: Tensor, x: Tensor, weight: Tensor, how: list[Any], groups: int) -> list[Tensor]:
    """Result, and gradients of input and weight."""
    return [_forward(x, weight, None, *how, groups), *_backward(grad, x, weight, None, *how, groups, _MASK)[:2]]


def _crosses(
    grad: Tensor, x: Tensor, weight: Tensor, run: Callable[[Tensor, Tensor, Tensor], list[Tensor]], members: int
) -> list[str]:
    """Which of the second member's tensors reach others if they are not finite."""
    found = []
    for name, at, axis in (("gradient", 0, 1), ("input", 1, 1), ("weight", 2, 0)):
        given = [t.clone(memory_format=torch.preserve_format) for t in (grad, x, weight)]
        given[at].chunk(members, axis)[1].fill_(torch.nan)
        for result, along in zip(run(*given), (1, 1, 0), strict=True):
            others = [part for i, part in enumerate(result.chunk(members, along)) if i != 1]
            if any(bool(part.isnan().any()) for part in others):
                found.append(name)
    return sorted(set(found))


def _microseconds(run: Callable[[], Any], laps: int = 3, calls: int = 4) -> float:
    """The least time of a call, in a CUDA graph of several."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
        with torch.cuda.graph(graph, stream=side):
            for _ in range(calls):
                run()
    torch.cuda.synchronize()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    times = []
    for _ in range(laps):
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / calls * 1e3)
    return min(times)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--precisions", default="bf16,tf32")
    given = parser.parse_args()
    if not torch.cuda.is_available():
        print("torch sees no GPU", file=sys.stderr)
        return 2
    rows = []
    for precision in given.precisions.split(","):
        torch.backends.cudnn.allow_tf32 = precision == "tf32"
        for name in SHAPES:
            for last in (False, True):
                rows.append(measure(name, precision, last, given.members))
                print(rows[-1], flush=True)
    write("group_convolutions", {"rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
