"""Vector widths for which the package's own kernels are compiled, and which of them this processor supports."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from hfta_nb.engine.kernels.native import build

NATIVE = "native"
"""Whatever this processor has, or `build.MARCH` asks for."""


@dataclass(frozen=True)
class Width:
    """How kernels are compiled for a width.

    Attributes:
        march: for the compiler's ``-march``; empty for its default.
        needs: words among the processor's flags, without which it can't run that.
        flags: given to the compiler as well.
    """

    march: str = ""
    needs: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()


_PLAIN = ("-fno-tree-vectorize", "-DHFTA_NO_SHUFFLE")
"""As close to one number at a time as compilers go, and without a builtin that older ones lack."""
_AVX2 = ("avx2", "bmi1", "bmi2", "f16c", "fma", "movbe")
WIDTHS = {"plain": Width(flags=_PLAIN)}
if platform.machine() in ("x86_64", "AMD64"):
    WIDTHS = {
        "plain": Width("x86-64", flags=_PLAIN),
        "v2": Width("x86-64-v2", ("cx16", "popcnt", "sse4_1", "sse4_2", "ssse3")),
        "v3": Width("x86-64-v3", _AVX2),
        "v4": Width("x86-64-v4", (*_AVX2, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")),
    }


@cache
def _flags() -> frozenset[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line for line in lines if line.startswith("flags")), "").split())


def runs(name: str) -> bool:
    """Whether this processor has what the width needs."""
    return _flags() >= set(WIDTHS[name].needs)


RUNNING = [name for name in WIDTHS if runs(name)]
NARROWER = RUNNING if len(WIDTHS) == 1 else RUNNING[:-1]
"""The last of those that run is what `NATIVE` is."""


@cache
def compiler() -> str | None:
    """The C compiler that kernels are compiled with."""
    return build._compiler(os.environ.get("CC", ""))


@cache
def _known(compiler: str, march: str) -> bool:
    command = [compiler, f"-march={march}", "-E", "-x", "c", os.devnull]
    return not march or subprocess.run(command, capture_output=True, check=False).returncode == 0


def skip_unless_known(name: str, compiler: str | None) -> None:
    """Skip a test where there is no compiler, or one that is too old to know the width."""
    if compiler is None or shutil.which(compiler) is None:
        pytest.skip("no compiler")
    if not _known(compiler, WIDTHS[name].march):
        pytest.skip(f"the compiler does not know -march={WIDTHS[name].march}")


def choose(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on kernels are compiled for this width."""
    if name == NATIVE:
        return
    skip_unless_known(name, compiler())
    width = WIDTHS[name]
    monkeypatch.setenv(build.MARCH, width.march)
    flags = *os.environ.get(build.FLAGS, "").split(), *width.flags
    monkeypatch.setenv(build.FLAGS, " ".join(flags))
