"""The processes of the ranks beside rank 0, which rank 0 starts and ends."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import torch

from hfta_nb.distributed import frames
from hfta_nb.distributed.follower import Hello
from hfta_nb.distributed.ranks import Ranks, connected
from hfta_nb.errors import DistributedError

TIMEOUT_S = 300.0
"""How long an exchange between ranks may take before the run fails."""

_START_S = 120.0
_END_S = 5.0
_COMMAND = (sys.executable, "-P", "-m", "hfta_nb.distributed.follower_main")
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class Crew:
    """The ranks 1, 2, ... of one machine, each a process with its device and its share of the CPU's threads.

    Args:
        size: how many ranks there are, rank 0 among them.
        device: of rank 0; of GPUs the others take those that follow.
        timeout_s: how long an exchange may take; `TIMEOUT_S` by default.

    Attributes:
        ranks: rank 0 among them.

    Raises:
        DistributedError: a process does not start, or they can't meet.
    """

    ranks: Ranks

    def __init__(self, size: int, device: torch.device, timeout_s: float | None = None) -> None:
        self._place = tempfile.mkdtemp(prefix="hfta_nb-ranks-")
        self._before = torch.get_num_threads()
        self._failed = False
        self._processes: list[subprocess.Popen[bytes]] = []
        threads = max(1, self._before // size) if device.type == "cpu" else self._before
        file, timeout_s = str(Path(self._place) / "store"), timeout_s or TIMEOUT_S
        try:
            for rank in range(1, size):
                self._processes.append(_started(threads))
                path = [entry for entry in sys.path if isinstance(entry, str)]
                other = str(device) if device.type == "cpu" else f"cuda:{(device.index or 0) + rank}"
                hello = Hello(rank, size, file, timeout_s, other, threads, path, os.getcwd())
                self._write(rank, frames.pack(hello))
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
        frame = frames.pack((command, *given))
        for rank in range(1, len(self._processes) + 1):
            self._write(rank, frame)

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Within, an exchange that fails is explained by what has become of the other ranks."""
        try:
            yield
        except DistributedError as error:
            self._failed = True
            found = self._ended()
            if not found:
                raise
            raise _lost(found) from error
        except BaseException:
            self._failed = True  # who knows how far the others are
            raise

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            with contextlib.suppress(OSError):
                _pipe(process.stdin).close()
        for process in self._processes:
            try:
                process.wait(0.0 if self._failed else _END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            _pipe(process.stdout).close()
        self._processes = []
        torch.set_num_threads(self._before)
        shutil.rmtree(self._place, ignore_errors=True)

    def _write(self, rank: int, frame: bytes) -> None:
        pipe = _pipe(self._processes[rank - 1].stdin)
        try:
            pipe.write(frame)
            pipe.flush()
        except OSError as error:
            self._failed = True
            raise _lost(self._ended() or {rank: "is gone"}) from error

    def _wait_ready(self, rank: int) -> None:
        """Wait until a process has imported torch."""
        pipe = _pipe(self._processes[rank - 1].stdout)
        readable = select.select([pipe], [], [], _START_S)[0]
        data = frames.read(pipe) if readable else None  # type: ignore[arg-type]
        told = "" if data is None else frames.unpack(data)
        if told != "ready":
            raise _lost({rank: told or "did not start"})

    def _ended(self) -> dict[int, str]:
        """By rank, why it has ended; of ranks that were lost because another one ended nothing."""
        found: dict[int, str] = {}
        for rank, process in enumerate(self._processes, 1):
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(_END_S)
                data = frames.read(_pipe(process.stdout))  # type: ignore[arg-type]
                found[rank] = _in_words(code) if data is None else str(frames.unpack(data))
        own = {rank: why for rank, why in found.items() if not why.startswith(DistributedError.__name__)}
        return own or found


def _started(threads: int) -> subprocess.Popen[bytes]:
    package = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path, **dict.fromkeys(_THREADS, str(threads))}
    try:
        # A session of its own: Ctrl-C in a terminal is for rank 0, which ends the others.
        return subprocess.Popen(
            _COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, start_new_session=True
        )
    except OSError as error:
        raise DistributedError(f"the process of a rank can't be started ({error})", where=sys.executable) from error


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None  # asked for
    return pipe


def _in_words(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


def _lost(found: dict[int, str]) -> DistributedError:
    """The error of ranks that are gone, each with its reason."""
    what = "; ".join(f"rank {rank} {why}" for rank, why in found.items())
    return DistributedError(what, where="devices", remedy="run(resume=True) goes on from the last checkpoint")
