"""Work side by side on several streams of a GPU, which has room left beside kernels that are small.

It is forked off the current stream by an event, and joined to it by events: what comes after on the current stream
waits for all of it. So it may be captured in a CUDA graph, as branches. Memory is never handed from one stream to
another by torch's allocator: what goes in and what comes out lies in memory of the current stream, and what is made in
between is made, used and let go of on one stream.

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
"""Runs jobs that don't depend on each other, in any order or side by side; all have ended when it returns, or on a
GPU, whatever comes next on the current stream waits for them."""

MOST = 8
"""Streams; a GPU has more, and gains nothing from them."""


class Streams:
    """Puts jobs on streams, in turn.

    Args:
        sides: the streams.
        current: gives the stream that the work is forked off.
        on: a context in which work goes to a stream.
    """

    def __init__(
        self, sides: Sequence[Any], current: Callable[[], Any], on: Callable[[Any], AbstractContextManager[Any]]
    ) -> None:
        self.sides, self._current, self._on = list(sides), current, on

    def __call__(self, jobs: Sequence[Job]) -> None:
        """See `Runner`. What fails is raised after the others have been joined: a capture must have no loose ends."""
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
    """See `Runner`: one after another, where they are."""
    for job in jobs:
        job()


def runner_of(device: torch.device, count: int = MOST) -> Runner:
    """What runs jobs on so many streams of a device; on a CPU, and with one stream, one after another."""
    if device.type != "cuda" or count < 2:
        return in_turn
    return Streams(
        _sides(device.index or 0)[:count],
        lambda: torch.cuda.current_stream(device),
        lambda side: torch.cuda.stream(side),
    )


@cache
def _sides(index: int) -> list[Any]:
    """Always the same streams: libraries keep a workspace for each, made before anything is captured."""
    return [torch.cuda.Stream(index) for _ in range(MOST)]  # type: ignore[no-untyped-call]


class Parted:
    """A grouped convolution, or its backward pass, in several parts of groups.

    Args:
        function: `convolution` or `convolution_backward` of aten.
        parts: how many; a divisor of the number of groups.
        count: streams.
    """

    def __init__(self, function: Callable[..., Any], parts: int, count: int) -> None:
        self.function, self.parts, self.count = function, parts, count
        self._likes: list[Any] | None = None  # of the results: shape, strides, dtype

    def __call__(self, *args: Any) -> Any:
        if self._likes is None:  # how results lie in memory is for torch to say
            found = self.function(*args)
            several = found if isinstance(found, tuple | list) else (found,)
            self._likes = [None if v is None else (v.shape, v.stride(), v.dtype) for v in several]
        device = args[0].device
        rooms = [
            None if like is None else torch.empty_strided(like[0], like[1], dtype=like[2], device=device)
            for like in self._likes
        ]
        jobs = [self._job(number, args, rooms) for number in range(self.parts)]
        runner_of(device, self.count)(jobs)
        return rooms[0] if len(rooms) == 1 else tuple(rooms)

    def _job(self, number: int, args: Sequence[Any], rooms: Sequence[Tensor | None]) -> Job:
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
            for room, value, axis in zip(rooms, made, _AXES if backward else _AXES[:1], strict=True):
                if room is not None:
                    own(room, axis).copy_(value)

        return job


_BACKWARD = 11
"""Arguments of `convolution_backward`; `convolution` has 9."""
_AXES = (1, 0, 0)
"""Along which the groups lie: in the output, or the gradients of input, weight and bias."""

_SINGLE = 64
"""Up to so many groups each may be a convolution of its own."""


def partings(groups: int) -> list[tuple[int, int]]:
    """Ways to part so many groups: how many parts, on how many streams."""
    if groups < 2:
        return []
    if groups <= _SINGLE:
        return [(groups, count) for count in (1, 2, 4, 8) if count <= groups]
    return [(count, count) for count in (2, 4, 8) if groups % count == 0]
