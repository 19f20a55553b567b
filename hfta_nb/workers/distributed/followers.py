"""The processes of the ranks beside rank 0, which rank 0 starts and ends."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from hfta_nb.errors import DistributedError, WorkerError
from hfta_nb.workers.distributed.others import explained, lost
from hfta_nb.workers.distributed.rank_follower import Hello
from hfta_nb.workers.distributed.ranks import Ranks, connected
from hfta_nb.workers.processes import cores, frames, pickling
from hfta_nb.workers.processes.ends import in_words
from hfta_nb.workers.processes.spawning import pipes_of, spawn

TIMEOUT_S = 300.0
"""How long an exchange between ranks may take before the run fails."""

_START_S = 120.0
_END_S = 5.0
_COMMAND = (sys.executable, "-P", "-m", "hfta_nb.workers.distributed.follower_main")


class _Rank:
    """The process of one rank.

    Args:
        threads: of torch.

    Raises:
        DistributedError: it can't be started.
    """

    def __init__(self, threads: int) -> None:
        try:
            self.process = spawn(_COMMAND, dict.fromkeys(cores.COUNTS, str(threads)), heard=False)
        except WorkerError as error:
            raise DistributedError(f"of a rank, {error.what}", where=error.where) from error
        self._to, self._said = pipes_of(self.process)
        self._messages = frames.read(self._said)

    def write(self, frame: bytes) -> None:
        """Send a frame.

        Raises:
            OSError: it is gone.
        """
        rest = memoryview(frame)
        while rest:
            rest = rest[os.write(self._to, rest) :]

    def said(self, timeout_s: float | None = None) -> frames.Message | None:
        """Its next message; None if it has ended, or has none in this time."""
        if timeout_s is not None and not select.select([self._said], [], [], timeout_s)[0]:
            return None
        return next(self._messages, ({}, b""))[0] or None

    def let_go(self) -> None:
        """Close what it reads from, which ends it."""
        os.close(self._to)

    def close(self, timeout_s: float) -> None:
        """Wait for its end, and then force it."""
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self._said)


class Followers:
    """The ranks 1, 2, ... of one machine, each a process with its device and its share of the CPU's threads.

    Args:
        size: how many ranks there are, rank 0 among them.
        device: of rank 0; of GPUs the others take those that follow.
        timeout_s: how long an exchange may take; `TIMEOUT_S` by default.

    Attributes:
        ranks: rank 0 among them.

    Raises:
        WorkerError: there are fewer cores.
        DistributedError: a process does not start, or they can't meet.
    """

    ranks: Ranks

    def __init__(self, size: int, device: torch.device, timeout_s: float | None = None) -> None:
        if device.type == "cpu":
            cores.check_processes("devices", size)
        self._place = tempfile.mkdtemp(prefix="hfta_nb-ranks-")
        self._before = torch.get_num_threads()
        self._failed = False
        self._others: list[_Rank] = []
        threads = max(1, self._before // size) if device.type == "cpu" else self._before
        file, timeout_s = str(Path(self._place) / "store"), timeout_s or TIMEOUT_S
        try:
            for rank in range(1, size):
                self._others.append(_Rank(threads))
                path = [entry for entry in sys.path if isinstance(entry, str)]
                other = str(device) if device.type == "cpu" else f"cuda:{(device.index or 0) + rank}"
                hello = Hello(rank, size, file, timeout_s, other, threads, path, os.getcwd())
                self._write(rank, frames.pack({"hello": True}, pickling.packed(hello)))
            for rank in range(1, size):
                self._wait_ready(rank)
            torch.set_num_threads(threads)
            self.ranks = connected(0, size, file, device, timeout_s)
        except BaseException:
            self._failed = True
            self.close()
            raise

    def tell(self, command: str, *given: Any) -> None:
        """Tell every other rank to do something, in order.

        Raises:
            DistributedError: one of them is gone.
        """
        frame = frames.pack({"do": command}, pickling.packed(given))
        for rank in range(1, len(self._others) + 1):
            self._write(rank, frame)

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Within, an exchange that fails is explained by what has become of the other ranks."""
        try:
            with explained(self._ended):
                yield
        except BaseException:
            self._failed = True  # who knows how far the others are
            raise

    def close(self) -> None:
        """End the processes."""
        others, self._others = self._others, []
        for other in others:
            other.let_go()
        for other in others:
            other.close(0.0 if self._failed else _END_S)
        torch.set_num_threads(self._before)
        shutil.rmtree(self._place, ignore_errors=True)

    def _write(self, rank: int, frame: bytes) -> None:
        try:
            self._others[rank - 1].write(frame)
        except OSError as error:
            self._failed = True
            raise lost(self._ended() or {rank: "is gone"}) from error

    def _wait_ready(self, rank: int) -> None:
        """Wait until a process has imported torch."""
        told = self._others[rank - 1].said(_START_S) or {"error": "did not start"}
        if "error" in told:
            raise lost({rank: told["error"]})

    def _ended(self) -> dict[int, str]:
        """By rank, why it has ended."""
        found: dict[int, str] = {}
        for rank, other in enumerate(self._others, 1):
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = other.process.wait(_END_S)
                told = other.said()
                found[rank] = in_words(code) if told is None else told["error"]
        return found
