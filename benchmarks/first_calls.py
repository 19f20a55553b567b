"""First calls of arrays, and their speed after eleven, in steps of serial training.

On one thread, by processor time. `first` is the first call of each of several arrays in serial steps (the median of
three before it and three after it), `first_median` their median, `worst` the longest of the calls 2 to 11. From the
twelfth call on, each is followed by a serial step of plain modules: `speed` is the median of those divided by that of
the calls, with quartiles of the pairs. `speed_of_stacked` is the speed of plain modules whose outputs are put into one
tensor, as `array(x)` returns it, and `speed_of_forwards_first` of plain modules whose forwards all precede the first
loss, as the split form asks: members that are computed one by one can't be faster.

    python benchmarks/first_calls.py [--json] [--cases NAME ...] [--arrays 5] [--rounds 15] [--quick]

Kernels that are compiled in the background are used by the next process, so run it twice.
"""

from __future__ import annotations

import copy
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import hfta_nb as hfta
from benchmarks.common import options, write
from hfta_nb.engine.array import FusedArray

_WARM = 11


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


CASES: dict[str, tuple[Callable[[], nn.Module], int, tuple[int, ...]]] = {
    "mlp": (_mlp, 8, (32, 64)),
    "layer norm": (lambda: nn.LayerNorm(64), 8, (32, 64)),
    "batch norm": (lambda: nn.BatchNorm2d(16), 8, (64, 16, 8, 8)),
    "resnet18": (lambda: hfta.family("resnet18").build(width=16), 4, (16, 3, 32, 32)),
    "mobilenet_v2": (
        lambda: hfta.family("mobilenet_v2").build(width_multiplier=0.25, in_channels=1),
        4,
        (32, 1, 32, 32),
    ),
}
"""By name: constructor, members, shape of the input."""


def loss_of(out: Tensor, _: Any = None) -> Tensor:
    return out.square().mean()


def backward(array: FusedArray, x: Tensor) -> None:
    array.backward(loss_of, x, x)


def split(array: FusedArray, x: Tensor) -> None:
    torch.stack([loss_of(own) for own in array(x)]).sum().backward()  # type: ignore[no-untyped-call]


def serial(modules: list[nn.Module], x: Tensor) -> None:
    for module in modules:
        loss_of(module(x)).backward()  # type: ignore[no-untyped-call]


def forwards_first(modules: list[nn.Module], x: Tensor) -> None:
    outputs = [module(x) for module in modules]
    torch.stack([loss_of(own) for own in outputs]).sum().backward()  # type: ignore[no-untyped-call]


def stacked(modules: list[nn.Module], x: Tensor) -> None:
    out = torch.stack([module(x) for module in modules])
    torch.stack([loss_of(own) for own in out]).sum().backward()  # type: ignore[no-untyped-call]


FORMS: dict[str, Callable[[FusedArray, Tensor], None]] = {"backward": backward, "array(x)": split}


def seconds(step: Callable[[Any, Tensor], None], held: Any, x: Tensor) -> float:
    """The processor time of one step of an array or of plain modules."""
    modules = held if isinstance(held, list) else [held]
    for module in modules:
        module.zero_grad()
    begin = time.process_time()
    step(held, x)
    return time.process_time() - begin


def row(case: str, form: str, dtype: torch.dtype, arrays: int, rounds: int) -> dict[str, Any]:
    build, members, shape = CASES[case]
    torch.manual_seed(0)
    modules = [build().to(dtype) for _ in range(members)]
    alone, x = copy.deepcopy(modules), torch.randn(shape, dtype=dtype)
    seconds(serial, alone, x)
    first, worst, steps = [], [], []
    for _ in range(arrays):
        array = hfta.fuse(copy.deepcopy(modules))
        around = [seconds(serial, alone, x) for _ in range(3)]
        times = [seconds(FORMS[form], array, x)]
        around += [seconds(serial, alone, x) for _ in range(3)]
        times += [seconds(FORMS[form], array, x) for _ in range(_WARM - 1)]
        steps.append(statistics.median(around))
        first.append(times[0] / steps[-1])
        worst.append(max(times[1:]) / steps[-1])
    others = serial, stacked, forwards_first
    laps = [(seconds(FORMS[form], array, x), *(seconds(other, alone, x) for other in others)) for _ in range(rounds)]
    ours, plain, stack, first_all = (statistics.median(times) for times in zip(*laps, strict=True))
    low, _, high = statistics.quantiles([p / o for o, p, *_ in laps], n=4)
    splits = form == "array(x)"
    return {
        "case": case,
        "members": members,
        "form": form,
        "dtype": str(dtype).removeprefix("torch."),
        "serial_ms": round(statistics.median(steps) * 1e3, 2),
        "first": [round(each, 2) for each in sorted(first)],
        "first_median": round(statistics.median(first), 2),
        "worst": [round(each, 2) for each in sorted(worst)],
        "speed": round(plain / ours, 3),
        "speed_quartiles": [round(low, 3), round(high, 3)],
        "speed_of_stacked": round(plain / stack, 3) if splits else None,
        "speed_of_forwards_first": round(plain / first_all, 3) if splits else None,
    }


def main() -> int:
    parser = options(__doc__, rounds=15, json=False, quick=False)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES), help="what is trained")
    parser.add_argument("--arrays", type=int, default=5, help="arrays whose first calls are timed")
    given = parser.parse_args()
    torch.set_num_threads(1)
    cases, arrays, rounds = (["layer norm"], 1, 2) if given.quick else (given.cases, given.arrays, given.rounds)
    rows = []
    for case in cases:
        for form in FORMS:
            for dtype in (torch.float32, torch.float64):
                rows.append(row(case, form, dtype, arrays, rounds))
                if not given.json:
                    print({k: v for k, v in rows[-1].items() if v is not None}, flush=True)
    content = {"what": "first calls in serial steps, and the speed after eleven; one thread", "rows": rows}
    name = "first_calls_cpu" if cases == list(CASES) else "first_calls_some_cpu"
    path = None if given.quick else write(name, content)
    print(json.dumps(content, indent=2) if given.json else path or "")
    return 0


if __name__ == "__main__":
    sys.exit(main())
