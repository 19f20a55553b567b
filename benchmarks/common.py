"""Common functions of the benchmarks: interleaved timing with spread, and a record of the machine."""

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
    """The duration of something, over several rounds.

    Attributes:
        median_s, low_s, high_s: median and quartiles.
        rounds_s: every round, in order.
    """

    median_s: float
    low_s: float
    high_s: float
    rounds_s: tuple[float, ...]

    @classmethod
    def of(cls, rounds_s: Sequence[float]) -> Timing:
        """From the times of several rounds; a single round has no spread."""
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
    """A parser with the options that several benchmarks have: those named here, with these defaults.

    Args:
        doc: the benchmark's docstring, whose first line is the description.
        defaults: for ``models``, the available choices.
    """
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    for name, default in defaults.items():
        choices = {"choices": default} if name == "models" else {}
        parser.add_argument(f"--{name}", default=default, **_OPTIONS[name], **choices)
    return parser


def interleaved(tasks: Mapping[str, Callable[[], object]], rounds: int, warm_up: int = 1) -> dict[str, Timing]:
    """Time tasks in turn, round by round, so that other load on the machine affects all of them equally.

    Args:
        tasks: by name; a task that returns a float reports its own time in seconds (of a child process, for example).
        rounds: how often each is timed, from 1. The order is reversed in every other round.
        warm_up: rounds before that are not counted, for file caches and compilation.
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
    """Seconds of one call of each step, one value per lap; laps are interleaved, and every other round is reversed.

    Args:
        steps: by name.
        rounds: laps of each.
        calls: calls per lap; None for as many as fill `lap_s` seconds, at least one.
        clock: returns the time in seconds.
        warm_up: rounds before that are not counted.
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
    """The approximate number of calls in so many seconds of processor time; at least one."""
    begin = time.process_time()
    step()
    return max(1, round(lap_s / (time.process_time() - begin)))


def milliseconds(
    times: Mapping[str, Sequence[float]], of: Callable[[Sequence[float]], float] = statistics.median
) -> dict[str, float]:
    """The median (or another statistic) of times in seconds, in milliseconds."""
    return {name: round(of(found) * 1e3, 4) for name, found in times.items()}


def environment(packages: Sequence[str] = PACKAGES) -> dict[str, Any]:
    """The environment of a figure: processor, GPU, system, versions, load, and the command line."""
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
    """The command that started this program, relative to the project's root."""
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
    """Save figures, with their environment, as ``results/NAME.json``.

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
