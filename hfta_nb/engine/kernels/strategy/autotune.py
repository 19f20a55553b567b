"""Chooses kernel variants by time, once for each shape."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from hfta_nb.engine.comparison import compare
from hfta_nb.engine.kernels.cuda_graphs import graphed
from hfta_nb.engine.kernels.strategy import matmul_precision
from hfta_nb.engine.kernels.strategy.kernel_variants import (
    COMPILED,
    CONVOLUTIONS,
    PLAIN,
    KernelVariant,
    Operand,
    same,
    variants_of,
)
from hfta_nb.engine.kernels.strategy.products import Copied
from hfta_nb.engine.kernels.strategy.sandbox import Tried, survives
from hfta_nb.engine.kernels.strategy.times import Times
from hfta_nb.engine.kernels.strategy.timing_cache import kept
from hfta_nb.engine.kernels.strategy.variant_trials import killed, trying
from hfta_nb.engine.kernels.strategy.widened import HALVES, Widened
from hfta_nb.errors import out_of_memory

STRATEGIES = ("measured", "fixed")
"""How kernels are chosen."""

_GAIN = 0.97
"""A variant is chosen over torch's kernel if it takes less than this fraction of its time."""
_LAPS = 5
_LAP_S = 20e-6
"""Approximate minimum duration of a lap: short kernels are called several times."""
_BUDGET_S = 1e-3
"""Time budget of a shape, times the number of variants; each variant runs at least one lap."""
_WARM_UP = 3
"""Calls before the first lap, in which libraries initialize."""
_LONG_S = 2e-4
"""Calls that take longer than this need only two warm-up calls."""
_HOPELESS = 2.0
"""A variant slower than this multiple of the fastest is measured no further."""
_ERROR = 8.0
"""A result is accepted up to this multiple of the largest error of torch's own result against float64."""


@dataclass(frozen=True)
class Choice:
    """The choice for a call.

    Attributes:
        what: the function and its shapes, for people.
        chosen: the variant.
        seconds: of all variants, by name.
        kept: True if an earlier process measured them.
    """

    what: str
    chosen: KernelVariant
    seconds: Mapping[str, float | None]
    kept: bool = False

    def __str__(self) -> str:
        rest = [_described(n, s) for n, s in self.seconds.items() if n != self.chosen.name]
        own = self.seconds.get(self.chosen.name)
        return _described(self.chosen.name, own) + "".join(f"; {other}" for other in rest)


def _described(name: str, seconds: float | None) -> str:
    return f"{name} (fails or other numbers)" if seconds is None else f"{name} {seconds * 1e6:.1f} us"


def choose(
    function: Any,
    called: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    device: torch.device,
    others: Sequence[KernelVariant] | None = None,
    allowed: Callable[[KernelVariant], bool] | None = None,
    worth: float = 0.0,
) -> Choice | None:
    """The fastest variant for a call.

    Args:
        function: the overload of an aten operator.
        called: torch's own variant, with the arguments below.
        args, kwargs: with an `Operand` in place of each tensor.
        device: of the tensors.
        others: the variants to compare; by default those of `variants_of`.
        allowed: filters the variants.
        worth: seconds that the package's own kernel saves elsewhere.

    Returns:
        None if torch's kernel is the only variant.
    """
    others = variants_of(function, args, device) if others is None else others
    if any(other.make is Widened for other in others) and not _survives_in_float32(function, args, device):
        others = [other for other in others if other.make is not Widened]
    if not others:
        return None
    ways = {PLAIN: KernelVariant(PLAIN, same), **{f.name: f for f in others}}
    known, key = kept(device), f"{_key(function, args, kwargs)} by {', '.join(ways)}"
    times = known.get(key)
    if times is None:
        if key in known.hopeless:
            return None
        # For all shapes: a variant that has ended a process is not tried for other shapes.
        tried = {name: way for name, way in ways.items() if not killed(known, str(function), name)}
        try:
            times = _measured(tried, called, args, kwargs, device, partial(trying, known, str(function)))
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):  # memory may suffice later; the loss is small
                known.hopeless.add(key)
            return None
        times = known.put(key, times)
    open_ways = [name for name, way in ways.items() if name in times and (allowed is None or allowed(way))]
    best = min(open_ways or [PLAIN], key=lambda name: cost(name, times) - (worth if name == COMPILED else 0.0))
    return Choice(_label(function, args), ways[best], times, kept=not known.own(key))


def _survives_in_float32(function: Any, args: Sequence[Any], device: torch.device) -> bool:
    """True if a process survives torch's kernel for these operands in float32, which no plain module may have called;
    see `sandbox`."""
    if function not in CONVOLUTIONS:
        return True
    wide = [replace(a, dtype=torch.float32) if isinstance(a, Operand) and a.dtype in HALVES else a for a in args]
    return survives([Tried(function, wide)], device)


def made(way: KernelVariant, called: Callable[..., Any]) -> Callable[..., Any]:
    """The function that computes with this variant."""
    function = way.make(called)
    return Copied(function) if way.copies else function


def cost(name: str, times: Times) -> float:
    """The criterion: the variant with the lowest cost is chosen. Torch's own must be beaten clearly."""
    seconds = times.get(name)
    return math.inf if seconds is None else seconds * (_GAIN if name == PLAIN else 1.0)


# Descriptions.


def _key(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    parts = [_text(a) for a in args] + [f"{k}={_text(v)}" for k, v in sorted(kwargs.items())]
    return f"{function} " + " ".join(parts)


def _text(value: Any) -> str:
    if isinstance(value, Operand):
        dtype = str(value.dtype).removeprefix("torch.")
        return f"{dtype}{list(value.size)}{list(value.stride)}".replace(" ", "")
    return str(value).replace(" ", "")


def _label(function: Any, args: Sequence[Any]) -> str:
    shapes = " x ".join(str(list(a.size)) for a in args if isinstance(a, Operand))
    return f"{function._schema.name.removeprefix('aten::').lstrip('_')} {shapes}"


# Measurement.


def _measured(
    ways: Mapping[str, KernelVariant],
    called: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    device: torch.device,
    trial: Callable[[str], AbstractContextManager[None]],
) -> Times:
    # Different numbers for each operand: differences of equal operands vanish in torch's order of summation only.
    given = [_scratch(a, device, number) for number, a in enumerate(args)]
    named = {k: _scratch(v, device) for k, v in kwargs.items()}
    before = matmul_precision.get()
    runs = {}
    for name, way in ways.items():
        runs[name] = _Run(way, made(way, called), given, named, before)
    with torch.no_grad(), torch._C._AutoDispatchBelowAutograd(), torch._C._DisableAutocast():
        times: Times = dict(_timed(runs, device, trial))
        while (best := min(ways, key=lambda n: cost(n, times))) != PLAIN:
            if _right(runs[best], runs[PLAIN], called, given, named):
                break
            times[best] = None
    return times


class _Run:
    """A variant bound to scratch memory."""

    def __init__(self, way: KernelVariant, call: Callable[..., Any], given: Any, named: Any, before: str) -> None:
        self.call, self.given, self.named = call, given, named
        self.on = None if way.setting is None else matmul_precision.switch(way.setting)
        self.off = None if way.setting is None else matmul_precision.switch(before)

    def __call__(self, count: int = 1) -> Any:
        out = None
        if self.on is not None:
            self.on()
        try:
            for _ in range(count):
                out = self.call(*self.given, **self.named)
        finally:
            if self.off is not None:
                self.off()
        return out


def _timed(
    runs: Mapping[str, _Run], device: torch.device, trial: Callable[[str], AbstractContextManager[None]]
) -> Times:
    """Seconds of each variant; `trial` returns the context that records a trial."""
    clock = clock_of(device)
    laps: dict[str, list[float]] = {}
    counts = {}
    calls = {name: graphed(run, device) for name, run in runs.items()}
    for name, run in list(calls.items()):
        try:
            with nullcontext() if name == PLAIN else trial(name):
                laps[name] = [_warmed(run, clock)]
        except RuntimeError as error:
            if name == PLAIN or out_of_memory(error):
                raise
            del calls[name]  # a library has no kernel for it
            continue
        counts[name] = max(1, round(_LAP_S / laps[name][0]))
    deadline = time.perf_counter() + _BUDGET_S * len(runs)
    for _ in range(_LAPS):
        fastest = min(min(t) for t in laps.values())
        for name, run in calls.items():
            if min(laps[name]) <= _HOPELESS * fastest:
                with nullcontext() if name == PLAIN else trial(name):
                    begin = clock()
                    run(counts[name])
                    laps[name].append(max(clock() - begin, 1e-9) / counts[name])
        if time.perf_counter() > deadline:
            break
    return {name: min(laps[name]) if name in laps else None for name in runs}


def _warmed(run: Callable[[int], Any], clock: Callable[[], float]) -> float:
    """Seconds of the fastest of several calls."""
    fastest = math.inf
    for call in range(_WARM_UP):
        begin = clock()
        run(1)
        fastest = min(fastest, max(clock() - begin, 1e-9))
        if call and fastest > _LONG_S:
            break
    return fastest


def clock_of(device: torch.device) -> Callable[[], float]:
    """The clock to use: processor time on one thread, which other processes do not affect; wall time otherwise."""
    if device.type != "cuda":
        return time.process_time if torch.get_num_threads() == 1 else time.perf_counter

    def synchronised() -> float:
        torch.cuda.synchronize(device)
        return time.perf_counter()

    return synchronised


def _right(run: _Run, plain: _Run, called: Callable[..., Any], given: Any, named: Mapping[str, Any]) -> bool:
    """True if results are as exact as torch's own, compared with float64; for batched products, in the first and last
    matrix."""
    ends = _ends(given)
    exact = called(*_doubled(ends(given)), **{k: _doubled(ends(v)) for k, v in named.items()})
    found, own = _floats(run(), named), None
    found = [ends(t).clone() for t in found]
    own = [ends(t).clone() for t in _floats(plain(), named)]
    wanted = _floats(exact, {k: v for k, v in named.items() if not isinstance(v, Tensor)})
    results = [{str(i): t.double() for i, t in enumerate(each)} for each in (found, wanted, own)]
    least = _ERROR * max(map(matmul_precision.rounding, found), default=0.0)
    return not compare(results[0], results[1], lambda _: least, again=lambda number: results[2], factor=_ERROR)


def _ends(given: Any) -> Callable[[Any], Any]:
    """The first and the last matrix of each batch, if all tensors are batches of equal size."""
    counts = {tuple(t.shape[:1]) if isinstance(t, Tensor) and t.ndim == 3 else () for t in given}
    if len(counts) != 1 or counts == {()}:
        return lambda value: value
    (last,) = (count[0] - 1 for count in counts)

    def ends(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [ends(v) for v in value]
        return value[:: max(1, last)] if isinstance(value, Tensor) else value

    return ends


def _floats(result: Any, named: Mapping[str, Any]) -> list[Tensor]:
    buffers = [v for v in named.values() if isinstance(v, Tensor)]
    found = buffers or (list(result) if isinstance(result, list | tuple) else [result])
    return [t for t in found if isinstance(t, Tensor) and t.is_floating_point()]


def _doubled(tree: Any) -> Any:
    if isinstance(tree, list | tuple):
        return [_doubled(v) for v in tree]
    if isinstance(tree, Tensor) and tree.is_floating_point():
        return tree.double()
    return torch.float64 if tree is torch.float32 else tree


def _scratch(value: Any, device: torch.device, number: int = 0) -> Any:
    """A tensor of this geometry with numbers of typical magnitude, different for each `number`."""
    if isinstance(value, list | tuple):
        return [_scratch(v, device, number) for v in value]
    if not isinstance(value, Operand):
        return value
    need = 1 + sum((size - 1) * stride for size, stride in zip(value.size, value.stride, strict=True))
    noise = _noise(device).roll(_APART * number)
    noise = (noise if value.dtype.is_floating_point else noise.abs()).to(value.dtype)  # row indices, 0 to 4
    memory = noise.repeat(-(-need // len(noise)))[:need] if need > len(noise) else noise[:need].clone()
    return memory.as_strided(value.size, value.stride)


_APART = 577


@cache
def _noise(device: torch.device) -> Tensor:
    return torch.randn(4099, generator=torch.Generator().manual_seed(0)).to(device)
