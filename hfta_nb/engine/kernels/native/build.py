"""Compiles and loads the C files of this package. A failure is no error: the library is then missing.

A wheel for a platform brings the libraries (`prebuilt`), and nothing is compiled.

Nothing is compiled on import. What first asks for a library waits until it is compiled, once on a machine: results with
it round otherwise than those without, so it must not arrive in the middle of a run, or between the first run and the
second.
Libraries are stored beside the times of kernels (`HFTA_NB_CACHE`) under a name that depends on source, compiler and
processor, so that each machine compiles once and all processes may load the result. ``HFTA_NB_NATIVE=off`` disables
compiling and loading. ``HFTA_NB_NATIVE_MARCH`` names the processor to compile for, and ``HFTA_NB_NATIVE_FLAGS`` is
passed to the compiler. Only the compiler knows which values are valid: if it rejects one, the library is missing; it is
not compiled for another processor instead.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from hfta_nb.engine.kernels.native import background, prebuilt
from hfta_nb.engine.kernels.native.alive import alive
from hfta_nb.engine.kernels.native.c_sources import sources_digest
from hfta_nb.engine.kernels.strategy.timing_cache import VARIABLE as CACHE
from hfta_nb.engine.kernels.strategy.timing_cache import folder

VARIABLE = "HFTA_NB_NATIVE"
MARCH = "HFTA_NB_NATIVE_MARCH"
FLAGS = "HFTA_NB_NATIVE_FLAGS"
_FLAGS = ("-O3", "-std=gnu11", "-fPIC", "-shared", "-pthread")
_OF_THIS_PROCESSOR = ("-march=native", "-mcpu=native")
_TIME_S = 60
_ATTEMPTS = 3
_TRIED = "tried"
"""Marks what `compiling` has tried to compile."""

_loaded: dict[tuple[str, ...], ctypes.CDLL | None] = {}
_compiling = 0


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """Compile missing libraries within the context, also where nothing is stored."""
    global _compiling
    _compiling += 1
    try:
        yield
    finally:
        _compiling -= 1


def library(name: str) -> ctypes.CDLL | None:
    """The library of ``<name>.c``, compiled first if no process has done so; None if it is disabled or can't be.

    Where nothing is stored (`HFTA_NB_CACHE`), it is compiled within `compiling` only. The answer holds for the process.
    """
    if _switched_off():
        return None
    given = _given(name)
    found = _loaded.get(given)
    if found is None and (given not in _loaded or (_compiling > 0 and (*given, _TRIED) not in _loaded)):
        found = _loaded[given] = _library(name)
        if _compiling > 0:
            _loaded[(*given, _TRIED)] = None
    return found


def available(names: Iterable[str]) -> tuple[str, ...]:
    """Those of these libraries that there are; missing ones are compiled first, side by side."""
    names = tuple(names)
    for name in names:
        if _given(name) not in _loaded and not _switched_off() and _prebuilt(name) is None:
            _start(name)
    return tuple(name for name in names if library(name) is not None)


class OwnKernels(NamedTuple):
    """What there is of the kernels in C: where they come from, and the libraries that this process can use or lacks."""

    source: str
    available: tuple[str, ...]
    missing: tuple[str, ...]


def own_kernels() -> OwnKernels:
    """What there is of the kernels in C; missing ones are compiled first, as a run does."""
    there = make_all()
    missing = (source.stem for source in Path(__file__).parent.glob("*.c") if source.stem not in there)
    return OwnKernels(told(), tuple(there), tuple(sorted(missing)))


def make_all() -> list[str]:
    """Compile all missing libraries.

    Returns:
        The names of the available libraries.
    """
    with compiling():
        return list(available(sorted(source.stem for source in Path(__file__).parent.glob("*.c"))))


def _given(name: str) -> tuple[str, ...]:
    return name, *(os.environ.get(v, "") for v in (CACHE, "XDG_CACHE_HOME", "CC", "PATH", MARCH, FLAGS))


def _switched_off() -> bool:
    return os.environ.get(VARIABLE, "").lower() == "off"


def _compiler(cc: str) -> str | None:
    return next((found for c in (cc, "cc", "gcc", "clang") if c and (found := shutil.which(c))), None)


def _start(name: str) -> Path | None:
    """The path of a library that is there or being compiled now; None if it can't be stored or compiled."""
    compiler, place = _compiler(os.environ.get("CC", "")), folder(os.environ)
    if compiler is None or place is None or os.name != "posix":
        return None
    source = Path(__file__).with_name(f"{name}.c")
    with contextlib.suppress(OSError):
        kept = place / f"{name}-{_key(source, compiler)}.so"
        if not kept.is_file():
            background.compile_into(kept, [_command(compiler, machine, source) for machine in _machines()])
        return kept
    return None


def told() -> str:
    """For people: where this process's own kernels come from, or why there are none."""
    if _switched_off():
        return f"none ({VARIABLE}=off)"
    found = _prebuilt("rows")
    if found is not None:
        return f"prebuilt for {found.parent.name}"
    compiler = _compiler(os.environ.get("CC", ""))
    if compiler is None or os.name != "posix":
        return "none (no C compiler: gcc, clang or cc; a wheel for this platform would bring them)"
    return f"compiled on this machine by {compiler}"


def _prebuilt(name: str) -> Path | None:
    return prebuilt.library(name) if prebuilt.wanted() else None


def _library(name: str) -> ctypes.CDLL | None:
    with contextlib.suppress(OSError):  # a C library that this system's loader can't bind: then it is compiled
        found = _prebuilt(name)
        if found is not None:
            return ctypes.CDLL(str(found))
    with contextlib.suppress(OSError):
        kept = _start(name)
        if kept is not None:
            for _ in range(_ATTEMPTS):
                background.wait_for(kept)
                if kept.is_file() or kept.with_suffix(".failed").exists():
                    break
                _start(name)  # whoever compiled it was killed; without it, this process would choose otherwise
            return ctypes.CDLL(str(kept)) if kept.is_file() else None
        compiler = _compiler(os.environ.get("CC", ""))
        if compiler is not None and os.name == "posix" and _compiling > 0:
            with tempfile.TemporaryDirectory() as room:
                made = _compiled(compiler, Path(__file__).with_name(f"{name}.c"), Path(room))
                return None if made is None else ctypes.CDLL(str(made))  # loaded, it no longer needs its file
    return None


def _compiled(compiler: str, source: Path, room: Path) -> Path | None:
    """Compile for this processor, or else for any of its architecture; for the named one only, if one is named."""
    out = room / "library.so"
    for machine in _machines():
        command = [*_command(compiler, machine, source), "-o", str(out)]
        try:
            done = subprocess.run(command, capture_output=True, timeout=_TIME_S, check=False)
        except subprocess.SubprocessError:
            return None
        if done.returncode == 0 and out.is_file() and alive(out):
            return out
    return None


def _machines() -> tuple[str | None, ...]:
    march = os.environ.get(MARCH)
    return (f"-march={march}",) if march else (*_OF_THIS_PROCESSOR, None)


def _command(compiler: str, machine: str | None, source: Path) -> list[str]:
    more = os.environ.get(FLAGS, "").split()
    return [compiler, *_FLAGS, *([] if machine is None else [machine]), *more, str(source), "-lm"]


def _key(source: Path, compiler: str) -> str:
    """A hash of everything that the library depends on; another processor may have instructions that this one lacks."""
    stamp = Path(compiler).resolve().stat()
    settings = (os.environ.get(variable, "") for variable in (MARCH, FLAGS))
    return _digest(source.parent, compiler, stamp.st_size, stamp.st_mtime_ns, *settings)


@cache
def _digest(folder: Path, *compiler: Any) -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    known = [next((v for v in lines if v.startswith(word)), "") for word in ("model name", "flags", "Features")]
    system = [sys.platform, platform.machine(), *platform.libc_ver()]  # `platform.platform()` starts a process
    parts = [*system, sources_digest(folder), *compiler, *known, *_FLAGS]
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:24]
