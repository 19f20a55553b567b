"""Runs calls that plain torch would not make in a child process first, so that a fault cannot end this process.

A library's kernel may write past its memory for some shapes. oneDNN (torch 2.13) does so in the backward pass of 1 x 1
convolutions of stride 2 with channels last and 2 to 6 channels, on processors with AVX2 and without AVX-512. A plain
module whose images have channels first never calls these kernels; a step that is converted to channels last does.
Therefore a call that is not known to be safe (`known_safe`) is first made some twenty times in a child process under
glibc's heap checker, which detects a write past a block when the block is freed. The outcome is stored with the times
of kernels (`kept`). It holds for one processor, build of torch, number of threads and limit of oneDNN's instructions.

Known to be safe, without a child:

- convolutions of images in float32 with channels last that are not both 1 x 1 and strided, or whose channels per group
  are a multiple of 8;
- all other kernels of torch's own (norms, pools, pointwise functions): they accept any strides, and plain modules with
  channels last call them;
- matrix products by oneDNN, copied or not: the primitive that torch itself calls for them in bfloat16, on ARM, and
  under the public setting `torch.backends.mkldnn.matmul.fp32_precision`;
- this package's own kernels, whose tests run under AddressSanitizer; whether the processor supports their instructions
  is tested after compilation (`native.alive`).
"""

from __future__ import annotations

import atexit
import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from hfta_nb.engine.kernels.strategy.kernel_variants import Operand
from hfta_nb.engine.kernels.strategy.times import Kept
from hfta_nb.engine.kernels.strategy.timing_cache import kept

_CHILD = Path(__file__).with_name("sandboxed.py")
_ROUNDS = 20
_TIME_S = 60.0
_CHECKER = "libc_malloc_debug.so.0"
"""A library of glibc from 2.34 on; earlier versions contain it. If it is missing, the loader goes on without it."""
_CRASHES = ("SIGSEGV", "SIGBUS", "SIGABRT", "SIGILL", "SIGFPE", "SIGTRAP")
"""Signals that a kernel causes. Others come from outside: the user, or a lack of memory."""
_LANES = 8

_aten = torch.ops.aten
_BACKWARD = _aten.convolution_backward.default
_ONEDNN = getattr(getattr(_aten, "mkldnn_convolution", None), "default", None)


class Tried(NamedTuple):
    """A call of an aten operator: its overload, and its arguments with an `Operand` in place of each tensor."""

    function: Any
    args: Sequence[Any]
    kwargs: Mapping[str, Any] = {}

    def __str__(self) -> str:
        given = [*map(str, self.args), *(f"{k}={v}" for k, v in self.kwargs.items())]
        return f"{self.function} " + " ".join(part.replace(" ", "") for part in given)


def survives(calls: Sequence[Tried], device: torch.device) -> bool:
    """True if a process survives these calls. Calls that are not known to be safe are made in one child process.

    Args:
        calls: run on scratch memory of the operands' geometries.
        device: of the tensors. On a GPU nothing is tried: a faulty kernel does not end the process.

    Returns:
        False also if that cannot be tested.
    """
    if device.type != "cpu":
        return True
    known = kept(device)
    found = {str(call): call for call in calls if not known_safe(call)}
    records = {what: known.get(_key(what)) for what in found}
    if any(times is not None and None in times.values() for times in records.values()):
        return False
    unknown = {what: call for what, call in found.items() if records[what] is None}
    return not unknown or _tried(unknown, known)


def known_safe(call: Tried) -> bool:
    """True if a call is a convolution of images that needs no child process; see above.

    Determined by a sweep of 10,000 shapes with AVX2 under the heap checker (docs/decisions/0024).
    """
    given = call.args
    at = 1 if call.function is _BACKWARD else 0
    x, weight = given[at], given[at + 1]
    if any(isinstance(a, Operand) and a.dtype != torch.float32 for a in given):
        return False
    if len(weight.size) != 4 or (call.function is not _ONEDNN and given[at + 6]):  # transposed
        return False
    strides = given[4] if call.function in (_BACKWARD, _ONEDNN) else given[3]
    groups = given[6] if call.function is _ONEDNN else given[at + 8]
    wide = math.prod(weight.size[2:]) > 1
    return wide or all(step == 1 for step in strides) or (x.size[1] // groups) % _LANES == 0


def _tried(calls: Mapping[str, Tried], known: Kept) -> bool:
    """Make calls in a child process, and store whether they ended it."""
    begin = time.perf_counter()
    code, output = _child(list(calls.values()))
    names = list(calls)
    alive = code == 0 and output[-1:] == ["end"]
    if alive:
        each = max(time.perf_counter() - begin, 1e-9) / len(names)
        for what in names:
            known.put(_key(what), {"child": each})
    elif _crashed(code) and output:
        known.put(_key(names[int(output[-1])] if output[-1] != "end" else names[-1]), {"child": None})
    else:  # the next attempt may succeed
        for what in names:
            known.put(_key(what), {"child": None}, lasting=False)
    return alive


def _child(calls: Sequence[Tried]) -> tuple[int | None, list[str]]:
    """The exit code, 0 if the child goes on, or None if there is none, and the output; failures are no errors."""
    code: int | None = None
    output = b""
    with contextlib.suppress(OSError, ValueError, TypeError, subprocess.SubprocessError):
        task = {
            "threads": torch.get_num_threads(),
            "rounds": _ROUNDS,
            "calls": [
                {
                    "function": (c.function._schema.name.removeprefix("aten::"), c.function._overloadname),
                    "args": [_plain(a) for a in c.args],
                    "kwargs": {k: _plain(v) for k, v in c.kwargs.items()},
                }
                for c in calls
            ],
        }
        code, output = _CHILDREN.ask(json.dumps(task).encode())
    return code, output.decode(errors="replace").split()


class _Children:
    """One child process at a time, which is asked again until it ends: to import torch takes it seconds.

    It ends by itself when it is not asked for a minute, or when this process has ended.

    Attributes:
        started_s: how long this process has waited for children to start.
    """

    def __init__(self) -> None:
        self.started_s = 0.0
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._kind: Any = None

    def ask(self, task: bytes) -> tuple[int | None, bytes]:
        """The exit code, 0 if the child goes on, or None if it took too long, and what it has written."""
        with self._lock:
            fresh = self._started()
            code, output = self._asked(task, fresh)
            if code == 0 and not output and not fresh:  # it has just ended, as it had not been asked for long
                code, output = self._asked(task, self._started())
            return code, output

    def _started(self) -> bool:
        """Start a child unless there is one of this process, with the same environment; whether one was started."""
        kind = os.getpid(), _CHILD, _environment()
        if self._process is not None and self._process.poll() is None and self._kind == kind:
            return False
        if self._process is not None and self._kind[0] == kind[0]:
            self.close()
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(_CHILD)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=kind[2],
            start_new_session=True,  # an interrupt of the kernel is sent to its whole process group
        )
        self._kind = kind
        return True

    def _asked(self, task: bytes, fresh: bool) -> tuple[int | None, bytes]:
        process, output = self._process, b""
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        begin = time.perf_counter()
        late = threading.Timer(_TIME_S, process.kill)
        late.start()
        try:
            with contextlib.suppress(BrokenPipeError):  # how it has ended is found below
                process.stdin.write(task + b"\n")
                process.stdin.flush()
            for line in process.stdout:
                if fresh and not output:
                    self.started_s += time.perf_counter() - begin
                output += line
                if line == b"end\n":
                    return 0, output
            code = process.wait()
            return (None if late.finished.is_set() else code), output
        finally:
            late.cancel()

    def close(self) -> None:
        """End the child."""
        process, self._process = self._process, None
        if process is None or self._kind[0] != os.getpid():
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # what was not written to it
                    pipe.close()


_CHILDREN = _Children()
"""Of this process."""


def started_s() -> float:
    """How long this process has waited for children to start, which happens once."""
    return _CHILDREN.started_s


atexit.register(_CHILDREN.close)


def _environment() -> dict[str, str]:
    """This process's environment with glibc's heap checker and without a GPU."""
    checked = {
        "LD_PRELOAD": " ".join(filter(None, (_CHECKER, os.environ.get("LD_PRELOAD")))),
        "GLIBC_TUNABLES": ":".join(filter(None, (os.environ.get("GLIBC_TUNABLES"), "glibc.malloc.check=3"))),
        "MALLOC_CHECK_": "3",
    }
    return {**os.environ, **checked, "CUDA_VISIBLE_DEVICES": ""}


def _crashed(code: int | None) -> bool:
    try:
        return code is not None and code < 0 and signal.Signals(-code).name in _CRASHES
    except ValueError:
        return False


def _plain(value: Any) -> Any:
    if isinstance(value, Operand):
        dtype = str(value.dtype).removeprefix("torch.")
        return {"size": list(value.size), "stride": list(value.stride), "dtype": dtype}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, torch.dtype | torch.memory_format | torch.layout):
        return {"torch": str(value).removeprefix("torch.")}
    return value


def _key(what: str) -> str:
    return f"survives {what}"
