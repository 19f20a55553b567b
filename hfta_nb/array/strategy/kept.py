"""Times of kernels kept on disk, so that a machine is measured once.

One JSON file per processor, build of torch, number of threads, limit of oneDNN's instructions and, on a GPU, setting of
TF32, in ``hfta_nb`` under the user's cache directory (``$XDG_CACHE_HOME``, ``~/.cache``), or where ``$HFTA_NB_CACHE``
says; ``HFTA_NB_CACHE=off`` keeps nothing. Whatever is wrong with the file or the directory is no error: kernels are
measured anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch

from hfta_nb.array.strategy import precision, trials

VARIABLE = "HFTA_NB_CACHE"
_FORMAT = 1
_LIMITS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
"""Environment variables with the newest instructions that oneDNN may use: by them it takes other kernels."""

Times = dict[str, float | None]
"""Seconds by way to compute; None where it failed or its numbers were not right."""


class Kept:
    """Times by what is computed, read from a file and written to it.

    Args:
        path: of the file; None to keep nothing.
        machine: what times hold for.

    Attributes:
        hopeless: what can't be measured, as this process has found.
    """

    def __init__(self, path: Path | None, machine: dict[str, Any]) -> None:
        self.path, self.machine = path, machine
        self._times: dict[str, Times] = self._read()
        self._new: dict[str, Times] = {}
        self._own: set[str] = set()
        self.hopeless: set[str] = set()

    def get(self, what: str) -> Times | None:
        """Times found earlier."""
        return self._times.get(what)

    def own(self, what: str) -> bool:
        """Whether times were found by this process, rather than read."""
        return what in self._own

    def put(self, what: str, times: Times, lasting: bool = True) -> None:
        """Note times; `write` brings those to disk that last."""
        self._times[what] = times
        self._own.add(what)
        if lasting:
            self._new[what] = times

    def write(self) -> None:
        """Add what is new to the file; other processes may do so too, and of two at the same moment one is lost."""
        if self.path is None or not self._new:
            return
        content = {"format": _FORMAT, "machine": self.machine, "seconds": {**self._read(), **self._new}}
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            number, name = tempfile.mkstemp(dir=self.path.parent, prefix=self.path.stem, suffix=".tmp")
            try:
                with open(number, "w", encoding="utf-8") as file:
                    json.dump(content, file, indent=1)
                os.replace(name, self.path)
            except BaseException:
                os.unlink(name)
                raise
        self._new = {}

    def _read(self) -> dict[str, Times]:
        if self.path is None:
            return {}
        try:
            content = json.loads(self.path.read_text(encoding="utf-8"))
            if content["format"] != _FORMAT or content["machine"] != self.machine:
                return {}
            found = content["seconds"]
            return {k: v for k, v in found.items() if _are_times(v)}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}


def _are_times(found: Any) -> bool:
    return isinstance(found, dict) and all(
        v is None or (isinstance(v, float) and 0 < v < float("inf")) for v in found.values()
    )


def kept(device: torch.device) -> Kept:
    """The times of this device, torch, number of threads, instructions and meaning of float32."""
    limits = tuple(os.environ.get(name, "") for name in _LIMITS)
    return _kept(*_where(os.environ), device, torch.get_num_threads(), limits, precision.float32(device))


@cache
def _kept(
    given: str, xdg: str, device: torch.device, threads: int, limits: tuple[str, ...], float32: tuple[str, ...]
) -> Kept:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else _processor()
    machine = {"device": name, "torch": torch.__version__, "threads": threads, "capability": _capability()}
    machine |= {"build": _build(), "limits": list(limits)}
    if float32:
        machine["float32"] = " ".join(float32)
    place = folder({VARIABLE: given, "XDG_CACHE_HOME": xdg})
    if place is None:
        return Kept(None, machine)
    digest = hashlib.sha256(json.dumps(machine, sort_keys=True).encode()).hexdigest()[:16]
    found = Kept(place / f"kernels-{digest}.json", machine)
    trials.take_up(found)
    return found


def folder(environment: Mapping[str, str]) -> Path | None:
    """Where a process with these environment variables keeps its files; None where it keeps none."""
    given, xdg = _where(environment)
    if given.lower() == "off":
        return None
    try:
        return Path(given) if given else (Path(xdg) if xdg else Path.home() / ".cache") / "hfta_nb"
    except RuntimeError:  # there is no home
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
    """Of torch and the libraries in it: another oneDNN may come with the same version of torch."""
    return hashlib.sha256(torch.__config__.show().encode()).hexdigest()[:16]
