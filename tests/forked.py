"""Processes that are forked from one that has imported torch, so that they start at once.

With the fixture `forked` these are the workers of crews, in place of those that `hfta_nb.processes.spawning` starts.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import subprocess
import threading
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

import pytest

_LOADED = ["hfta_nb.study", "hfta_nb.crews.child", "hfta_nb.crews.task", "tests.executors.test_crews"]


def context() -> Any:
    """Whose processes they are."""
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(_LOADED)
    return found


class Forked:
    """What the package uses of `subprocess.Popen`."""

    def __init__(self, command: Sequence[str], own: Mapping[str, str], heard: bool = True) -> None:
        made, theirs, mine = context(), [], []
        for number in range(3):
            read, write = made.Pipe(duplex=False)
            theirs.append(write if number else read)
            mine.append(read if number else write)
        self.stdin, self.stdout, self.stderr = mine
        given = command[-1].removesuffix("_main"), theirs, dict(own), os.getpid()
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


def _begin(program: str, pipes: Sequence[Connection], own: Mapping[str, str], parent: int) -> None:
    for number, pipe in enumerate(pipes):
        os.dup2(pipe.fileno(), number)
        pipe.close()
    os.environ.update(own)
    importlib.import_module(program).main(parent)


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers of crews are forked."""
    from hfta_nb.crews import processes

    made: Any = Forked
    monkeypatch.setattr(processes, "spawn", made)
