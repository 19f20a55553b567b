"""Libraries that a wheel brings, compiled where it was built (`.ci/wheels.py`), for machines without a compiler.

A checkout and the wheel for any platform have none. A folder holds the libraries of one kind of processor, and the hash
of the sources that they were compiled from.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from hfta_nb.engine.kernels.native.c_sources import sources_digest

FOLDER = Path(__file__).with_name("prebuilt")
DIGEST = "sources.txt"
"""The file with the hash of the sources."""

_V3 = {"avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"}
_V4 = {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}


def library(name: str) -> Path | None:
    """The library of ``<name>.c`` for this processor; None if there is none."""
    for level in levels():
        found = FOLDER / level / f"{name}.so"
        if found.is_file() and _digest(FOLDER / level) == sources_digest():
            return found
    return None


@cache
def levels() -> tuple[str, ...]:
    """Names of the kinds of processors that this one belongs to, the widest instructions first."""
    return tuple(_levels(sys.platform, platform.machine().lower(), _flags()))


def _levels(system: str, machine: str, flags: set[str]) -> Iterator[str]:
    if system == "linux" and machine in ("x86_64", "amd64"):
        if flags >= _V3 | _V4:
            yield "linux-x86-64-v4"
        if flags >= _V3:
            yield "linux-x86-64-v3"
    elif (system, machine) in (("linux", "aarch64"), ("darwin", "arm64")):
        yield f"{system}-arm64"


def _flags() -> set[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return set()
    return set(next((line for line in lines if line.startswith("flags")), "").partition(":")[2].split())


@cache
def _digest(folder: Path) -> str:
    try:
        return (folder / DIGEST).read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def wanted() -> bool:
    """False if the environment names a compiler, a processor or flags: then libraries are compiled by these."""
    return not any(os.environ.get(name) for name in ("CC", "HFTA_NB_NATIVE_MARCH", "HFTA_NB_NATIVE_FLAGS"))
