"""User loops without tuning, compared with the same loops tuned by hand and with serial training.

On one thread, Adam, by processor time, on a GPU by the clock. An array is trained without `tune` for `--steps` steps,
each of which is timed: they include self-tuning and the measurement of kernels. "tuned" is a warm array with the block
size that `array.tune` finds (for the split form: the faster of that and of all members at once). Laps of both and of
serial training are interleaved. `speed_of_tuned` is the speed of the loop without `tune` relative to the tuned one,
with a target of 0.9; `speed_of_serial` is relative to serial training; `first_calls` are the first ten steps, in units
of serial steps. On a GPU, "kernel by kernel" is the same loop without CUDA graphs
(`hfta_nb.engine.replay.program_graphs`).

    python benchmarks/own_loops.py [--device cuda] [--json] [--members 8 32] [--steps 100] [--rounds 15] [--lap 0.05]

Kernels that are compiled in the background are used by the next process, so run it twice.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import hfta_nb as hfta
from benchmarks.common import calls_in, laps, milliseconds, options, write
from benchmarks.small_models import MODELS
from hfta_nb.engine.array import FusedArray
from hfta_nb.engine.replay import cache_entry

Call = Callable[[FusedArray, Tensor, Tensor], Any]
_WARM, _FIRST = 16, 10


def whole(array: FusedArray, x: Tensor, y: Tensor) -> None:
    """By `array.backward`."""
    array.backward(F.cross_entropy, x, y)


def split(array: FusedArray, x: Tensor, y: Tensor) -> None:
    """By `array(x)`, one loss over all members' outputs, and autograd."""
    loss = F.cross_entropy(array(x).flatten(0, 1), y.repeat(len(array))) * len(array)
    loss.backward()  # type: ignore[no-untyped-call]


def by_losses(array: FusedArray, x: Tensor, y: Tensor) -> None:
    """By `array(x)` and `array.losses`."""
    array.losses(F.cross_entropy, array(x), y).sum().backward()


def evaluate(array: FusedArray, x: Tensor, y: Tensor) -> None:
    """By `array.evaluate`."""
    array.evaluate(F.cross_entropy, x, y)


FORMS: dict[str, Call] = {"backward": whole, "array(x)": split, "losses": by_losses, "evaluate": evaluate}


def stepper(array: FusedArray, form: str, x: Tensor, y: Tensor) -> Callable[[], None]:
    """A step of this form, with an optimizer if it trains."""
    call = FORMS[form]
    if form == "evaluate":
        array.eval()
        return lambda: call(array, x, y)
    optimizer = hfta.optim.Adam(array, lr=1e-3, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        call(array, x, y)
        optimizer.step()

    return step


def serial(modules: list[nn.Module], form: str, x: Tensor, y: Tensor) -> Callable[[], None]:
    """The same step, one member after another."""
    if form == "evaluate":
        modules = [m.eval() for m in modules]

        @torch.no_grad()
        def score() -> None:
            for module in modules:
                F.cross_entropy(module(x), y)

        return score
    optimizers = [torch.optim.Adam(m.parameters(), lr=1e-3, fused=True) for m in modules]

    def step() -> None:
        for module, optimizer in zip(modules, optimizers, strict=True):
            optimizer.zero_grad()
            F.cross_entropy(module(x), y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    return step


def kernel_by_kernel(step: Callable[[], None]) -> Callable[[], None]:
    """The step without CUDA graphs."""

    def run() -> None:
        cache_entry.DEVICES.discard("cuda")
        try:
            step()
        finally:
            cache_entry.DEVICES.add("cuda")

    return run


def clock_on(device: torch.device) -> Callable[[], float]:
    """The processor's time; on a GPU the time by the clock, once the device has done its work."""
    if device.type != "cuda":
        return time.process_time

    def clock() -> float:
        torch.cuda.synchronize(device)
        return time.perf_counter()

    return clock


def tuned(modules: list[nn.Module], form: str, block: int, x: Tensor, y: Tensor) -> Callable[[], None]:
    """A step of this form by a warm array with this block size."""
    array = hfta.fuse(modules)
    array.block_size = block
    step = stepper(array, form, x, y)
    for _ in range(_WARM):
        step()
    return step


def measure(name: str, members: int, form: str, dtype: torch.dtype, given: argparse.Namespace) -> dict[str, Any]:
    """One row: milliseconds of a step, and ratios."""
    build, shape = MODELS[name]
    torch.manual_seed(0)
    device = torch.device(given.device)
    clock = clock_on(device)
    x, y = torch.randn(shape, dtype=dtype, device=device), torch.randint(0, 10, shape[:1], device=device)
    modules = [build().to(device, dtype) for _ in range(members)]
    alone = serial([copy.deepcopy(m) for m in modules], form, x, y)
    for _ in range(3):
        alone()
    array = hfta.fuse(modules)
    itself, times = stepper(array, form, x, y), []
    for _ in range(given.steps):
        begin = clock()
        itself()
        times.append(clock() - begin)
    other = hfta.fuse(modules)
    other.tune(F.cross_entropy, x, y, budget_s=0.3)
    blocks = {other.block_size, members} if form in ("array(x)", "evaluate") else {other.block_size}
    steps = {f"tuned, {block}": tuned(modules, form, block, x, y) for block in sorted(blocks)}
    every = {"serial": alone, "by itself": itself, **steps}
    if device.type == "cuda":
        every["kernel by kernel"] = kernel_by_kernel(stepper(hfta.fuse(modules), form, x, y))
        for _ in range(_WARM):
            every["kernel by kernel"]()
    found = laps(every, given.rounds, calls=calls_in(given.lap, itself), clock=clock, warm_up=1)
    median = {key: statistics.median(v) for key, v in found.items()}
    best = min(median[key] for key in steps)
    ways = [how for how in array.explain()["how"] if how.startswith("block size") or "captured" in how]
    return {
        "ms_median": milliseconds(found),
        "speed_of_tuned": round(best / median["by itself"], 3),
        "speed_of_serial": round(median["serial"] / median["by itself"], 3),
        "first_calls": [round(seconds / median["serial"], 2) for seconds in times[:_FIRST]],
        "hundred_steps_of_serial": round(sum(times) / (median["serial"] * len(times)), 3),
        "how": ways,
    }


def main() -> int:
    parser = options(__doc__, json=False, members=[8, 32], models=list(MODELS), rounds=15, lap=0.05, quick=False)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--forms", nargs="+", choices=list(FORMS), default=list(FORMS))
    parser.add_argument("--dtypes", nargs="+", choices=["float32", "float64"], default=["float32"])
    parser.add_argument("--steps", type=int, default=100, help="of the loop that is not tuned, before it is timed")
    given = parser.parse_args()
    if given.quick:
        given.members, given.rounds, given.lap = [2], 3, 0.005
    torch.set_num_threads(1)
    rows = []
    for name in given.models:
        for members in given.members:
            for dtype in given.dtypes:
                for form in given.forms:
                    found = measure(name, members, form, getattr(torch, dtype), given)
                    row = {"model": name, "members": members, "dtype": dtype, "form": form, **found}
                    rows.append(row)
                    if not given.json:
                        told = f"{row['speed_of_tuned']:.2f} of tuned, {row['speed_of_serial']:.2f} of serial"
                        print(f"{name:11} {members:3} {dtype} {form:9} {told}, {row['first_calls']}", flush=True)
    timed = "processor time, one thread" if given.device == "cpu" else "by the clock"
    what = f"loops of one's own without tune, beside tuned ones and serial training; {timed}"
    content = {"what": what, "rows": rows}
    whole_table = given.models == list(MODELS) and given.forms == list(FORMS) and given.members == [8, 32]
    part = "" if whole_table else "_some"  # a part does not replace the whole table
    path = None if given.quick else write(f"own_loops{part}_{given.device}", content)
    if given.json:
        print(json.dumps(content, indent=2))
    elif path is not None:
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
