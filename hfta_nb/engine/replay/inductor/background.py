"""Compiles a step in a child process while training goes on.

The child compiles the same graph, which fills the compiler's caches on disk, and ends. The training process then
compiles again, which takes as long as reading these caches. Nothing else is passed back.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from hfta_nb.engine.replay.inductor.compile import Compiled
from hfta_nb.engine.replay.source import Source
from hfta_nb.engine.replay.trace import NotRecordableError

_CHILD = Path(__file__).with_name("compiling_child.py")
_MATMUL = ("fp32_precision", "allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction")


class BackgroundCompile:
    """A child process that compiles steps.

    Args:
        sources: of the steps; all but the first are left out if they fail.

    Raises:
        NotRecordableError: the first cannot be written as draws and one graph.
        OSError: the process cannot be started.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        sent = [_settings()]

        def send(module: GraphModule, examples: list[Tensor]) -> Callable[..., Any]:
            sent.append(_request(module, examples))
            return module

        Compiled(sources[0], send)
        for other in sources[1:]:
            with suppress(NotRecordableError):
                Compiled(other, send)
        self._begin, self.seconds = time.perf_counter(), 0.0
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(_CHILD)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # an interrupt of the kernel is sent to its whole process group
        )
        weakref.finalize(self, _end, self._process)
        assert self._process.stdin is not None  # it is a pipe
        with self._process.stdin as pipe:  # the child reads before it does anything else
            pipe.writelines(sent)

    def is_done(self) -> bool:
        """True if the child has ended; `seconds` is how long it took then."""
        if self._process.poll() is None:
            return False
        self.seconds = self.seconds or time.perf_counter() - self._begin
        return True

    @property
    def failure(self) -> str:
        """Why the child did not compile, once it has ended; empty if it did."""
        code = self._process.returncode
        return f"the process that compiled it ended with exit code {code}" if code else ""


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def _settings() -> bytes:
    """What the keys of the compiler's caches depend on, beside the graphs."""
    matmul = torch.backends.cuda.matmul
    settings = {
        "paths": [*sys.path, *filter(None, [os.getcwd() if "" in sys.path else ""])],
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "matmul": {name: getattr(matmul, name) for name in _MATMUL},
    }
    return pickle.dumps(settings)


def _request(module: GraphModule, examples: Sequence[Tensor]) -> bytes:
    """A graph, as the child reads it."""
    views = [(t.size(), t.stride(), t.storage_offset(), t.dtype, t.device) for t in examples]
    return pickle.dumps((module, views))
