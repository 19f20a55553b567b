"""A rank beside rank 0: it does what rank 0 tells it.

It lives as long as its standard input is open, and ends with the first error, which it tells on its standard output.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from hfta_nb.train.step import ArrayStep
from hfta_nb.workers.distributed.batch_parts import Announced
from hfta_nb.workers.distributed.data_parallel import DataParallel
from hfta_nb.workers.distributed.ranks import Ranks, connected
from hfta_nb.workers.distributed.step_recipe import Recipe
from hfta_nb.workers.processes import frames, pickling
from hfta_nb.workers.processes.inside import begin


@dataclass(frozen=True)
class Hello:
    """The first thing that a rank is told.

    Attributes:
        rank, size, file, timeout_s: see `ranks.connected`.
        device: its own.
        threads: of torch.
        path, directory: where modules are imported from, and the current directory of rank 0.
    """

    rank: int
    size: int
    file: str
    timeout_s: float
    device: str
    threads: int
    path: list[str]
    directory: str


class Follower:
    """Makes the steps that rank 0 announces.

    Args:
        ranks: this one among the others.
    """

    step: ArrayStep
    parallel: DataParallel

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self._commands: dict[str, Callable[..., None]] = {
            "build": self._build,
            "train": self._train,
            "evaluate": self._evaluate,
            "select": self._select,
            "load_state": self._load_state,
            "end_epoch": self._end_epoch,
            "end_validation": lambda values: self.step.end_validation(values),
            "step_lr_schedulers": lambda: self.step.step_lr_schedulers(),
        }

    def do(self, command: str, *given: Any) -> None:
        """Do what is told."""
        self._commands[command](*given)

    def _build(self, recipe: Recipe) -> None:
        self.step = recipe.build(self.ranks.device)
        self.parallel = DataParallel(self.step.array, batch_norm=recipe.batch_norm, group=self.ranks)
        self.step.spread(self.parallel)

    def _train(self, batch: Announced) -> None:
        self.parallel.samples = batch.samples
        self.step.train(*batch.received(self.ranks))

    def _evaluate(self, batch: Announced) -> None:
        self.parallel.samples = batch.samples
        self.step.evaluate(*batch.received(self.ranks))

    def _select(self, indices: list[int]) -> None:
        self.step = self.step.select(indices)
        assert isinstance(self.step.devices, DataParallel)  # as it was spread
        self.parallel = self.step.devices

    def _load_state(self, state: dict[str, Any]) -> None:
        self.step.load_state(state)
        self.parallel.part_streams()

    def _end_epoch(self) -> None:
        self.step.end_epoch()
        self.parallel.check()


def main() -> int:
    """Follow until standard input ends; returns the exit code."""
    inbox, outbox = begin()
    try:
        _follow(inbox, outbox)
    except BaseException as error:
        traceback.print_exc()
        os.write(outbox, frames.pack({"error": f"{type(error).__name__}: {error}"}))
        return 1
    return 0


def _follow(inbox: int, outbox: int) -> None:
    messages = frames.read(inbox)
    first = next(messages, None)
    if first is None:
        return
    hello: Hello = pickling.unpacked(first[1])
    os.chdir(hello.directory)
    sys.path[:] = hello.path
    torch.set_num_threads(hello.threads)
    device = torch.device(hello.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    os.write(outbox, frames.pack({"ready": True}))
    follower = Follower(connected(hello.rank, hello.size, hello.file, device, hello.timeout_s))
    for message, given in messages:
        follower.do(message["do"], *pickling.unpacked(given))
