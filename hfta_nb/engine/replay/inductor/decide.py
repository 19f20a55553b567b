"""Decides whether a replayed step is compiled: it must pay, be faster, and give the same numbers.

Compiling takes seconds to minutes, so it is for long runs. The gain is measured once and kept with the times of kernels
(`kernels/strategy/timing_cache.py`); before that, the usual gain on the device is assumed.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hfta_nb.engine.comparison import Saved, nudge, streams_by_member
from hfta_nb.engine.distances import Change
from hfta_nb.engine.kernels.strategy import matmul_precision
from hfta_nb.engine.kernels.strategy.autotune import clock_of
from hfta_nb.engine.kernels.strategy.times import Times
from hfta_nb.engine.kernels.strategy.timing_cache import kept
from hfta_nb.engine.kernels.strategy.variant_trials import killed, trying
from hfta_nb.engine.replay.inductor.compile import Compiled, why_not
from hfta_nb.engine.replay.inductor.norm_overloads import said
from hfta_nb.engine.replay.program import Program
from hfta_nb.engine.replay.source import Source
from hfta_nb.engine.replay.verify import Outcome, differing

COMPILE_MODES = ("auto", "never", "always")

USUAL_GAIN = {"cpu": 0.0, "cuda": 0.1}
"""The assumed fraction of a replayed step that compiling saves, before it is measured. On a CPU it cost time with most
models measured (decision 15); for GPUs it is a cautious guess."""

USUAL_SECONDS, SECONDS_PER_CALL = 10.0, 0.15
"""The assumed duration of compiling, before it is measured."""

LAP_S, LAPS = 0.02, 7
_WAY = "compiled"
_ELSEWHERE = "it was not in an earlier run"


def decide(program: Program, way: str, steps: float) -> None:
    """Decide whether to compile a program, and compile it; tensors are left unchanged. After an error, it is not
    compiled.

    Args:
        program: its inputs filled in.
        way: "auto" or "always".
        steps: the expected number of further runs, for "auto".
    """
    decision = program.decision
    decision.made = True
    try:
        if program.source is not None:
            _decided(program, program.source, way, steps)
    except Exception as error:
        decision.note = _failed(error)


def _decided(program: Program, source: Source, way: str, steps: float) -> None:
    decision, device = program.decision, source.device
    reason = why_not(source, device)
    if reason:
        decision.note = f"not compiled: {reason}"
        return
    times = kept(device)
    what = f"compiled step {source.digest()}"
    if killed(times, what, _WAY):
        decision.note = "not compiled: the process ended when it was tried"
        return
    known = times.get(what)
    if way == "auto":
        # Compiled, a step rounds otherwise: what the first run of this length has decided, all others do.
        length = f"{what}, in runs of about 2^{int(steps).bit_length()} steps"
        decided = times.get(length)
        pays, why = _pays(source, known, lambda: _timed(program, device), steps)
        if decided is None and not pays:
            decided = times.put(length, {"replayed": None})
        if decided is not None and _WAY not in decided:
            decision.note = f"not compiled: {why or _ELSEWHERE}"
            return
        way = "always" if decided is not None else way
    with trying(times, what, _WAY):
        found = decision.measured = _tried(program, device, always=way == "always")
    if found is not None:
        times.put(what, found)
        if way == "auto":
            decided = times.put(length, {_WAY if decision.compiled is not None else "replayed": None})
            if _WAY not in decided and decision.compiled is not None:
                decision.compiled, decision.note = None, f"not compiled: {_ELSEWHERE}"
            elif _WAY in decided and decision.compiled is None:
                _tried(program, device, always=True)


def _pays(source: Source, known: Times | None, measure: Callable[[], float], steps: float) -> tuple[bool, str]:
    """True if compiling pays within so many steps; and the reason if not."""
    if known is not None:
        before, after, cost = known.get("replayed"), known.get("compiled"), known.get("compiling")
        if before is None or after is None or cost is None:
            return False, "it gave other numbers when it was tried"
        if after >= before:
            return False, f"compiled it took {after * 1e3:.3g} ms, not compiled {before * 1e3:.3g} ms"
        saved = before - after
    else:
        gain = USUAL_GAIN.get(source.device.type, 0.0)
        if not gain:
            return False, f'on a {source.device.type} most steps are slower compiled; "always" measures this one'
        saved, cost = gain * measure(), USUAL_SECONDS + SECONDS_PER_CALL * len(source.calls)
    if saved * steps <= cost:
        return False, f"it takes about {cost:.0f} s, more than {steps:.0f} steps would save"
    return True, ""


def _tried(program: Program, device: torch.device, always: bool) -> Times | None:
    """Compile and compare; the times, or None if the compiler failed."""
    decision, source = program.decision, program.source
    assert source is not None  # checked by the caller
    restore = _saved(source)
    try:
        begin = time.perf_counter()
        compiled = Compiled(source)
        cost = time.perf_counter() - begin
        expected = _outcome(source, program.run, restore)
        # In float64, rounding is too small to turn a unit on or off.
        kinks = all(buffer.dtype != torch.float64 for _, buffer in source.gradients)
        again = partial(_nudged_outcome, source, program.run, restore)
        found = _outcome(source, compiled, restore)
        trouble = differing(found, expected, len(source.generators), again, source.half, kinks)
        if trouble:
            decision.note = f"not compiled: compiled, the step {trouble}"
            return {"replayed": None, "compiled": None, "compiling": cost}
        replayed, faster = _laps([program.run, compiled], device)
        text = f"compiled in {cost:.1f} s: {faster * 1e3:.3g} ms, not compiled {replayed * 1e3:.3g} ms"
        if always or faster < replayed:
            decision.compiled, decision.note = compiled, text
        else:
            decision.note = f"not compiled: {text}"
        return {"replayed": replayed, "compiled": faster, "compiling": cost}
    except Exception as error:
        decision.note = _failed(error)
        return None
    finally:
        restore()


def _failed(error: Exception) -> str:
    return f"not compiled: {(str(error).strip() or type(error).__name__).splitlines()[0]}"


def _timed(program: Program, device: torch.device) -> float:
    """Seconds of a replayed step."""
    assert program.source is not None  # checked by the caller
    restore = _saved(program.source)
    try:
        return _laps([program.run], device)[0]
    finally:
        restore()


def _saved(source: Source) -> Callable[[], None]:
    """Undoes runs of a step: lasting effects and random streams."""
    return Saved([*_changed(source), *(buffer for _, buffer in source.gradients)], source.generators)


def _changed(source: Source) -> list[Tensor]:
    """The whole of existing memory that a run changes: buffers."""
    storages = {s for c in said(source.calls) for s in c.writes}
    found = []
    for tensor in (t.detach() for s, t in source.there.items() if s in storages):
        length = tensor.untyped_storage().nbytes() // tensor.element_size()
        found.append(tensor.as_strided((length,), (1,), 0))
    return found


def _outcome(source: Source, run: Callable[[], list[Tensor]], restore: Callable[[], None]) -> Outcome:
    """What a run comes to; see `verify.outcome`."""
    restore()
    before = [tensor.clone() for tensor in _changed(source)]
    buffers = [buffer for _, buffer in source.gradients]
    for buffer in buffers:
        buffer.fill_(math.nan)
    kinds = {"result": run(), "gradient": buffers}
    found: Outcome = {f"{k} {i}": t.detach().clone() for k, tensors in kinds.items() for i, t in enumerate(tensors)}
    after = [tensor.clone() for tensor in _changed(source)]
    found |= {f"buffer {i}": Change(*pair) for i, pair in enumerate(zip(before, after, strict=True))}
    return found | streams_by_member(source.generators)


def _nudged_outcome(
    source: Source, run: Callable[[], list[Tensor]], restore: Callable[[], None], number: int
) -> Outcome:
    """Likewise, when the last bits of parameters and inputs have changed, which are as before afterwards."""
    there = [tensor.detach() for tensor in source.there.values()]
    before = Saved(there, source.generators)

    def changed() -> None:
        restore()
        nudge(there, partial(matmul_precision.rounding, half=source.half), torch.Generator().manual_seed(number))

    try:
        return _outcome(source, run, changed)
    finally:
        before()


def _laps(runs: list[Callable[[], Any]], device: torch.device) -> list[float]:
    """Seconds of one run of each, as medians of alternating laps."""
    clock = clock_of(device)

    def lap(run: Callable[[], Any], count: int) -> float:
        begin = clock()
        for _ in range(count):
            run()
        return (clock() - begin) / count

    counts = [max(1, round(LAP_S / max(lap(run, 2), 1e-6))) for run in runs]
    laps = [[lap(run, count) for run, count in zip(runs, counts, strict=True)] for _ in range(LAPS)]
    return [statistics.median(times) for times in zip(*laps, strict=True)]
