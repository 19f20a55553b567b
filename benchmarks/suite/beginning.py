"""After how many steps the start of a study has paid, measured in a separate process without caches.

`python -m benchmarks.suite.beginning '{"model": "mlp", "members": 8}'` prints one line of JSON. Members are built,
tuned on their first steps, recorded and trained as in a study, without kept results; the same members are trained
serially. The processor time of each since its start is compared step by step.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.suite.job import Job, numbers
from benchmarks.suite.modes.base import Mode
from benchmarks.suite.modes.ours import AsStudy
from benchmarks.suite.modes.serial import Serial

STEPS = 200
SERIAL_STEPS = 20
"""So many steps are trained serially at first; the later ones take what some steps take in between ours."""
EVERY, AGAIN, WARM = 40, 8, 2
"""After so many steps of ours so many of serial, of which the first are not counted: its memory has left the caches."""
TIME_S = 1200


def measured(job: Job, threads: int) -> dict[str, Any]:
    """The result of `compared`, in a new process without kept results on disk.

    Raises:
        RuntimeError: it failed; with its output.
    """
    with tempfile.TemporaryDirectory(prefix="hfta-bench-") as cache:
        command = [
            sys.executable,
            "-m",
            "benchmarks.suite.beginning",
            json.dumps(dataclasses.asdict(job)),
            str(threads),
        ]
        variables = {**os.environ, "HFTA_NB_CACHE": cache}
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIME_S, env=variables, check=False)
    if done.returncode:
        raise RuntimeError(f"the beginning could not be measured: {done.stderr.strip()[-300:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def compared(job: Job) -> dict[str, Any]:
    """Train in both modes.

    Returns:
        ``pays_after_steps``: the step from which ours has taken less time since its start; None if there is none.
        ``lead_s``: the additional time up to certain steps. ``ours_first_s``: time of each of the first steps; the
        first includes construction. ``serial_step_s``, ``ours_step_s``: at the end. ``tuned``: what was tried.
    """
    # This imports torch's compiler, whose cost would count for the first mode.
    torch.optim.Adam([torch.zeros(1, requires_grad=True)])
    clock = time.process_time
    with numbers(job):
        serial, theirs = _begun(Serial, job, SERIAL_STEPS)
        begin = clock()
        ours: Mode = AsStudy(job)
        mine, beside, since = [], [], begin
        for step in range(STEPS):
            ours.lap(1)
            now = clock()
            mine.append(now - since)
            for again in range(AGAIN if step % EVERY == EVERY - 1 else 0):
                since = clock()
                serial.lap(1)
                beside += [clock() - since] if again >= WARM else []
            since = clock()
    serial_s, ours_s = statistics.median(beside), statistics.median(mine[-STEPS // 4 :])
    theirs += [serial_s] * (STEPS - len(theirs))
    return {
        "pays_after_steps": paid_after(mine, theirs, serial_s - ours_s),
        "lead_s": {str(k): sum(mine[:k]) - sum(theirs[:k]) for k in (10, 20, 50, 100, STEPS)},
        "ours_first_s": mine[:30],
        "serial_first_s": theirs[:5],
        "serial_step_s": serial_s,
        "ours_step_s": ours_s,
        "tuned": ours.array.settings.tuned,  # type: ignore[attr-defined]
    }


def paid_after(mine: Sequence[float], theirs: Sequence[float], gain_s: float) -> int | None:
    """The step from which my total is not above theirs; beyond the last step, extrapolated from the gain per step."""
    lead, last = 0.0, 0
    for step, (a, b) in enumerate(zip(mine, theirs, strict=True), 1):
        lead += a - b
        last = step if lead > 0 else last
    if last < len(mine):
        return last + 1
    return len(mine) + math.ceil(lead / gain_s) if gain_s > 0 else None


def _begun(kind: type[Mode], job: Job, steps: int) -> tuple[Mode, list[float]]:
    """A mode, and the times of its first steps; the first includes construction."""
    since = time.process_time()
    mode, took = kind(job), []
    for _ in range(steps):
        mode.lap(1)
        now = time.process_time()
        took.append(now - since)
        since = now
    return mode, took


if __name__ == "__main__":
    warnings.filterwarnings("ignore", message="There is a performance drop")
    torch.set_num_threads(int(sys.argv[2]) if len(sys.argv) > 2 else 1)
    print(json.dumps(compared(Job(**json.loads(sys.argv[1])))))
