"""The child process of `sandbox`, started by this file's path; torch is its only import.

Reads lists of calls from standard input, each a line of JSON. Writes the number of each call before making it, and
"end" after the last. It ends with its input, or when nothing has been asked for some seconds.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
import time
from typing import Any

_LEAST, _ENOUGH_S = 3, 0.2
_IDLE_S = 60.0
"""So long it waits for more, with some 200 MB of memory."""


def main() -> None:
    """Run all calls."""
    out = os.dup(1)
    os.dup2(2, 1)  # output of libraries
    idle: threading.Timer | None = None
    for line in sys.stdin:
        if idle is not None:
            idle.cancel()
        _run_all(json.loads(line), out)
        idle = threading.Timer(_IDLE_S, os._exit, (0,))
        idle.daemon = True
        idle.start()


def _run_all(given: dict[str, Any], out: int) -> None:
    import torch

    torch.set_num_threads(given["threads"])
    with torch.no_grad(), torch._C._AutoDispatchBelowAutograd():
        for number, call in enumerate(given["calls"]):
            os.write(out, b"%d\n" % number)
            _run(call, given["rounds"])
            gc.collect()  # the heap checker runs when memory is freed
    os.write(out, b"end\n")


def _run(call: dict[str, Any], rounds: int) -> None:
    import torch

    name, overload = call["function"]
    function = getattr(getattr(torch.ops.aten, name), overload)
    args, kwargs = _made(call["args"]), {k: _made(v) for k, v in call["kwargs"].items()}
    until = time.monotonic() + _ENOUGH_S
    for number in range(rounds):
        if number >= _LEAST and time.monotonic() > until:
            break
        try:
            function(*args, **kwargs)
        except (RuntimeError, ValueError, TypeError, NotImplementedError):
            break  # the call is rejected, which does not end a process


def _made(value: Any) -> Any:
    import torch

    if isinstance(value, list):
        return [_made(v) for v in value]
    if not isinstance(value, dict):
        return value
    if "torch" in value:
        return getattr(torch, value["torch"])
    size, stride, dtype = value["size"], value["stride"], getattr(torch, value["dtype"])
    need = 1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True)) if 0 not in size else 0
    memory = torch.randn(need).to(dtype) if dtype.is_floating_point else torch.zeros(need, dtype=dtype)
    return memory.as_strided(size, stride)


if __name__ == "__main__":
    main()
