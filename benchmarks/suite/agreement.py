"""Tests whether a mode gives the losses of serial training, up to the effect of rounding."""

from __future__ import annotations

import math
import statistics

import torch

from benchmarks.suite.job import HALF, Job
from benchmarks.suite.modes.serial import Serial

Losses = list[list[float]]

TOLERANCES = {
    "float32": {"first": 1e-5, "second": 1e-4, "last_of_check": 2e-3, "last_of_all": 0.1},
    "tf32": {"first": 5e-3, "second": 1e-2, "last_of_check": 3e-2, "last_of_all": 0.25},
    "bf16": {"first": 3e-2, "second": 4e-2, "last_of_check": 6e-2, "last_of_all": 0.25},
    "fp16": {"first": 5e-3, "second": 1e-2, "last_of_check": 3e-2, "last_of_all": 0.25},
}
"""Per precision, how far losses may be from serial's: the first (the forward pass), the second (the gradient and the
optimizer), the last of the check, and the last of all; relative to the loss or to 0.1, whichever is more (the last of
all: to 1)."""

ROUNDING = 10
"""Where rounding moves a loss by more than a tenth of the tolerance, this multiple of the effect is allowed."""


LAST = 20
"""The last loss is the mean over this many steps, as the effect of single batches is random."""

DRAWS = 3
"""How often weights are perturbed, each time differently, as a single perturbation may have little effect."""


def rounding(job: Job, serial: Losses) -> dict[str, float]:
    """The largest difference of the losses of the check after every parameter is perturbed by a rounding of the
    precision.

    With small batches, batch norm and Adam amplify rounding from step to step.

    Args:
        job: to be trained serially.
        serial: its losses without perturbation.
    """
    moved = [differences(_moved(job, draw), serial, job.check_steps) for draw in range(1, DRAWS + 1)]
    return {place: max(m[place] for m in moved) for place in moved[0]}


def _moved(job: Job, draw: int) -> Losses:
    trained = Serial(job)
    eps = {"float32": 2.0**-23, "tf32": 2.0**-11, **{k: torch.finfo(v).eps for k, v in HALF.items()}}[job.precision]
    generator = torch.Generator().manual_seed(draw)
    for trainer in trained.trainers:
        for parameter in trainer.module.parameters():
            up = torch.rand(parameter.shape, generator=generator).to(parameter.device) < 0.5
            parameter.data.mul_(torch.where(up, 1 + eps, 1 - eps))
    return trained.lap(job.check_steps).losses


def differences(found: Losses, serial: Losses, check_steps: int) -> dict[str, float]:
    """The largest difference over members at the steps where losses are compared.

    Args:
        found, serial: losses ``[steps][M]``.
        check_steps: steps of the check.
    """
    last = min(len(found), len(serial)) - 1
    places = {"first": 0, "second": 1, "last_of_check": check_steps - 1}
    apart = {k: _apart(found[min(at, last)], serial[min(at, last)], 0.1) for k, at in places.items()}
    ends = [
        [statistics.fmean(member) for member in zip(*losses[: last + 1][-LAST:], strict=True)]
        for losses in (found, serial)
    ]
    return apart | {"last_of_all": _apart(ends[0], ends[1], 1.0)}


def tolerances(precision: str, rounded: dict[str, float]) -> dict[str, float]:
    """The allowed differences, given the effect of rounding; the last of all depends on the last of the check.

    Args:
        rounded: see `rounding`; empty if it was not measured.
    """
    allowed = dict(TOLERANCES[precision])
    for place, moved in (rounded | ({"last_of_all": rounded["last_of_check"]} if rounded else {})).items():
        allowed[place] = max(allowed[place], ROUNDING * moved)
    return allowed


def agrees(apart: dict[str, float], allowed: dict[str, float]) -> bool:
    """True if all differences are allowed; NaN is not."""
    return all(apart[place] <= allowed[place] for place in allowed)


def _apart(a: list[float], b: list[float], least: float) -> float:
    each = [abs(x - y) / max(abs(y), least) for x, y in zip(a, b, strict=True)]
    return math.nan if any(math.isnan(e) for e in each) else max(each)
