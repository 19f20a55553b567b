"""Runs work on several streams of a GPU at once, which helps if single kernels are too small to fill it.

The work is forked off the current stream by an event and joined to it by events: later work on the current stream waits
for all of it. Therefore it may be captured in a CUDA graph, as branches. Torch's allocator never hands memory from one
stream to another: inputs and outputs are in memory of the current stream, and temporary memory is allocated, used and
freed on one stream.

Source: "CUDA streams" and "CUDA Graphs" in torch's notes on CUDA semantics.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import torch
from torch import Tensor

Job = Callable[[], Any]
Runner = Callable[[Sequence[Job]], None]
"""Runs independent jobs in any order or concurrently. All have ended when it returns; on a GPU, later work on the
current stream waits for them."""

MOST = 8
"""The most streams; a GPU has more, but gains nothing from them."""


class Streams:
    """Distributes jobs over streams.

    Args:
        sides: the streams.
        current: returns the stream that the work is forked off.
        on: a context that sends work to a stream.
    """

    def __init__(
        self, sides: Sequence[Any], current: Callable[[], Any], on: Callable[[Any], AbstractContextManager[Any]]
    ) -> None:
        self.sides, self._current, self._on = list(sides), current, on

    def __call__(self, jobs: Sequence[Job]) -> None:
        """See `Runner`. Errors are raised after all streams have been joined: a capture must not leave branches
        open."""
        current, used = self._current(), self.sides[: len(jobs)]
        begun = current.record_event()
        for side in used:
            side.wait_event(begun)
        try:
            for number, job in enumerate(jobs):
                with self._on(used[number % len(used)]):
                    job()
        finally:
            for side in used:
                current.wait_event(side.record_event())


def in_turn(jobs: Sequence[Job]) -> None:
    """See `Runner`: runs the jobs one after another."""
    for job in jobs:
        job()


def runner_of(device: torch.device, count: int = MOST) -> Runner:
    """A runner for that many streams of a device; sequential on a CPU, and for one stream."""
    if device.type != "cuda" or count < 2:
        return in_turn
    return Streams(
        _sides(device.index or 0)[:count],
        lambda: torch.cuda.current_stream(device),
        lambda side: torch.cuda.stream(side),
    )


@cache
def _sides(index: int) -> list[Any]:
    """Always the same streams: libraries keep a workspace for each, which is allocated before captures."""
    return [torch.cuda.Stream(index) for _ in range(MOST)]  # type: ignore[no-untyped-call]


class Parted:
    """A grouped convolution, or its backward pass, divided into several parts of groups.

    Args:
        function: `convolution` or `convolution_backward` of aten.
        parts: their number; a divisor of the number of groups.
        count: the number of streams.
    """

    def __init__(self, function: Callable[..., Any], parts: int, count: int) -> None:
        self.function, self.parts, self.count = function, parts, count
        self._likes: list[Any] | None = None  # of the results: shape, strides, dtype

    def __call__(self, *args: Any) -> Any:
        if self._likes is None:  # torch determines the layout of results
            found = self.function(*args)
            several = found if isinstance(found, tuple | list) else (found,)
            self._likes = [None if v is None else (v.shape, v.stride(), v.dtype) for v in several]
        device = args[0].device
        buffers = [
            None if like is None else torch.empty_strided(like[0], like[1], dtype=like[2], device=device)
            for like in self._likes
        ]
        jobs = [self._job(number, args, buffers) for number in range(self.parts)]
        runner_of(device, self.count)(jobs)
        return buffers[0] if len(buffers) == 1 else tuple(buffers)

    def _job(self, number: int, args: Sequence[Any], buffers: Sequence[Tensor | None]) -> Job:
        backward = len(args) == _BACKWARD

        def own(tensor: Tensor, axis: int) -> Tensor:
            size = tensor.shape[axis] // self.parts
            return tensor.narrow(axis, number * size, size)

        def job() -> None:
            if backward:
                gradient, x, weight, sizes, *how, groups, mask = args
                bias = None if sizes is None else [size // self.parts for size in sizes]
                made = self.function(
                    own(gradient, 1), own(x, 1), own(weight, 0), bias, *how, groups // self.parts, mask
                )
            else:
                x, weight, b, *how, groups = args
                given = own(x, 1), own(weight, 0), None if b is None else own(b, 0)
                made = (self.function(*given, *how, groups // self.parts),)
            for buffer, value, axis in zip(buffers, made, _AXES if backward else _AXES[:1], strict=True):
                if buffer is not None:
                    own(buffer, axis).copy_(value)

        return job


_BACKWARD = 11
"""The number of arguments of `convolution_backward`; `convolution` has 9."""
_AXES = (1, 0, 0)
"""The axes of the groups: in the output, or in the gradients of input, weight and bias."""

_SINGLE = 64
"""Up to this many groups, each group may be a separate convolution."""


def partings(groups: int) -> list[tuple[int, int]]:
    """Possible divisions of so many groups: numbers of parts and of streams."""
    if groups < 2:
        return []
    if groups <= _SINGLE:
        return [(groups, count) for count in (1, 2, 4, 8) if count <= groups]
    return [(count, count) for count in (2, 4, 8) if groups % count == 0]
