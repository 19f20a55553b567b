"""One row of the suite: all modes of a job, interleaved."""

from __future__ import annotations

import contextlib
import gc
import math
import statistics
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks.common import Timing
from benchmarks.suite.activity import activity
from benchmarks.suite.agreement import agrees, differences, rounding, tolerances
from benchmarks.suite.beginning import measured
from benchmarks.suite.job import Job, UnavailableError, numbers
from benchmarks.suite.machine import Load
from benchmarks.suite.memory import Peak
from benchmarks.suite.modes import MODES, SERIAL
from benchmarks.suite.modes.base import Lap, Mode
from benchmarks.suite.shares import Profile, profiled
from benchmarks.suite.tasks import Feed
from benchmarks.suite.work import Work, roofline

TRACE = 4000
"""Characters of the end of an error's traceback that are kept in the row."""

LEAST_ROUNDS = 7
SETTLED = 0.01
"""Rounds end early, but not before so many, when no median of a ratio is less sure than this (its standard error, of a
normal distribution with these quartiles)."""


@dataclass
class Entry:
    """A mode of a row while it is measured.

    Attributes:
        why: why there is no figure; empty if there is one.
        begin_s: from the start to the end of the check: construction, compiling, tuning, recording, and the steps.
        losses: ``[steps][M]`` since the start.
        laps: the rounds that count.
    """

    name: str
    mode: Mode | None = None
    why: str = ""
    prepare_s: float = 0.0
    begin_s: float = 0.0
    memory_bytes: int | None = None
    losses: list[list[float]] = field(default_factory=list)
    laps: list[Lap] = field(default_factory=list)
    activity: dict[str, float] = field(default_factory=dict)
    seen: Profile | None = None
    note: str = ""
    trace: str = ""

    def build(self, job: Job) -> None:
        """Create the mode and make the steps of the check, which also warm it up."""
        peak = Peak(job.where)
        begin_s = time.perf_counter()
        self.mode = MODES[self.name](job)
        self.losses += self.mode.lap(1).losses
        self.prepare_s = time.perf_counter() - begin_s
        peak.begin()
        self.losses += self.mode.lap(job.check_steps - 1).losses
        self.begin_s = time.perf_counter() - begin_s
        own = self.mode.own_memory()
        self.memory_bytes = peak.bytes() if own is None else own
        self.note = self.mode.note

    def go(self, steps: int) -> None:
        """One lap."""
        assert self.mode is not None
        self.laps.append(self.mode.lap(steps))
        self.losses += self.laps[-1].losses

    def look(self) -> None:
        """Measurements outside of the rounds: a GPU's counters, the calls of a step."""
        assert self.mode is not None
        if self.mode.job.where.type == "cuda":
            self.activity = activity(self.mode, self.step_s)
        self.seen = profiled(self.mode, self.step_s)

    @property
    def step_s(self) -> float:
        """Median over the laps."""
        return statistics.median(lap.wall_s for lap in self.laps) / len(self.laps[0].losses)

    def close(self) -> None:
        if self.mode is not None:
            with contextlib.suppress(UnavailableError):
                self.mode.close()
        self.mode = None

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """Turn an error within the context into the reason why there is no figure, and release the mode's memory."""
        try:
            yield
        except Exception as error:
            self.why, self.laps = _reason(error), []
            if not isinstance(error, UnavailableError):
                self.trace = "".join(traceback.format_exception(error))[-TRACE:]
            self.close()
            del error
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()


def measure(
    job: Job,
    names: Sequence[str],
    peaks: dict[str, Any] | None,
    *,
    rounds: int,
    lap_s: float,
    begin: bool = False,
) -> list[dict[str, Any]]:
    """All modes of a job, their laps interleaved.

    Args:
        job: what is trained.
        names: of modes; "serial", the reference, comes first in any case.
        peaks: see `machine.peaks`; None where the device can't do the precision.
        rounds: laps of each mode, at most.
        lap_s: how long a serial lap is to take; all modes take as many steps as it does.
        begin: measure in another process when "ours" has paid for its beginning, from its first step on.

    Returns:
        A record per mode, without the description of the machine.
    """
    row = _Row(job, [Entry(name) for name in dict.fromkeys(["serial", *names])])
    with numbers(job), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop")
        try:
            job.check()
            row.build(lap_s)
            row.go(rounds)
            row.look()
        except UnavailableError as error:
            for entry in row.entries:
                entry.why = entry.why or str(error)
        finally:
            for entry in row.entries:
                entry.close()
            torch.compiler.reset()  # only here: it makes every compiled mode compile again
    found = row.records(peaks)
    for record in found:
        if begin and record["mode"] == "ours" and record.get("agrees"):
            record["beginning"] = measured(job, torch.get_num_threads())
            record["pays_after_steps"] = record["beginning"]["pays_after_steps"]
    return found


@dataclass
class _Row:
    """All modes of a job, serial training first; each method raises `UnavailableError` if that has failed.

    Attributes:
        work, fetch_s: the work of a step of one member, and the time to draw a batch.
        steps: of a lap.
        rounded: the effect of rounding on serial training.
        rounds: how many were made.
    """

    job: Job
    entries: list[Entry]
    load: Load = field(default_factory=Load)
    work: Work | None = None
    fetch_s: float | None = None
    steps: int = 0
    rounded: dict[str, float] | None = None
    rounds: int = 0

    def build(self, lap_s: float) -> None:
        """Create all modes, and determine the number of steps of a lap."""
        serial = self.entries[0]
        with serial.guarded():
            self.work, self.fetch_s = Work.of(self.job), _fetch_s(self.job)
        _needs(serial)
        for entry in self.entries:
            with entry.guarded():
                entry.build(self.job)
        with serial.guarded():
            self.steps = _steps(serial, lap_s)
        _needs(serial)

    def go(self, rounds: int) -> None:
        """Make rounds until further ones would add little."""
        self.load.mark()
        for number in range(rounds):
            _round(self.entries, number, self.steps)
            self.load.mark()
            self.rounds = number + 1
            if self.rounds >= LEAST_ROUNDS and _settled(self.entries):
                break
        _needs(self.entries[0])
        self.rounded = _rounded(self.job, self.entries)

    def look(self) -> None:
        """Make the measurements outside of the rounds."""
        for entry in self.entries:
            if not entry.why:
                with entry.guarded():
                    entry.look()

    def records(self, peaks: dict[str, Any] | None) -> list[dict[str, Any]]:
        """A record per mode."""
        common = {"steps_per_lap": self.steps, "rounds": self.rounds, "load": self.load.summary()}
        if self.entries[0].why or self.work is None or self.rounded is None:
            return [_head(self.job, entry) | common for entry in self.entries]
        allowed = tolerances(self.job.precision, self.rounded)
        found = _records(self.job, self.entries, allowed, self.rounded, self.work, peaks, self.fetch_s)
        return [record | common for record in found]


def unmeasured(job: Job, mode: str, error: Exception, trace: str) -> dict[str, Any]:
    """The record of a mode in a row that failed as a whole."""
    nothing = {"steps_per_lap": 0, "rounds": 0, "load": Load().summary()}
    return _head(job, Entry(mode, why=_reason(error), trace=trace[-TRACE:])) | nothing


def _records(
    job: Job, entries: list[Entry], allowed: Any, rounded: Any, work: Work, peaks: Any, fetch_s: float | None
) -> list[dict[str, Any]]:
    """The records of the modes: times, ratios to the best serial one if the losses agree, limits."""
    right = [e for e in entries if not e.why and agrees(_apart(job, e, entries[0]), allowed)]
    best = min((e for e in right if e.name in SERIAL), key=lambda e: e.step_s)
    found = []
    for entry in entries:
        record = _head(job, entry)
        if not entry.why:
            checked = {"agrees": entry in right, "differences": _apart(job, entry, entries[0]), "tolerances": allowed}
            record |= checked | {"rounding": rounded} | _times(entry)
            record |= _worth(job, entry, entries[0], best) if entry in right else dict.fromkeys(WORTH)
            record |= _limits(job, entry, work, peaks, fetch_s)
        found.append(record)
    return found


def _round(entries: list[Entry], number: int, steps: int) -> None:
    """One lap of each; the order is rotated by one each round, and every other round is reversed."""
    turn = number % len(entries)
    order = entries[turn:] + entries[:turn]
    gc.collect()
    for entry in order if number % 2 == 0 else reversed(order):
        if not entry.why:
            with entry.guarded():
                entry.go(steps)


def _settled(entries: list[Entry]) -> bool:
    """True if further rounds would add little."""
    for entry in entries:
        if not entry.why:
            ratios = Timing.of([a.wall_s / b.wall_s for a, b in zip(entries[0].laps, entry.laps, strict=True)])
            error = 0.93 * (ratios.high_s - ratios.low_s) / math.sqrt(len(entry.laps))
            if error > SETTLED * ratios.median_s:
                return False
    return True


def _steps(serial: Entry, lap_s: float) -> int:
    """Steps of a lap: as many as serial training makes in that time."""
    _needs(serial)
    assert serial.mode is not None
    lap = serial.mode.lap(2)
    serial.losses += lap.losses
    return max(2, min(200, round(lap_s / (lap.wall_s / 2))))


def _rounded(job: Job, entries: list[Entry]) -> dict[str, float]:
    """What rounding alone does to serial's losses, which takes as long as three checks of serial; empty where nobody
    needs that to agree, or there is no memory for it."""
    fixed = tolerances(job.precision, {})
    if all(entry.why or agrees(_apart(job, entry, entries[0]), fixed) for entry in entries):
        return {}
    try:
        return rounding(job, entries[0].losses[: job.check_steps])
    except torch.OutOfMemoryError:
        return {}


def _needs(serial: Entry) -> None:
    if serial.why:
        raise UnavailableError(f"nothing to compare with: serial {serial.why}")


def _fetch_s(job: Job) -> float:
    """Seconds to draw one batch."""
    feed = Feed(job.task, job.where)
    times = []
    for number in range(32):
        begin_s = time.perf_counter()
        feed(number)
        if job.where.type == "cuda":
            torch.cuda.synchronize(job.where)
        times.append(time.perf_counter() - begin_s)
    return statistics.median(times)


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())[:300]
    if isinstance(error, UnavailableError):
        return text
    if "out of memory" in text.lower() or "RESOURCE_EXHAUSTED" in text or "can't allocate memory" in text:
        return f"out of memory: {text}"
    return f"failed with {type(error).__name__}: {text}"


WORTH = ("samples_per_s", "ratio_to_serial", "ratio_to_best_serial", "best_serial", "pays_after_steps")
"""Fields that a mode whose losses do not agree lacks."""


def _apart(job: Job, entry: Entry, serial: Entry) -> dict[str, float]:
    return differences(entry.losses, serial.losses, job.check_steps)


def _head(job: Job, entry: Entry) -> dict[str, Any]:
    """Fields of every record."""
    record: dict[str, Any] = {
        **{"model": job.model, "members": job.members, "precision": job.precision, "mode": entry.name},
        **{"measured": not entry.why, "why": entry.why or None, "note": entry.note or None},
        **({"traceback": entry.trace} if entry.trace else {}),
        **{"own_lr": job.own_lr, "quick": job.quick},
    }
    return record | {"size": job.task.size, "batch": job.task.batch}


def _times(entry: Entry) -> dict[str, Any]:
    """The duration of a step of all members, and its memory."""
    steps = len(entry.laps[0].losses)
    wall = Timing.of([lap.wall_s / steps for lap in entry.laps])
    cpu = [lap.cpu_s / steps for lap in entry.laps]
    device = [lap.device_s / steps for lap in entry.laps if lap.device_s is not None]
    return {
        "first_losses": entry.losses[0],
        "last_losses": entry.losses[-1],
        "step_s": {"median": wall.median_s, "low": wall.low_s, "high": wall.high_s, "rounds": list(wall.rounds_s)},
        "step_cpu_s": {"median": statistics.median(cpu), "rounds": cpu},
        "step_device_s": statistics.median(device) if device else None,
        "prepare_s": entry.prepare_s,
        "begin_s": entry.begin_s,
        "memory_bytes": entry.memory_bytes,
        "activity": entry.activity or None,
    }


def _worth(job: Job, entry: Entry, serial: Entry, best: Entry) -> dict[str, Any]:
    """Figures derived from the times, only for a mode whose losses agree."""
    return {
        "samples_per_s": job.members * job.task.batch / entry.step_s,
        "ratio_to_serial": _ratio(serial, entry),
        "ratio_to_best_serial": _ratio(best, entry),
        "best_serial": best.name,
        "pays_after_steps": _pays_after(job, entry, serial),
    }


def _pays_after(job: Job, entry: Entry, serial: Entry) -> int | None:
    """After how many steps the time to begin (tuning, recording) has been regained; None if never."""
    gain_s, lead_s = serial.step_s - entry.step_s, entry.begin_s - serial.begin_s
    if lead_s <= 0:
        return job.check_steps
    return job.check_steps + math.ceil(lead_s / gain_s) if gain_s > 0 else None


def _ratio(base: Entry, entry: Entry) -> dict[str, float]:
    """Speed relative to another mode, round by round, by wall time and by processor time."""
    ratios = Timing.of([a.wall_s / b.wall_s for a, b in zip(base.laps, entry.laps, strict=True)])
    cpu = [a.cpu_s / b.cpu_s for a, b in zip(base.laps, entry.laps, strict=True) if b.cpu_s > 0]
    found = {"median": ratios.median_s, "low": ratios.low_s, "high": ratios.high_s}
    return found | ({"cpu_median": statistics.median(cpu)} if cpu else {})


def _limits(job: Job, entry: Entry, work: Work, peaks: dict[str, Any] | None, fetch_s: float | None) -> dict[str, Any]:
    """Operations, and the fraction of the device's limits that the mode reaches."""
    step_s = entry.step_s
    rate = job.members * work.flop / step_s
    fetches = job.members if entry.name in (*SERIAL, "processes", "mps") else 1
    shared = None if fetch_s is None or entry.name == "jax" else fetches * fetch_s / step_s
    return {
        "flop_per_step": job.members * work.flop,
        "moved_bytes_per_step": job.members * work.moved_bytes,
        "flop_per_s": rate,
        "fraction_of_peak": rate / peaks["matrix_flop_per_s"] if peaks else None,
        "data_share": shared,
        "roofline": roofline(work, job.members, step_s, peaks, entry.seen) if peaks else None,
        "peaks": peaks,
        "longest": None if entry.seen is None else [list(kernel) for kernel in entry.seen.longest],
    }
