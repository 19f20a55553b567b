"""Whether a replayed step is compiled: when that pays, and that it is faster and gives the same numbers.

Compiling takes seconds to minutes, so it is for runs that are long enough. What it brings is measured once and kept
with the times of kernels (`hfta_nb.array.strategy.kept`); without, there is what it brought on this kind of device.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hfta_nb.array.capture.check import close
from hfta_nb.array.capture.compiling import Compiled, Source, why_not
from hfta_nb.array.strategy.kept import Times, kept

if TYPE_CHECKING:
    from hfta_nb.array.capture.program import Program

WAYS = ("auto", "never", "always")

USUAL_GAIN = {"cpu": 0.0, "cuda": 0.1}
"""The share of a replayed step that compiling saves, where it has not been measured yet. On a CPU it cost time with
most models measured (decision 15); for GPUs a cautious guess."""

USUAL_SECONDS, SECONDS_PER_CALL = 10.0, 0.15
"""How long compiling takes, where it has not been measured yet."""

LAP_S, LAPS = 0.02, 7


@dataclass
class Decision:
    """What has been decided about a program.

    Attributes:
        made: whether anything has.
        note: what, in words; empty where nobody asked.
        compiled: runs in the program's place.
        measured: seconds of a step replayed and compiled, and of compiling, where that was tried now.
    """

    made: bool = False
    note: str = ""
    compiled: Compiled | None = None
    measured: Times | None = None


def decide(program: Program, way: str, steps: float) -> None:
    """Compile a program, or don't; tensors are afterwards as they were.

    Args:
        program: its inputs filled in.
        way: "auto" or "always".
        steps: how many more times it will run, as far as is known; of "auto".
    """
    decision, source = program.decision, program.source
    decision.made = True
    if source is None:
        return
    device = source.device
    reason = why_not(source, device)
    if reason:
        decision.note = f"not compiled: {reason}"
        return
    times = kept(device)
    what = f"compiled step {source.digest()}"
    known = times.get(what)
    if way == "auto":
        pays, why = _pays(source, known, lambda: _timed(program, device), steps)
        if not pays:
            decision.note = f"not compiled: {why}"
            return
    found = decision.measured = _tried(program, device, always=way == "always")
    if found is not None:
        times.put(what, found)
        times.write()


def _pays(source: Source, known: Times | None, measure: Callable[[], float], steps: float) -> tuple[bool, str]:
    """Whether compiling pays within so many steps, and why not."""
    if known is not None:
        before, after, cost = known.get("replayed"), known.get("compiled"), known.get("compiling")
        if before is None or after is None or cost is None:
            return False, "it gave other numbers when it was tried"
        if after >= before:
            return False, f"compiled it took {after * 1e3:.3g} ms, replayed {before * 1e3:.3g} ms"
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
    """Compile and compare; the times, or None where the compiler failed."""
    decision, source = program.decision, program.source
    assert source is not None  # asked before
    touched = _touched(program)
    before = [t.clone() for t in touched]
    try:
        begin = time.perf_counter()
        compiled = Compiled(source)
        cost = time.perf_counter() - begin
        results = []
        for run in (program.run, compiled.run):
            _copy(touched, before)
            results.append([*run(), *(t.clone() for t in touched)])
        if not close(*results):
            decision.note = "not compiled: compiled, the step gives other numbers"
            return {"replayed": None, "compiled": None, "compiling": cost}
        replayed, faster = _laps([program.run, compiled.run], device)
        told = f"compiled in {cost:.1f} s: {faster * 1e3:.3g} ms, replayed {replayed * 1e3:.3g} ms"
        if always or faster < replayed:
            decision.compiled, decision.note = compiled, told
        else:
            decision.note = f"not compiled: {told}"
        return {"replayed": replayed, "compiled": faster, "compiling": cost}
    except Exception as error:
        decision.note = f"not compiled: {(str(error).strip() or type(error).__name__).splitlines()[0]}"
        return None
    finally:
        _copy(touched, before)


def _timed(program: Program, device: torch.device) -> float:
    """Seconds of a replayed step."""
    touched = _touched(program)
    before = [t.clone() for t in touched]
    try:
        return _laps([program.run], device)[0]
    finally:
        _copy(touched, before)


def _touched(program: Program) -> list[Tensor]:
    """What a run writes to and others can see."""
    source = program.source
    assert source is not None  # asked before
    written = {s for c in source.calls for s in c.writes}
    return [*(t.detach() for s, t in source.there.items() if s in written), *(room for _, room in source.gradients)]


@torch.no_grad()
def _copy(to: list[Tensor], source: list[Tensor]) -> None:
    for room, value in zip(to, source, strict=True):
        room.copy_(value)


def _laps(runs: list[Callable[[], Any]], device: torch.device) -> list[float]:
    """Seconds of one run of each, medians of laps in turn."""
    clock = time.perf_counter if device.type == "cuda" or torch.get_num_threads() > 1 else time.process_time

    def lap(run: Callable[[], Any], count: int) -> float:
        _wait(device)
        begin = clock()
        for _ in range(count):
            run()
        _wait(device)
        return (clock() - begin) / count

    counts = [max(1, round(LAP_S / max(lap(run, 2), 1e-6))) for run in runs]
    laps = [[lap(run, count) for run, count in zip(runs, counts, strict=True)] for _ in range(LAPS)]
    return [statistics.median(times) for times in zip(*laps, strict=True)]


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
