"""What all benchmarks share: interleaved timing, its spread, and a record of the machine beside the figures."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import hfta_nb

RESULTS = Path(__file__).resolve().parent / "results"
PACKAGES = ("torch", "numpy")


@dataclass(frozen=True)
class Timing:
    """How long something took, over several rounds.

    Attributes:
        median_s, low_s, high_s: median and quartiles.
        rounds_s: every round, in the order in which they were made.
    """

    median_s: float
    low_s: float
    high_s: float
    rounds_s: tuple[float, ...]

    @classmethod
    def of(cls, rounds_s: Sequence[float]) -> Timing:
        """From the times of some rounds; one round has no spread."""
        low, _, high = statistics.quantiles(rounds_s, n=4) if len(rounds_s) > 1 else (rounds_s[0],) * 3
        return cls(statistics.median(rounds_s), low, high, tuple(rounds_s))

    def __str__(self) -> str:
        return f"{self.median_s:.3f} s ({self.low_s:.3f} to {self.high_s:.3f})"


_OPTIONS: dict[str, dict[str, Any]] = {
    "members": {"type": int, "nargs": "+", "help": "members of the arrays, one number or several"},
    "models": {"nargs": "+"},
    "rounds": {"type": int, "help": "how often each is timed"},
    "lap": {"type": float, "help": "seconds of a lap, about"},
    "out": {"type": Path, "help": "where to write the results, as JSON"},
    "json": {"action": "store_true", "help": "rows as JSON on the standard output, and no words"},
    "quick": {"action": "store_true", "help": "as little as shows that it works"},
}


def options(doc: str | None, **defaults: Any) -> argparse.ArgumentParser:
    """A parser with the options that several benchmarks have: those that are named here, with these defaults.

    Args:
        doc: the benchmark's docstring, whose first line describes it.
        defaults: of ``models``, what there is to choose from.
    """
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    for name, default in defaults.items():
        choices = {"choices": default} if name == "models" else {}
        parser.add_argument(f"--{name}", default=default, **_OPTIONS[name], **choices)
    return parser


def interleaved(tasks: Mapping[str, Callable[[], object]], rounds: int, warm_up: int = 1) -> dict[str, Timing]:
    """Time tasks in turn, round by round, so that whatever else the machine does meets all of them alike.

    Args:
        tasks: by name; one that returns a float tells its own time in seconds (of a process it started, say).
        rounds: how often each is timed, from 1. Every other round goes backwards, so that none is always after another.
        warm_up: rounds before, which don't count: files come into the cache, code is compiled.
    """
    times: dict[str, list[float]] = {name: [] for name in tasks}
    for number in range(-warm_up, rounds):
        order = list(tasks.items())
        for name, task in order if number % 2 == 0 else reversed(order):
            begin = time.perf_counter()
            told = task()
            took = told if isinstance(told, float) else time.perf_counter() - begin
            if number >= 0:
                times[name].append(took)
    return {name: Timing.of(found) for name, found in times.items()}


def laps(
    steps: Mapping[str, Callable[[], object]],
    rounds: int,
    *,
    calls: int | None = None,
    lap_s: float = 0.0,
    clock: Callable[[], float] = time.process_time,
    warm_up: int = 0,
) -> dict[str, list[float]]:
    """Seconds of one call of each step, a figure a lap; laps are interleaved, and every other round goes backwards.

    Args:
        steps: by name.
        rounds: laps of each.
        calls: how many make a lap; None for as many as fill `lap_s` seconds, one at least.
        clock: what tells the time, in seconds.
        warm_up: rounds before, which don't count.
    """
    times: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(-warm_up, rounds):
        for name, step in list(steps.items())[:: 1 if number % 2 else -1]:
            begin, done = clock(), 0
            while done < calls if calls is not None else done == 0 or clock() - begin < lap_s:
                step()
                done += 1
            took = (clock() - begin) / done
            if number >= 0:
                times[name].append(took)
    return times


def calls_in(lap_s: float, step: Callable[[], object]) -> int:
    """How many calls a processor makes in so many seconds, about; one at least."""
    begin = time.process_time()
    step()
    return max(1, round(lap_s / (time.process_time() - begin)))


def milliseconds(
    times: Mapping[str, Sequence[float]], of: Callable[[Sequence[float]], float] = statistics.median
) -> dict[str, float]:
    """The median of times in seconds, or what else is asked for, in milliseconds."""
    return {name: round(of(found) * 1e3, 4) for name, found in times.items()}


def environment(packages: Sequence[str] = PACKAGES) -> dict[str, Any]:
    """What a figure depends on: processor, GPU, system, versions, load, and the command that was typed."""
    return {
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "gpu": gpu(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {"hfta_nb": hfta_nb.__version__, **{name: _version(name) for name in packages}},
        "threads_variable": os.environ.get("OMP_NUM_THREADS", ""),
        "load_average_1min": round(os.getloadavg()[0], 2),
        "command": command(),
    }


def command() -> str:
    """How this program was started, from the project's root."""
    name = Path(sys.argv[0]).resolve()
    shown = name.relative_to(RESULTS.parents[1]) if name.is_relative_to(RESULTS.parents[1]) else name.name
    return shlex.join(["python", str(shown), *sys.argv[1:]])


def processor() -> str:
    """The name of the processor."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def gpu() -> str:
    """The name of the first GPU that torch sees; empty without one."""
    import torch

    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else ""


def write(name: str, figures: Mapping[str, Any], packages: Sequence[str] = PACKAGES) -> Path:
    """Keep figures, with the environment that they were measured in, as ``results/NAME.json``.

    The variable ``BENCHMARKS_RESULTS`` names another folder.
    """
    folder = Path(os.environ.get("BENCHMARKS_RESULTS") or RESULTS)
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.json"
    plain = {key: asdict(value) if isinstance(value, Timing) else value for key, value in figures.items()}
    content = {**plain, "environment": environment(packages)}
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return path


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
