"""Training steps of two commits of this repository, side by side.

Each commit is checked out into a temporary folder and runs in a process of its own. Both time a lap in turn, so that
whatever else the machine does meets both. `ratio` is the speed of the later commit relative to the earlier: the median
over pairs of processes of the median over rounds of the earlier's time over the later's; `of_pairs` are the pairs'. One
process may be faster than another of the same code by where its memory lies. Block sizes are the ones that the earlier
commit's `tune` finds, in both. One thread, float32, Adam, processor time.

The first pair of processes runs each step untimed, as it measures kernels. What it finds is kept, and two kernels that
are nearly as fast may come out either way: `--loss mean_square` tells such rows from those that cross entropy decides.

    python benchmarks/commits.py BEFORE AFTER [--members 1 8 32] [--models ...] [--pairs 5] [--rounds 7] [--lap 0.1]
        [--forms backward "array(x)"] [--loss cross_entropy]
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

if __package__ in (None, "") and "--child" not in sys.argv:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

Job = tuple[str, int, str, str]
"""Model, members, form, loss."""

FORMS = ("backward", "array(x)")
_WARM = 12
_ROOT = Path(__file__).resolve().parents[1]


# The child, which imports the package of its own checkout.


def _stepper(name: str, members: int, form: str, loss: str, block: int | None) -> tuple[Callable[[], None], int]:
    """A warm training step, and the block size it has."""
    import torch
    import torch.nn.functional as F

    # From the folder of this file, not of the checkout: both commits get the same models.
    from small_models import MODELS

    import hfta_nb as hfta

    def mean_square(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return out.square().mean()

    build, shape = MODELS[name]
    loss_fn = {"cross_entropy": F.cross_entropy, "mean_square": mean_square}[loss]
    torch.manual_seed(0)
    x, y = torch.randn(shape), torch.randint(0, 10, shape[:1])
    array = hfta.fuse([build() for _ in range(members)])
    array.self_tuning = False
    if block is None:
        array.tune(loss_fn, x, y, budget_s=0.5)
    else:
        array.block_size = block
    optimizer = hfta.optim.Adam(array, lr=1e-3, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        if form == "backward":
            array.backward(loss_fn, x, y)
        else:
            total = loss_fn(array(x).flatten(0, 1), y.repeat(members)) * members
            total.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    for _ in range(_WARM):
        step()
    return step, array.block_size


def _unmade() -> None:
    raise RuntimeError("make a step first")


def child() -> None:
    """Answers requests, a line of JSON each: `make` a step, or time a `lap` of calls."""
    import torch

    torch.set_num_threads(1)
    step: Callable[[], None] = _unmade
    for line in sys.stdin:
        asked = json.loads(line)
        if "make" in asked:
            step, block = _stepper(*asked["make"])
            answer: Any = block
        else:
            begin = time.process_time()
            for _ in range(asked["lap"]):
                step()
            answer = (time.process_time() - begin) / asked["lap"]
        print(json.dumps(answer), flush=True)


# The parent.


class Checkout:
    """A commit in a folder of its own."""

    def __init__(self, name: str, folder: Path) -> None:
        self.hash = _git("rev-parse", "--short=12", name)
        self.folder = folder / self.hash
        _git("worktree", "add", "--detach", "--force", str(self.folder), self.hash)

    def remove(self) -> None:
        _git("worktree", "remove", "--force", str(self.folder))


class Process:
    """A process that trains with a checkout's code."""

    def __init__(self, checkout: Checkout) -> None:
        env = {**os.environ, "PYTHONPATH": str(checkout.folder), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(Path(__file__).resolve()), "--child"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env, cwd=checkout.folder
        )
        self._to: IO[str] = self._process.stdin  # type: ignore[assignment]
        self._from: IO[str] = self._process.stdout  # type: ignore[assignment]

    def ask(self, **request: Any) -> Any:
        self._to.write(json.dumps(request) + "\n")
        self._to.flush()
        return json.loads(self._from.readline())

    def close(self) -> None:
        self._to.close()
        self._process.wait()


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=_ROOT, check=True, capture_output=True, text=True).stdout.strip()


def compare(before: Process, after: Process, job: Job, rounds: int, lap_s: float) -> dict[str, Any]:
    """One pair of processes: the median times of a step in seconds, their ratio, and the block size."""
    block = before.ask(make=[*job, None])
    after.ask(make=[*job, block])
    if not rounds:
        return {}
    calls = max(1, round(lap_s / before.ask(lap=3)))
    times: dict[str, list[float]] = {"before": [], "after": []}
    for number in range(rounds + 1):
        pair = [("before", before), ("after", after)]
        for name, one in pair if number % 2 else reversed(pair):
            times[name].append(one.ask(lap=calls))
    ratios = [a / b for a, b in zip(times["before"][1:], times["after"][1:], strict=True)]  # the first is a warm-up
    medians = {name: statistics.median(values[1:]) for name, values in times.items()}
    return {**medians, "ratio": statistics.median(ratios), "block_size": block}


def row(job: Job, found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What several pairs of processes came to."""
    return {
        "model": job[0], "members": job[1], "form": job[2], "loss": job[3],
        "block_sizes": [one["block_size"] for one in found],
        **{f"{name}_ms": round(1e3 * statistics.median(f[name] for f in found), 4) for name in ("before", "after")},
        "ratio": round(statistics.median(f["ratio"] for f in found), 3),
        "of_pairs": [round(f["ratio"], 3) for f in found],
    }  # fmt: skip


def main() -> None:
    from benchmarks.common import options, write

    models = ["mlp", "cnn", "lstm", "transformer"]
    parser = options(__doc__, models=models, members=[1, 8, 32], rounds=7, lap=0.1)
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=FORMS, help="how steps are made")
    parser.add_argument("--loss", choices=("cross_entropy", "mean_square"), default="cross_entropy")
    parser.add_argument("--pairs", type=int, default=5, help="pairs of processes")
    given = parser.parse_args()
    jobs: list[Job] = [(m, n, f, given.loss) for m in given.models for n in given.members for f in given.forms]
    found: dict[Job, list[dict[str, Any]]] = {job: [] for job in jobs}
    with tempfile.TemporaryDirectory() as folder:
        checkouts = [Checkout(name, Path(folder)) for name in (given.before, given.after)]
        try:
            for number in range(given.pairs + 1):
                pair = [Process(one) for one in checkouts]
                for job in jobs:
                    figures = compare(pair[0], pair[1], job, given.rounds if number else 0, given.lap)
                    found[job] += [figures] if number else []
                for one in pair:
                    one.close()
        finally:
            for checkout in checkouts:
                checkout.remove()
    rows = [row(job, found[job]) for job in jobs]
    for each in rows:
        print(each)
    name = "commits" if given.loss == "cross_entropy" else f"commits_{given.loss}"
    print(write(name, {"before": checkouts[0].hash, "after": checkouts[1].hash, "rows": rows}))


if __name__ == "__main__":
    if "--child" in sys.argv:
        child()
    else:
        main()
