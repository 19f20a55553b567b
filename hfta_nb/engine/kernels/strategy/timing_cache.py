"""Times of kernels on disk, so that they are measured once per machine.

There is one JSON file per processor, build of torch, sources of this package's kernels, number of threads, limit of
oneDNN's instructions and, on a GPU, setting of TF32. It is in ``hfta_nb`` under the user's cache directory
(``$XDG_CACHE_HOME``, ``~/.cache``), or in ``$HFTA_NB_CACHE``; ``HFTA_NB_CACHE=off`` disables it. Problems with the file
or the directory are no errors: kernels are measured again.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import threading
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import torch

from hfta_nb.engine.kernels.native.c_sources import sources_digest
from hfta_nb.engine.kernels.strategy import matmul_precision, variant_trials
from hfta_nb.engine.kernels.strategy.times import Kept

VARIABLE = "HFTA_NB_CACHE"
_making = threading.RLock()
_LIMITS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
"""Environment variables that limit oneDNN's instructions, and so change its choice of kernels."""


def kept(device: torch.device) -> Kept:
    """The times for this device, torch, number of threads, instructions and meaning of float32."""
    limits = tuple(os.environ.get(name, "") for name in _LIMITS)
    with _making:  # of one file's times, each thread would have its own
        return _kept(*_where(os.environ), device, torch.get_num_threads(), limits, matmul_precision.float32(device))


@cache
def _kept(
    given: str, xdg: str, device: torch.device, threads: int, limits: tuple[str, ...], float32: tuple[str, ...]
) -> Kept:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else _processor()
    machine = {"device": name, "torch": torch.__version__, "threads": threads, "capability": _capability()}
    machine |= {"build": _build(), "limits": list(limits), "kernels": sources_digest()}
    if float32:
        machine["float32"] = " ".join(float32)
    place = folder({VARIABLE: given, "XDG_CACHE_HOME": xdg})
    if place is None:
        return Kept(None, machine)
    digest = hashlib.sha256(json.dumps(machine, sort_keys=True).encode()).hexdigest()[:16]
    found = Kept(place / f"kernels-{digest}.json", machine)
    variant_trials.take_up(found)
    return found


def folder(environment: Mapping[str, str]) -> Path | None:
    """The directory of the files of a process with these environment variables; None if there is none."""
    given, xdg = _where(environment)
    if given.lower() == "off":
        return None
    try:
        return Path(given) if given else (Path(xdg) if xdg else Path.home() / ".cache") / "hfta_nb"
    except RuntimeError:  # there is no home directory
        return None


def _where(environment: Mapping[str, str]) -> tuple[str, str]:
    return environment.get(VARIABLE, ""), environment.get("XDG_CACHE_HOME", "")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()  # the second may start a process


def _capability() -> str:
    """The vector instructions that torch uses."""
    return str(torch.backends.cpu.get_cpu_capability())


def _build() -> str:
    """The build of torch and its libraries: one version of torch may contain different versions of oneDNN."""
    return hashlib.sha256(torch.__config__.show().encode()).hexdigest()[:16]
