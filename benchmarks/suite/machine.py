"""The machine: which cores are used, its other load, and its peak rates."""

from __future__ import annotations

import contextlib
import os
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor

from benchmarks.common import environment
from benchmarks.suite.job import HALF, Job, numbers

CHANGED = ("status", "--porcelain", "-uno", "--", ".", ":!benchmarks/results", ":!docs/performance.md")

OTHERS = 0.2
"""The most cores that other processes may use; otherwise the suite refuses to measure."""
LOOK_S = 2.0


def settle(device: str, threads: int) -> list[int]:
    """Use so many threads and, on a CPU, so many cores with the least load; child processes inherit both.

    Otherwise, one process per member would use all cores, and the other modes only `threads` of them.

    Returns:
        The cores that this process may use from now on; empty if the system does not provide them.
    """
    os.environ["OMP_NUM_THREADS"] = str(threads)
    torch.set_num_threads(threads)
    if not hasattr(os, "sched_setaffinity"):
        return []
    usable = sorted(os.sched_getaffinity(0))
    busy = psutil.cpu_percent(0.5, percpu=True)
    if device == "cpu" and threads < len(usable) and max(usable) < len(busy):
        usable = sorted(sorted(usable, key=lambda core: busy[core])[:threads])
        os.sched_setaffinity(0, usable)
    return usable


def others(seconds: float = LOOK_S) -> float:
    """Cores that other processes currently use; this process sleeps meanwhile."""
    return sum(psutil.cpu_percent(seconds, percpu=True)) / 100


class Load:
    """The load by other processes from one `mark` to the next."""

    def __init__(self) -> None:
        self._last = self._now()
        self._others: list[float] = []
        self._idle: list[float] = []

    def mark(self) -> None:
        """The end of a round."""
        now = self._now()
        elapsed_s, busy_s, idle_s, own_s = (b - a for a, b in zip(self._last, now, strict=True))
        self._last = now
        if elapsed_s > 0.05 and busy_s + idle_s > 0:
            self._others.append(max(0.0, busy_s - own_s) / elapsed_s)
            self._idle.append(idle_s / (busy_s + idle_s))

    def summary(self) -> dict[str, Any]:
        """Medians over the rounds: cores that other processes used, share of all cores' time that was idle."""
        return {
            "other_cores_median": _median(self._others),
            "other_cores_max": round(max(self._others), 3) if self._others else None,
            "idle_share_median": _median(self._idle),
            "load_average_1min": round(os.getloadavg()[0], 2),
        }

    @staticmethod
    def _now() -> tuple[float, float, float, float]:
        times, me = psutil.cpu_times(), psutil.Process()
        idle_s = times.idle + getattr(times, "iowait", 0.0)
        busy_s = sum(times) - idle_s - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
        own_s = 0.0
        for process in [me, *me.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                own_s += sum(process.cpu_times()[:2])
        return time.perf_counter(), busy_s, idle_s, own_s


def _median(values: list[float]) -> float | None:
    return round(statistics.median(values), 3) if values else None


def description(device: str, threads: int, cores: list[int]) -> dict[str, Any]:
    """The part of every row that describes the machine, the versions and the command."""
    found = environment(("torch", "jax", "numpy"))
    del found["command"], found["load_average_1min"], found["threads_variable"]
    name = torch.cuda.get_device_name(device) if device.startswith("cuda") else found["processor"]
    return {
        "device": device,
        "device_name": name,
        "threads": threads,
        "cores_used": len(cores),
        "omp_wait_policy": os.environ.get("OMP_WAIT_POLICY", ""),
        **found,
        "cuda": torch.version.cuda or "",
        "commit": commit(),
        "command": shlex.join(["python", "-m", "benchmarks", *_measuring(sys.argv[1:])]),
    }


def _measuring(words: Sequence[str]) -> list[str]:
    """The command line without its output file, which may be moved."""
    at = [i for i, word in enumerate(words) if word == "--out"]
    return [w for i, w in enumerate(words) if not w.startswith("--out=") and not {i, i - 1} & set(at)]


def commit() -> str:
    """The commit of the working tree, with "+" if tracked files other than results differ; empty without git."""
    root = Path(__file__).resolve().parents[2]

    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else ""

    try:
        return git("rev-parse", "--short=12", "HEAD") + ("+" if git(*CHANGED) else "")
    except OSError:
        return ""


# Measured peak rates of the device.


def peaks(device: str, precision: str, quick: bool = False) -> dict[str, Any]:
    """The device's peak rates, measured now.

    Returns:
        ``matrix_flop_per_s``: of the best square matrix product, with all sizes in ``matrix_sizes``;
        ``bandwidth``: of the better of copy and triad by bytes moved, which shows caches, ``[bytes, bytes/s]``;
        ``operator_s``: of one operation on a single number that autograd records or runs backward: the cost of a call.
    """
    where = torch.device(device)
    with numbers(Job("mlp", 1, precision, device)):
        rates = {n: _matrix_rate(n, where, precision, quick) for n in _matrix_sizes(where, quick)}
        return {
            "matrix_flop_per_s": max(rates.values()),
            "matrix_sizes": {str(n): rate for n, rate in rates.items()},
            "bandwidth": [[size, _bandwidth(size, where, quick)] for size in _byte_sizes(where, quick)],
            "operator_s": _operator_s(where),
        }


def bandwidth(found: dict[str, Any], working_set: float) -> float:
    """Bytes per second of repeated passes over so many bytes."""
    rates: list[list[float]] = found["bandwidth"]
    at = next((i for i, (size, _) in enumerate(rates) if size >= working_set), len(rates) - 1)
    return max(rate for _, rate in rates[at:])


def _matrix_sizes(where: torch.device, quick: bool) -> tuple[int, ...]:
    if quick:
        return (128, 256)
    return (256, 512, 1024, 2048) if where.type == "cpu" else (1024, 2048, 4096, 8192, 16384)


def _byte_sizes(where: torch.device, quick: bool) -> tuple[int, ...]:
    if quick:
        return (2**16, 2**22)
    small, large = (14, 28) if where.type == "cpu" else (22, 32)
    return tuple(2**power for power in range(small, large + 1, 2))


def _matrix_rate(n: int, where: torch.device, precision: str, quick: bool) -> float:
    dtype = HALF.get(precision, torch.float32)
    a, b = (torch.randn(n, n, device=where).to(dtype) for _ in range(2))
    out = torch.empty(n, n, device=where, dtype=dtype)
    best_s = _best_s(lambda: torch.mm(a, b, out=out), where, quick)
    if where.type == "cpu" and dtype == torch.float32:
        with _another_library() as library:
            if library and _as_exact(n):
                best_s = min(best_s, _best_s(lambda: torch.mm(a, b, out=out), where, quick))
    return 2 * n**3 / best_s


@contextlib.contextmanager
def _another_library() -> Iterator[bool]:
    """Use oneDNN for float32 products within the context (instead of MKL or another BLAS library).

    The setting permits bfloat16, which oneDNN uses on processors with units for it; see `_as_exact`.
    """
    settings = getattr(getattr(torch.backends, "mkldnn", None), "matmul", None)
    before = getattr(settings, "fp32_precision", None)
    if before is None or not torch.backends.mkldnn.is_available():
        yield False
        return
    settings.fp32_precision = "bf16"
    try:
        yield True
    finally:
        settings.fp32_precision = before


def _as_exact(n: int) -> bool:
    """True if products are as exact as in float32; errors in bfloat16 are a thousand times as large."""
    a, b = (torch.rand(64, n, generator=torch.Generator().manual_seed(i)) for i in range(2))
    exact = a.double() @ b.t().double()
    return bool(((a @ b.t()).double() - exact).abs().max() <= 1e-5 * exact.abs().max())


def _bandwidth(size: int, where: torch.device, quick: bool) -> float:
    a, b, c = (torch.randn(max(1, size // 12), device=where) for _ in range(3))
    copy_s = _best_s(lambda: b.copy_(a), where, quick) / (2 * a.nbytes)
    triad_s = _best_s(lambda: torch.add(a, b, alpha=3.0, out=c), where, quick) / (3 * a.nbytes)
    return 1 / min(copy_s, triad_s)


def _operator_s(where: torch.device) -> float:
    first, factor = torch.ones(1, device=where, requires_grad=True), torch.ones(1, device=where)

    def chain() -> Tensor:
        last = first
        for _ in range(100):
            last = last * factor
        [gradient] = torch.autograd.grad(last, first)
        return gradient

    return _best_s(chain, where, quick=False) / 200  # the backward has the same number of products


def _best_s(call: Callable[[], Tensor], where: torch.device, quick: bool) -> float:
    """Seconds of a call: the best mean over several stretches of some milliseconds."""

    def stretch(times: int) -> float:
        _wait(where)
        begin_s = time.perf_counter()
        for _ in range(times):
            call()
        _wait(where)
        return (time.perf_counter() - begin_s) / times

    stretch(1)
    times = max(1, int((0.001 if quick else 0.01) / max(stretch(3), 1e-7)))
    return min(stretch(times) for _ in range(3 if quick else 7))


def _wait(where: torch.device) -> None:
    if where.type == "cuda":
        torch.cuda.synchronize(where)
