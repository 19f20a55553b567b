"""One process per member, all training at the same time; on a GPU also through NVIDIA's Multi-Process Service (MPS)."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from benchmarks.suite.job import Job, UnavailableError
from benchmarks.suite.modes.base import Lap, Mode

ROOT = Path(__file__).resolve().parents[3]
PROCESS_BYTES = {"cpu": 300 * 2**20, "cuda": 2**30}
"""The most memory that a process with torch needs besides its member."""


class Child:
    """A process that trains one member; it is started once and used for several jobs."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        given = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.suite.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=given,
            cwd=ROOT,
        )

    def ask(self, **message: Any) -> None:
        """Send a request without waiting for the answer.

        Raises:
            UnavailableError: the process has ended.
        """
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(message) + "\n")
            self.process.stdin.flush()
        except OSError as error:
            raise UnavailableError("a member's process ended") from error

    def answer(self) -> dict[str, Any]:
        """The answer of the process.

        Raises:
            UnavailableError: the process has ended, or failed; with its reason.
        """
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise UnavailableError(f"a member's process ended with status {self.process.wait()}")
        found: dict[str, Any] = json.loads(line)
        if "why" in found:
            raise UnavailableError(f"a member's process failed: {found['why']}")
        return found

    def close(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


_idle: list[Child] = []


class Processes(Mode):
    """As many processes as members, which begin each lap together; a lap ends with the last of them.

    They share the cores of this process, and each has as many threads as this one.
    """

    on_torch_stream = False
    environment: Mapping[str, str] = {}

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        need, free = job.members * PROCESS_BYTES[job.where.type], psutil.virtual_memory().available
        if need > 0.8 * free:
            raise UnavailableError(
                f"{job.members} processes may need {need / 2**30:.0f} GiB, {free / 2**30:.0f} are free"
            )
        self.children: list[Child] = []
        try:
            while len(self.children) < job.members:
                self.children.append(self._child())
            for index, child in enumerate(self.children):
                child.ask(do="build", job=dataclasses.asdict(job), index=index)
            for child in self.children:
                child.answer()
        except BaseException:
            self._end()
            raise

    def _child(self) -> Child:
        return _idle.pop() if _idle else Child(self.environment)

    def lap(self, steps: int) -> Lap:
        begin_s = time.perf_counter()
        answers = self._all(do="train", steps=steps)
        wall_s = time.perf_counter() - begin_s
        self.done += steps
        losses = [list(step) for step in zip(*(a["losses"] for a in answers), strict=True)]
        return Lap(wall_s, sum(a["cpu_s"] for a in answers), None, losses)

    def train(self, steps: int) -> Any:
        raise NotImplementedError("the members' processes train")

    losses = train

    def own_memory(self) -> int | None:
        """Memory that only these processes have, the interpreters and torch included."""
        return sum(answer["bytes"] for answer in self._all(do="memory"))

    def _all(self, **message: Any) -> list[dict[str, Any]]:
        """Ask all, then wait for all."""
        try:
            for child in self.children:
                child.ask(**message)
            return [child.answer() for child in self.children]
        except UnavailableError:
            self._end()
            raise

    def close(self) -> None:
        self._all(do="forget")
        _idle.extend(self.children)
        self.children = []

    def _end(self) -> None:
        while self.children:
            self.children.pop().close()


class ProcessesMps(Processes):
    """The same under a separate MPS daemon, so that kernels of several processes run at the same time."""

    def __init__(self, job: Job) -> None:
        if job.where.type != "cuda":
            raise UnavailableError("MPS is for NVIDIA GPUs")
        self.daemon = MpsDaemon()
        self.environment = self.daemon.environment
        try:
            super().__init__(job)
        except BaseException:
            self.daemon.close()
            raise

    def _child(self) -> Child:
        return Child(self.environment)

    def close(self) -> None:
        self._end()
        self.daemon.close()


class MpsDaemon:
    """NVIDIA's MPS control daemon, with its pipes in a separate folder.

    Raises:
        UnavailableError: it is missing, or does not start.
    """

    def __init__(self) -> None:
        program = shutil.which("nvidia-cuda-mps-control")
        if program is None:
            raise UnavailableError("nvidia-cuda-mps-control is not on the PATH")
        self.folder = tempfile.TemporaryDirectory(prefix="hfta-mps-")
        names = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")
        self.environment = dict.fromkeys(names, self.folder.name)
        self.program = program
        started = subprocess.run(
            [program, "-d"], env={**os.environ, **self.environment}, capture_output=True, text=True
        )
        if started.returncode:
            self.folder.cleanup()
            raise UnavailableError(f"the MPS daemon did not start: {(started.stderr or started.stdout).strip()[:200]}")

    def close(self) -> None:
        subprocess.run(
            [self.program], input="quit\n", env={**os.environ, **self.environment}, capture_output=True, text=True
        )
        self.folder.cleanup()


def end_idle() -> None:
    """End the processes that wait for a job."""
    while _idle:
        _idle.pop().close()
