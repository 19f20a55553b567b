"""Processes that are forked from one that has imported torch, so that they start at once.

With the fixture `forked` these are the workers of runs and of pools, in place of those that
`hfta_nb.workers.processes.child_process` starts.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

import pytest

from hfta_nb.workers.processes import child_process

_spawn = child_process.spawn
_LOADED = [
    "hfta_nb.study",
    "hfta_nb.workers.pools.task",
    "hfta_nb.workers.processes.child",
    "hfta_nb.study.executors.study_task",
    "torch._dynamo",  # what torch's first optimizer imports
    "tests.executors.test_pools",
]


def context() -> Any:
    """Whose processes they are."""
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(_LOADED)
    return found


class Forked:
    """What the package uses of `subprocess.Popen`."""

    def __init__(self, program: str, own: Mapping[str, str]) -> None:
        made, theirs, mine = context(), [], []
        for number in range(3):
            read, write = made.Pipe(duplex=False)
            theirs.append(write if number else read)
            mine.append(read if number else write)
        self.stdin, self.stdout, self.stderr = mine
        given = program, theirs, {**os.environ, **own}, os.getcwd(), os.getpid()
        self._process = made.Process(target=_begin, args=given, daemon=True)
        self._process.start()
        for end in theirs:
            end.close()
        self.pid, self._ended = self._process.pid, threading.Event()
        threading.Thread(target=self._wait, daemon=True).start()

    def _wait(self) -> None:
        self._process.join()  # one thread alone: the code is read once
        self._ended.set()

    def poll(self) -> int | None:
        return self._process.exitcode if self._ended.is_set() else None

    def wait(self, timeout: float | None = None) -> int:
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired("a forked process", timeout or 0.0)
        code = self._process.exitcode
        assert code is not None
        return code

    def kill(self) -> None:
        self._process.kill()


def _begin(program: str, pipes: Sequence[Connection], environment: Mapping[str, str], cwd: str, parent: int) -> None:
    for number, pipe in enumerate(pipes):
        os.dup2(pipe.fileno(), number)
        pipe.close()
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]  # it may have children
    sys.exit(importlib.import_module(program).main(parent))


def spawn(command: Sequence[str], own: Mapping[str, str], heard: bool = True, session: bool = False) -> Any:
    """A forked process where the command is a program of the package, else what the package makes of it."""
    if command[-3:-2] == ("-m",) and heard:
        return Forked(command[-2], own)  # its module imports the `main` that it runs
    return _spawn(command, own, heard, session)


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are forked."""
    monkeypatch.setattr(child_process, "spawn", spawn)
