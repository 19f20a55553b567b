"""The parts of a step's time: products, other kernels, the optimizer, data, and the time between calls."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from benchmarks.suite.modes.base import Mode
from benchmarks.suite.tasks import DATA, Feed
from hfta_nb.engine.kernels.native import adam, attention, conv, images, norm, product, recurrent, rows

LOOK_S = 0.02
PROFILES = 3
"""The number of profiles of a step and their duration in seconds or steps; the profile with the least overhead
counts."""

LONGEST = 15
"""How many of the kernels that take longest are listed by name."""

OPTIMIZER = "suite::optimizer"

PRODUCTS = re.compile(
    r"(?:aten|hfta_nb)::_?"
    r"(mm|addmm|bmm|baddbmm|addbmm|mv|addmv|dot|matmul|linear|bilinear|einsum|conv\w*|cudnn_conv\w*|mkldnn_\w+|"
    r"thnn_conv\w*|slow_conv\w*|lstm|lstm_backward|gru|rnn_\w+|thnn_fused_\w+|scaled_dot_product\w*|efficient_attention\w*|"
    r"flash_attention\w*|addmm_activation)$"
)
"""Operators of torch and of this package that are matrix products, convolutions, attention or recurrent kernels."""
LIBRARY: dict[type, str] = {
    adam.Bound: "adam",
    product.Bound: "mm",
    conv.Bound: "convolution",
    attention.Bound: "scaled_dot_product_attention",
    rows.Bound: "rows",
    images.Bound: "images",
    recurrent.Bound: "lstm",
    norm.BatchNorm: "batch_norm",
    norm.BatchNormBackward: "batch_norm_backward",
}
"""Calls of this package's own library, by the operator that they replace."""
STEPS = re.compile(r"aten::_(fused_(adam|adamw|sgd|adagrad)_?|foreach_\w+)$")
"""Operators that only optimizers call."""
KERNELS = re.compile(r"gemm|gemv|cutlass|xmma|conv|implicit|wgrad|dgrad|fprop|flash|fmha|attention|winograd", re.I)
"""The same for a GPU's kernels, by their names."""
STEP_KERNELS = re.compile(r"multi_tensor|adam|sgd", re.I)


@dataclass(frozen=True)
class Spent:
    """The time of one kind of operators in a step.

    Attributes:
        seconds: within them, including the profiler's overhead.
        records: the profiler's records meanwhile, nested operators included; half of a record's cost is outside of it.
    """

    seconds: float = 0.0
    records: float = 0.0

    def __add__(self, other: Spent) -> Spent:
        return Spent(self.seconds + other.seconds, self.records + other.records)


@dataclass(frozen=True)
class Profile:
    """One step as torch's profiler saw it.

    Attributes:
        calls: operators of torch called, those called by operators left out; on a GPU the kernels.
        step_s: one step without the profiler, the least of some short laps, just before.
        spent: by kind, of "products", "others", "optimizer" and "data". On a GPU drawing a batch is among the others.
        record_s: what a record costs; 0 where the profiler costs the device nothing.
        longest: the kernels that take longest: name, seconds and calls in a step.
    """

    calls: int
    step_s: float
    spent: Mapping[str, Spent]
    record_s: float = 0.0
    longest: Sequence[tuple[str, float, float]] = ()

    def seconds(self, kind: str) -> float:
        """The time of a kind without the profiler's overhead."""
        return max(0.0, self.spent[kind].seconds - self.spent[kind].records * self.record_s)

    @property
    def inside_s(self) -> float:
        """The time within all of them."""
        return sum(self.seconds(kind) for kind in self.spent)


def profiled(mode: Mode, step_s: float) -> Profile | None:
    """Further steps of a mode under torch's profiler; None if the work is not torch's in this process.

    Args:
        mode: continues to train.
        step_s: the duration of a step; short ones are profiled longer.
    """
    if not mode.on_torch_stream:
        return None
    steps = max(2, min(20, round(LOOK_S / step_s)))
    alone_s = min(mode.lap(steps).wall_s for _ in range(PROFILES)) / steps
    return min((_look(mode, steps, alone_s) for _ in range(PROFILES)), key=lambda seen: seen.inside_s)


def _look(mode: Mode, steps: int, step_s: float) -> Profile:
    cuda = mode.job.where.type == "cuda"
    if cuda:  # captured graphs do not survive that the profiler unloads and reloads its library
        os.environ.setdefault("TEARDOWN_CUPTI", "0")
        os.environ.setdefault("DISABLE_CUPTI_LAZY_REINIT", "1")
    with _marked(mode), profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]) as seen:
        mode.lap(steps)
    events = list(seen.events() or [])
    spent = dict.fromkeys(("products", "others", "optimizer", "data"), Spent())
    if cuda:
        device = torch.autograd.DeviceType.CUDA
        # Annotations (of an optimizer's step, for example) span the kernels within them.
        counted = [e for e in events if e.device_type == device and not getattr(e, "is_user_annotation", False)]
        for event in counted:
            spent[_kind_of_kernel(event.name)] += Spent(_seconds(event))
    else:
        counted = [e for e in events if _operator(e) and not _operator(e.cpu_parent)]
        for event in counted:
            _count(event, spent)
    each = {kind: Spent(of.seconds / steps, of.records / steps) for kind, of in spent.items()}
    return Profile(len(counted) // steps, step_s, each, 0.0 if cuda else _record_s(), _longest(counted, steps))


def _longest(events: Sequence[Any], steps: int) -> list[tuple[str, float, float]]:
    """See `Profile.longest`."""
    spent: dict[str, list[float]] = {}
    for event in events:
        spent.setdefault(event.name, []).append(_seconds(event))
    named = [(name, sum(each) / steps, len(each) / steps) for name, each in spent.items()]
    return sorted(named, key=lambda one: -one[1])[:LONGEST]


@functools.cache
def _record_s() -> float:
    """What one record of the profiler costs on this machine."""
    one = torch.ones(())

    def loop() -> float:
        begin_s = time.perf_counter()
        for _ in range(1000):
            torch.neg(one, out=one)
        return time.perf_counter() - begin_s

    alone_s = min(loop() for _ in range(5))
    with profile(activities=[ProfilerActivity.CPU]):
        seen_s = min(loop() for _ in range(5))
    return max(0.0, seen_s - alone_s) / 1000


@contextlib.contextmanager
def _marked(mode: Mode) -> Iterator[None]:
    """Mark batch drawing, our optimizer's step and our own kernels for the profiler within the context.

    Torch's own kernels are known to it.
    """
    kinds = {type(optimizer) for optimizer in getattr(mode, "optimizers", [])}
    ours = [(kind, "step", OPTIMIZER) for kind in kinds if not issubclass(kind, torch.optim.Optimizer)]
    ours += [(kind, "__call__", f"hfta_nb::{name}") for kind, name in LIBRARY.items()]
    before = [getattr(kind, method) for kind, method, _ in ours]

    def user_warnings(function: Any, name: str) -> Any:
        def told(*args: Any, **words: Any) -> Any:
            with record_function(name):
                return function(*args, **words)

        return told

    Feed.marked = True
    for (kind, method, name), function in zip(ours, before, strict=True):
        setattr(kind, method, user_warnings(function, name))
    try:
        yield
    finally:
        Feed.marked = False
        for (kind, method, _), function in zip(ours, before, strict=True):
            setattr(kind, method, function)


def _operator(event: Any) -> bool:
    return event is not None and event.name.startswith(("aten::", "hfta_nb::"))


def _count(event: Any, spent: dict[str, Spent]) -> None:
    """Add the time of an operator to its kind; products within other operators count as products."""
    whole = Spent(_seconds(event), _records(event) - 0.5)
    kind = "optimizer" if STEPS.match(event.name) else _marked_above(event)
    if kind:
        spent[kind] += whole
        return
    within = _products(event)
    spent["products"] += within
    spent["others"] += Spent(whole.seconds - within.seconds, whole.records - within.records)


def _marked_above(event: Any) -> str:
    above = event.cpu_parent
    while above is not None:
        if above.name == DATA:
            return "data"
        if above.name == OPTIMIZER or above.name.startswith("Optimizer.step"):
            return "optimizer"
        above = above.cpu_parent
    return ""


def _products(event: Any) -> Spent:
    if PRODUCTS.match(event.name):
        return Spent(_seconds(event), _records(event) - 0.5)
    return sum((_products(child) for child in event.cpu_children), Spent())


def _seconds(event: Any) -> float:
    return float(event.time_range.elapsed_us()) / 1e6


def _records(event: Any) -> int:
    return 1 + sum(_records(child) for child in event.cpu_children)


def _kind_of_kernel(name: str) -> str:
    if STEP_KERNELS.search(name):
        return "optimizer"
    return "products" if KERNELS.search(name) else "others"


NAMES = {
    "products": "products",
    "others": "other kernels",
    "optimizer": "optimizer",
    "data": "batches",
    "between": "between calls",
}
"""Matrix products and convolutions; all other kernels; ...; Python, autograd and, on a GPU, waiting for a launch."""


def shares(seen: Profile) -> dict[str, float]:
    """The fraction of a step for each kind, and for the time between calls.

    If calls seem to take more than the whole step, their shares are scaled.
    """
    whole = max(seen.step_s, seen.inside_s)
    found = {kind: seen.seconds(kind) / whole for kind in seen.spent}
    return found | {"between": max(0.0, 1 - sum(found.values()))}


def held_back(found: Mapping[str, float], step_s: float, operations_s: float) -> dict[str, Any]:
    """What limits a step: the seconds of each kind beyond the products at the measured rate, as shares.

    Returns:
        "most", the most expensive kind, and "note", both derived from the numbers alone.
    """
    needed = min(found["products"], operations_s / step_s)
    beyond = {**found, "products": found["products"] - needed}
    most = max(beyond, key=lambda kind: beyond[kind])
    rate = f" at {needed / found['products']:.0%} of the measured rate" if found["products"] > 0 else ""
    parts = [
        f"{found[kind]:.0%} {NAMES[kind]}{rate if kind == 'products' else ''}"
        for kind in sorted(found, key=lambda k: -found[k])
        if found[kind] > 0.005
    ]
    lost = "slow products" if most == "products" else NAMES[most]
    note = f"{', '.join(parts)}; most is lost to {lost} ({beyond[most]:.0%})"
    return {"most": most, "most_share": beyond[most], "note": note}
