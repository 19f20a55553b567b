"""Common base of all modes: timed laps, with losses read afterwards."""

from __future__ import annotations

import abc
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.suite.job import Job


@dataclass(frozen=True)
class Lap:
    """Some training steps of all members.

    Attributes:
        wall_s: wall time.
        cpu_s: processor time of all threads and processes involved.
        device_s: between two CUDA events; None on a CPU, or if the work is not on one stream.
        losses: ``[steps][M]``.
    """

    wall_s: float
    cpu_s: float
    device_s: float | None
    losses: list[list[float]]


class Mode(abc.ABC):
    """Trains all members of a job in one mode; each lap continues the last one.

    Attributes:
        job: the job.
        done: steps so far.
        note: a remark for readers of its figures.
    """

    note = ""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.done = 0

    def lap(self, steps: int) -> Lap:
        """Time some steps. Losses are read after the clock has stopped: nothing waits within a lap."""
        cuda = self.job.where.type == "cuda"
        self.synchronise()
        events = [torch.cuda.Event(enable_timing=True) for _ in range(2)] if cuda else []
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        if events:
            events[0].record()
        held = self.train(steps)
        if events:
            events[1].record()
        self.synchronise()
        wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
        self.done += steps
        device_s = events[0].elapsed_time(events[1]) / 1e3 if events and self.on_torch_stream else None
        return Lap(wall_s, cpu_s, device_s, self.losses(held))

    on_torch_stream = True

    @abc.abstractmethod
    def train(self, steps: int) -> Any:
        """Train all members through steps `done`, `done + 1`, ...; returns what `losses` reads."""

    @abc.abstractmethod
    def losses(self, held: Any) -> list[list[float]]:
        """``[steps][M]`` from the result of `train`."""

    def synchronise(self) -> None:
        """Wait until the device is done."""
        if self.job.where.type == "cuda":
            torch.cuda.synchronize(self.job.where)

    def own_memory(self) -> int | None:
        """Bytes, if the mode must count them itself (other processes, another allocator)."""
        return None

    def close(self) -> None:  # noqa: B027 - most have nothing to give back
        """Release its memory."""


def table(losses: Sequence[torch.Tensor]) -> list[list[float]]:
    """Losses ``[M]`` of each step as numbers."""
    rows: list[list[float]] = torch.stack(list(losses)).double().cpu().tolist()
    return rows
