"""The cost of verifying the first calls of an array.

On one thread, by processor time. For each form, new arrays of the same modules are called with `verify="first"` and
with `verify="never"`, in turn, and one member's plain module makes a step. `added_steps` is the additional time of the
first two calls, in steps of one member; the target is 1 for each comparison. `later` is a later call with verification,
relative to one without.

    python benchmarks/verification.py [--json] [--members 8 32] [--models ...] [--rounds 9] [--quick]
"""

from __future__ import annotations

import copy
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import hfta_nb as hfta
from benchmarks.capture import MODELS
from benchmarks.common import options, write
from benchmarks.own_loops import FORMS, serial

_LATER = 20


def seconds(modules: list[torch.nn.Module], form: str, when: str, x: Any, y: Any) -> tuple[float, float, float]:
    """The first two calls of a new array, and the median of later ones."""
    array = hfta.fuse(modules, verify=when)
    array.self_tuning = False
    if form == "evaluate":
        array.eval()
    times = []
    for _ in range(_LATER):
        begin = time.process_time()
        FORMS[form](array, x, y)
        times.append(time.process_time() - begin)
    return times[0], times[1], statistics.median(times[5:])


def measure(name: str, members: int, form: str, rounds: int) -> dict[str, Any]:
    """One row."""
    build, shape = MODELS[name]
    torch.manual_seed(0)
    x, y = torch.randn(shape), torch.randint(0, 10, shape[:1])
    modules = [build() for _ in range(members)]
    alone = serial([copy.deepcopy(modules[0])], form, x, y)
    found: dict[str, list[tuple[float, float, float]]] = {"first": [], "never": []}
    steps = []
    for when in found:
        seconds(modules, form, when, x, y)  # measures and compiles kernels
    for _ in range(rounds):
        for when, rows in found.items():
            rows.append(seconds(modules, form, when, x, y))
        begin = time.process_time()
        alone()
        steps.append(time.process_time() - begin)
    step = statistics.median(steps)
    first, never = ([statistics.median(column) for column in zip(*rows, strict=True)] for rows in found.values())
    return {
        "ms_of_a_member": round(step * 1e3, 3),
        "ms_first": {"first": round(first[0] * 1e3, 2), "never": round(never[0] * 1e3, 2)},
        "added_steps": [round((first[i] - never[i]) / step, 2) for i in range(2)],
        "later": round(first[2] / never[2], 3),
    }


def main() -> int:
    given = options(__doc__, json=False, members=[8, 32], models=list(MODELS), rounds=9, quick=False).parse_args()
    if given.quick:
        given.members, given.rounds = [2], 1
    torch.set_num_threads(1)
    rows = []
    for name in given.models:
        for members in given.members:
            for form in FORMS:
                row = {"model": name, "members": members, "form": form, **measure(name, members, form, given.rounds)}
                rows.append(row)
                if not given.json:
                    told = f"{row['added_steps']} steps of a member, later {row['later']:.2f}"
                    print(f"{name:11} {members:3} {form:9} {told}", flush=True)
    content = {"what": "comparing the first calls with the plain module; processor time, one thread", "rows": rows}
    path = None if given.quick else write("verification_cpu", content)
    if given.json:
        print(json.dumps(content, indent=2))
    elif path is not None:
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
