"""Decides whether a replayed step is compiled: it must pay, be faster, and give the same numbers.

Compiling takes seconds to minutes, so it is for long runs. On a GPU a child process compiles while the step is replayed
as a CUDA graph (`background`); then the compiled step is read from the compiler's cache, compared, timed, and swapped
in. There, the step in blocks of one and of all members is compiled beside the one that is replayed, and the fastest is
used: blocks of one have no grouped convolutions, and their identical kernels are compiled once. Gain and cost of each
step are measured and kept with the times of kernels (`kernels/strategy/timing_cache.py`); of a new step they are
assumed to be the medians on this device.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hfta_nb.engine.comparison import Saved, nudge, streams_by_member
from hfta_nb.engine.distances import Change
from hfta_nb.engine.kernels.capture import Backend, Part
from hfta_nb.engine.kernels.cuda_graphs import CudaGraphs
from hfta_nb.engine.kernels.strategy import matmul_precision
from hfta_nb.engine.kernels.strategy.autotune import clock_of
from hfta_nb.engine.kernels.strategy.times import Kept, Times
from hfta_nb.engine.kernels.strategy.timing_cache import kept
from hfta_nb.engine.kernels.strategy.variant_trials import killed, trying
from hfta_nb.engine.replay.inductor.background import BackgroundCompile
from hfta_nb.engine.replay.inductor.compile import Compiled, why_not
from hfta_nb.engine.replay.inductor.norm_overloads import said
from hfta_nb.engine.replay.program import Program
from hfta_nb.engine.replay.source import Source
from hfta_nb.engine.replay.verify import Outcome, differing

COMPILE_MODES = ("auto", "never", "always")

BACKGROUND = {"cuda"}
"""Types of devices for which a child process compiles while training goes on."""


class Usual(NamedTuple):
    """What compiling a step gains and costs on a device.

    Attributes:
        gain: the fraction of a replayed step that it saves.
        compiling_s: its duration in seconds, by call of the step.
        swapping_s: how long training waits for a step that was compiled in the background, in seconds.
    """

    gain: float
    compiling_s: float
    swapping_s: float


USUAL = {"cpu": Usual(0.0, 0.15, 5.0), "cuda": Usual(0.25, 0.25, 5.0)}
"""Assumed until the device has compiled a step. On a CPU most models measured lost time (decision 15)."""

LAP_S, LAPS = 0.02, 7
_STEP = "compiled step "
_WAY, _BLOCKS = "compiled", "blocks of"
_ELSEWHERE = "it was not in an earlier run"


def decide(
    program: Program, way: str, steps: float, in_other_blocks: Callable[[], Mapping[int, Source]] = dict
) -> None:
    """Decide whether to compile a program, and compile it; tensors are left unchanged. After an error, it is not
    compiled.

    Args:
        program: its inputs filled in.
        way: "auto" or "always".
        steps: the expected number of further runs, for "auto".
        in_other_blocks: the same step in other blocks of members, by block size.
    """
    program.decision.made = True
    _guarded(program, lambda source: _decided(program, source, way, steps, in_other_blocks))


def swap(program: Program, steps: float) -> None:
    """Use the step that another process has compiled, if it is faster and gives the same numbers; as `decide`."""
    pending, program.decision.pending = program.decision.pending, None
    assert pending is not None  # it is due

    def settled(source: Source) -> None:
        if pending.failure:
            program.decision.note = f"not compiled: {pending.failure}"
        else:
            _settled(program, source, steps, pending.seconds)

    _guarded(program, settled)


def _guarded(program: Program, decided: Callable[[Source], None]) -> None:
    try:
        if program.source is not None:
            decided(program.source)
    except Exception as error:
        program.decision.note = _failed(error)
    if program.decision.pending is None:
        program.decision.candidates = {}


def _decided(
    program: Program, source: Source, way: str, steps: float, in_other_blocks: Callable[[], Mapping[int, Source]]
) -> None:
    decision, device = program.decision, source.device
    reason = why_not(source, device)
    if reason:
        decision.note = f"not compiled: {reason}"
        return
    times, what = kept(device), _name(source)
    if killed(times, what, _WAY):
        decision.note = "not compiled: the process ended when it was tried"
        return
    known, measure = times.get(what), cache(lambda: _timed(program))

    def choose() -> None:
        decision.candidates = _candidates(source, known, in_other_blocks)

    if way == "always":
        choose()
        _measured(program, source, always=True)
        return
    length = _length(source, steps)
    decided = times.get(length)
    pays, why = _pays(source, known, measure, steps)
    if decided is None and not pays:
        decided = times.put(length, {"replayed": None})
    if decided is not None and _WAY not in decided:
        decision.note = f"not compiled: {why or _ELSEWHERE}"
        return
    choose()
    if decided is not None:
        _measured(program, source, always=True)
    elif device.type in BACKGROUND:
        calls = sum(len(one.calls) for one in decision.candidates.values())
        if known is None and not _pays(source, known, measure, steps / 2, calls)[0]:  # half of the run has to be left
            decision.candidates = {0: source}
        decision.pending = BackgroundCompile([*decision.candidates.values()])
        decision.note = "not compiled yet: another process compiles it"
    else:
        _settled(program, source, steps)


def _candidates(
    source: Source, known: Times | None, in_other_blocks: Callable[[], Mapping[int, Source]]
) -> dict[int, Source]:
    """What may be compiled, by block size, 0 for the blocks that are replayed; one, once the fastest is known."""
    if source.device.type not in BACKGROUND:
        return {0: source}
    fastest = (known or {}).get(_BLOCKS)
    if fastest == 0:
        return {0: source}
    found = {0: source, **in_other_blocks()}
    return {size: one for size, one in found.items() if size == fastest} or found


def _settled(program: Program, source: Source, steps: float, compiling_s: float | None = None) -> None:
    """Compile for a run of so many steps, and do as the first such run has done.

    Args:
        compiling_s: how long a child process took; None if none has compiled it.
    """
    decision = program.decision
    if _measured(program, source, compiling_s=compiling_s) is None:
        return
    # Compiled, a step rounds otherwise: what the first run of this length has decided, all others do.
    chosen: Times = {_WAY if decision.compiled is not None else "replayed": None}
    decided = kept(source.device).put(_length(source, steps), chosen)
    if _WAY not in decided and decision.compiled is not None:
        decision.compiled, decision.note = None, f"not compiled: {_ELSEWHERE}"
    elif _WAY in decided and decision.compiled is None:
        _tried(program, source.device, always=True)


def _measured(program: Program, source: Source, always: bool = False, compiling_s: float | None = None) -> Times | None:
    """Compile and compare, and keep the times; None if the compiler failed."""
    times, what = kept(source.device), _name(source)
    with trying(times, what, _WAY):
        found = program.decision.measured = _tried(program, source.device, always)
    if found is not None:
        if compiling_s is not None:
            found |= {"compiling": compiling_s, "swapping": found["compiling"]}
        times.put(what, found)
    return found


def _name(source: Source) -> str:
    return f"{_STEP}{source.digest()}"


def _length(source: Source, steps: float) -> str:
    return f"{_name(source)}, in runs of about 2^{int(steps).bit_length()} steps"


def usual(times: Kept, device: torch.device) -> Usual:
    """What compiling a step gains and costs on this device: medians over the steps that were compiled on it."""
    assumed = USUAL.get(device.type, Usual(0.0, 0.15, 5.0))
    found = [t for t in times.all_of(_STEP) if t.get("replayed") and t.get("compiled") and t.get("calls")]

    def median(of: Callable[[Any], float], among: Sequence[Times], otherwise: float) -> float:
        return statistics.median(map(of, among)) if among else otherwise

    swapped = [t for t in found if t.get("swapping")]
    gain = median(lambda t: 1 - t["compiled"] / t["replayed"], found, assumed.gain)
    each = median(lambda t: t["compiling"] / t["calls"], found, assumed.compiling_s)
    return Usual(max(0.0, gain), each, median(lambda t: t["swapping"], swapped, assumed.swapping_s))


def _pays(
    source: Source, known: Times | None, measure: Callable[[], float], steps: float, calls: int = 0
) -> tuple[bool, str]:
    """True if compiling so many calls, by default those of the step, pays within so many steps; and the reason if
    not."""
    device, known = source.device, known or {}
    in_general = usual(kept(device), device) if device.type != "cpu" else USUAL["cpu"]
    if known:
        before, after, compiling = known.get("replayed"), known.get("compiled"), known.get("compiling")
        if before is None or after is None or compiling is None:
            return False, "it gave other numbers when it was tried"
        if after >= before:
            return False, f"compiled it took {after * 1e3:.3g} ms, not compiled {before * 1e3:.3g} ms"
    elif not in_general.gain:
        return False, f'on a {device.type} most steps are slower compiled; "always" measures this one'
    else:
        before, compiling = measure(), in_general.compiling_s * (calls or len(source.calls))
        after = before * (1 - in_general.gain)
    cost = compiling
    if device.type in BACKGROUND:  # training goes on meanwhile, and waits for the swap alone
        cost, steps = known.get("swapping") or in_general.swapping_s, max(0.0, steps - compiling / before)
    if (before - after) * steps <= cost:
        return False, f"it takes about {compiling:.0f} s, more than {steps:.0f} steps would save"
    return True, ""


def _tried(program: Program, device: torch.device, always: bool) -> Times | None:
    """Compile and compare; the times, or None if the compiler failed."""
    decision, source = program.decision, program.source
    assert source is not None  # checked by the caller
    restore = _saved(source)
    replay = program.kernel_by_kernel
    try:
        runs, trouble, cost = _proven(source, decision.candidates, replay, restore)
        if not runs:
            decision.note = f"not compiled: compiled, the step {trouble}"
            return {"replayed": None, "compiled": None, "compiling": cost}
        replayed, *laps = _laps([replay, *runs.values()], source)
        faster, size = min(zip(laps, runs, strict=True))
        text = f"compiled in {cost:.1f} s: {faster * 1e3:.3g} ms, not compiled {replayed * 1e3:.3g} ms"
        text += f" (compiled in blocks of {size})" if size else ""
        if always or faster < replayed:
            decision.compiled, decision.note = runs[size], text
        else:
            decision.note = f"not compiled: {text}"
        calls = sum(len(one.calls) for one in decision.candidates.values())
        found = {"replayed": replayed, "compiled": faster, "compiling": cost, "calls": float(calls)}
        return {**found, _BLOCKS: float(size)}
    except Exception as error:
        decision.note = _failed(error)
        return None
    finally:
        restore()


def _proven(
    source: Source, candidates: Mapping[int, Source], replay: Callable[[], list[Tensor]], restore: Callable[[], None]
) -> tuple[dict[int, Compiled], str, float]:
    """Compile candidates; those that give the numbers of the replayed step, how another differs, and the time in
    seconds.

    Raises:
        Exception: the compiler's, of the first of them; others that fail are left out.
    """
    begin = time.perf_counter()
    compiled: dict[int, Compiled] = {}
    for size, candidate in candidates.items():
        with suppress(Exception) if compiled else nullcontext():
            compiled[size] = Compiled(candidate)
    cost = time.perf_counter() - begin
    expected = _outcome(source, replay, restore)
    # In float64, rounding is too small to turn a unit on or off.
    kinks = all(buffer.dtype != torch.float64 for _, buffer in source.gradients)
    again = partial(_nudged_outcome, source, replay, restore)
    troubles: dict[int, str] = {}
    for size, run in compiled.items():
        with suppress(Exception) if troubles else nullcontext():
            found = _outcome(source, run, restore)
            troubles[size] = differing(found, expected, len(source.generators), again, source.half, kinks)
    right = {size: compiled[size] for size, trouble in troubles.items() if not trouble}
    return right, next(filter(None, troubles.values()), ""), cost


def _failed(error: Exception) -> str:
    return f"not compiled: {(str(error).strip() or type(error).__name__).splitlines()[0]}"


def _timed(program: Program) -> float:
    """Seconds of a replayed step."""
    assert program.source is not None  # checked by the caller
    restore = _saved(program.source)
    try:
        return _laps([program.kernel_by_kernel], program.source)[0]
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


def backend_for(source: Source) -> Backend | None:
    """Captures steps for timing, in a pool of their own; None on a CPU."""
    return CudaGraphs(source.device, source.generators) if source.device.type == "cuda" else None


def _laps(runs: list[Callable[[], Any]], source: Source) -> list[float]:
    """Seconds of one run of each, as medians of alternating laps; on a GPU within CUDA graphs, as they are used."""
    clock, backend = clock_of(source.device), backend_for(source)
    if backend is not None and not backend.refused():
        for run in runs:
            backend.warm(run)
        runs = [backend.capture(Part(run, source.draws)).run for run in runs]

    def lap(run: Callable[[], Any], count: int) -> float:
        begin = clock()
        for _ in range(count):
            run()
        return (clock() - begin) / count

    counts = [max(1, round(LAP_S / max(lap(run, 2), 1e-6))) for run in runs]
    laps = [[lap(run, count) for run, count in zip(runs, counts, strict=True)] for _ in range(LAPS)]
    return [statistics.median(times) for times in zip(*laps, strict=True)]
