"""The child process of `background`, started by this file's path. Reads settings, and graphs with the geometries of
their inputs, from standard input, and compiles the graphs."""

from __future__ import annotations

import io
import os
import pickle
import sys
from contextlib import nullcontext, suppress


def main() -> None:
    """Compile; the exit code is 1 on an error."""
    given = io.BytesIO(sys.stdin.buffer.read())
    settings = pickle.load(given)  # noqa: S301 - from the process that has started this one
    sys.path[:] = settings["paths"]
    if hasattr(os, "nice"):
        os.nice(10)  # training goes on meanwhile
    import torch

    torch.set_num_threads(settings["threads"])
    torch.use_deterministic_algorithms(settings["deterministic"])
    for name, value in settings["matmul"].items():
        if getattr(torch.backends.cuda.matmul, name) != value:  # a default that is set is another key of the cache
            setattr(torch.backends.cuda.matmul, name, value)
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    from hfta_nb.engine.replay.inductor.compile import _compiled

    needed = True  # of the first one
    while given.tell() < given.getbuffer().nbytes:
        module, views = pickle.load(given)  # noqa: S301
        with FakeTensorMode(shape_env=ShapeEnv(), static_shapes=True):
            examples = []
            for size, stride, offset, dtype, device in views:
                reach = offset + 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
                memory = torch.empty(offset if 0 in size else reach, dtype=dtype, device=device)
                examples.append(memory.as_strided(size, stride, offset))
        with torch.no_grad(), torch._C._DisableAutocast(), nullcontext() if needed else suppress(Exception):
            _compiled(module, examples)
        needed = False


if __name__ == "__main__":
    main()
