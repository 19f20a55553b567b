"""Training steps on two threads: all threads in every kernel, one thread, or blocks of members in parallel.

Float32, fused Adam, by wall time in interleaved rounds, compared with serial training on one thread and on two. The
block size is the fastest on one thread; in parallel it is at most an equal share of the members. The machine should be
idle: otherwise its scheduler may put both threads on one core. `--apart` gives each thread a separate core.

    OMP_WAIT_POLICY=PASSIVE python benchmarks/threads.py [--models mlp] [--members 1 8 32] [--rounds 9] [--apart]
"""

from __future__ import annotations

import os
import statistics
import sys
import threading
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
from benchmarks.capture import MODELS, serial
from benchmarks.common import laps, milliseconds, options, write
from hfta_nb.engine.members import threads

Step = Callable[[], Any]


def stepper(
    build: Callable[[], nn.Module], members: int, x: Tensor, y: Tensor, way: str, size: int
) -> tuple[Step, hfta.FusedArray]:
    """A training step of an array with this use of threads."""
    array = hfta.fuse([build() for _ in range(members)])
    array.threads, array.block_size = way, size
    optimizer = hfta.optim.Adam(array, lr=1e-3, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        array.backward(F.cross_entropy, x, y)
        optimizer.step()

    return step, array


def measure(name: str, members: int, rounds: int, lap_s: float) -> dict[str, Any]:
    """Milliseconds of one step in each mode."""
    build, shape = MODELS[name]
    torch.manual_seed(0)
    x, y = torch.randn(shape), torch.randint(0, 10, shape[:1])
    array = hfta.fuse([build() for _ in range(members)])
    with threads.SingleThreaded():
        array.tune(F.cross_entropy, x, y, budget_s=0.3)
    size, share = array.block_size, -(-members // 2)
    sizes = {"kernels": size, "one": size} | ({"blocks": min(size, share)} if members > 1 else {})
    made = {way: stepper(build, members, x, y, way, of) for way, of in sizes.items()}
    alone = serial(build, members, x, y)

    def on_one() -> None:
        with threads.SingleThreaded():
            alone()

    steps: dict[str, Step] = {"serial, one thread": on_one, "serial": alone, **{k: v[0] for k, v in made.items()}}
    for step in steps.values():
        for _ in range(5):
            step()
    times = laps(steps, rounds, lap_s=lap_s, clock=time.perf_counter)
    median = {k: statistics.median(v) for k, v in times.items()}
    return {
        "block_size": sizes,
        "step_ms_median": milliseconds(times),
        "step_ms_least": milliseconds(times, min),
        "ratio_to_serial": {k: round(median["serial"] / v, 3) for k, v in median.items()},
        "ratio_to_serial_on_one_thread": {k: round(median["serial, one thread"] / v, 3) for k, v in median.items()},
    }


def keep_apart() -> None:
    """Put this thread on one core, and all existing ones on another: OpenMP's, and those for blocks."""
    here, there = sorted(os.sched_getaffinity(0))[:2]
    threads.run_parallel([lambda: None, lambda: None])
    torch.randn(1 << 20).sin()
    for thread in map(int, os.listdir("/proc/self/task")):
        os.sched_setaffinity(thread, {here if thread == threading.get_native_id() else there})


def main() -> int:
    parser = options(__doc__, members=[1, 2, 8, 32], rounds=9, lap=0.03, models=list(MODELS))
    parser.add_argument("--apart", action="store_true", help="a core for each thread, on a machine that is not idle")
    given = parser.parse_args()
    torch.set_num_threads(2)
    if given.apart:
        keep_apart()
    rows = []
    for name in given.models:
        for members in given.members:
            row = {"model": name, "members": members, **measure(name, members, given.rounds, given.lap)}
            rows.append(row)
            print(f"{name:11} {members:3}  {row['step_ms_median']}  {row['ratio_to_serial_on_one_thread']}", flush=True)
    what = "training steps by the clock, two threads, float32"
    print(write("threads_cpu", {"what": what, "wait": os.environ.get("OMP_WAIT_POLICY", ""), "rows": rows}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
