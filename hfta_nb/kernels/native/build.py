"""Compiles and loads the C files of this package. A failure is no error: the library is then missing.

Nothing is compiled on import. Arrays that try what is fastest ask for libraries, train on while they are compiled, and
`look_again`; `FusedArray.tune` waits for them.
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
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from hfta_nb.kernels.native import background
from hfta_nb.kernels.native.alive import alive
from hfta_nb.kernels.native.sources import sources_digest
from hfta_nb.kernels.strategy.timing_cache import VARIABLE as CACHE
from hfta_nb.kernels.strategy.timing_cache import folder

VARIABLE = "HFTA_NB_NATIVE"
MARCH = "HFTA_NB_NATIVE_MARCH"
FLAGS = "HFTA_NB_NATIVE_FLAGS"
_FLAGS = ("-O3", "-std=gnu11", "-fPIC", "-shared", "-pthread")
_OF_THIS_PROCESSOR = ("-march=native", "-mcpu=native")
_TIME_S = 60
LOOK_S = 0.05
"""Seconds between checks for what is being compiled in the background."""
_TRIED = "tried"
"""Marks what `compiling` has tried to compile."""

_loaded: dict[tuple[str, ...], ctypes.CDLL | None] = {}
_compiling = 0


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """Compile missing libraries within the context, and wait for them."""
    global _compiling
    _compiling += 1
    try:
        yield
    finally:
        _compiling -= 1


def library(name: str, wait: bool = True) -> ctypes.CDLL | None:
    """The library of ``<name>.c``; None if it is disabled, not compiled yet or cannot be compiled.

    Args:
        wait: while `compiling`, wait for it. Otherwise a missing library is compiled in the background. Within one
            process the answer does not change, so that results do not change either, until `look_again`.
    """
    if _switched_off():
        return None
    given = name, *(os.environ.get(v, "") for v in (CACHE, "XDG_CACHE_HOME", "CC", "PATH", MARCH, FLAGS))
    found = _loaded.get(given)
    now = wait and _compiling > 0
    if found is None and (given not in _loaded or (now and (*given, _TRIED) not in _loaded)):
        found = _loaded[given] = _library(name, wait)
        if now:
            _loaded[(*given, _TRIED)] = None
    return found


def available(names: Iterable[str]) -> tuple[str, ...]:
    """Those of these libraries that this process has; the others are compiled in the background."""
    return tuple(name for name in names if library(name, wait=False) is not None)


def make_all() -> list[str]:
    """Compile all missing libraries, and wait for them.

    Returns:
        The names of the available libraries.
    """
    names = sorted(source.stem for source in Path(__file__).parent.glob("*.c"))
    while look_again(names):  # side by side, where there is a folder for them
        time.sleep(LOOK_S)
    with compiling():
        return [name for name in names if library(name) is not None]


def waiting() -> bool:
    """True if missing libraries are waited for; see `compiling`."""
    return _compiling > 0


def arrived(name: str) -> bool | None:
    """True if a library compiled in the background is ready, False if not yet; None if it is not being compiled."""
    place, compiler = folder(os.environ), _compiler(os.environ.get("CC", ""))
    if place is None or compiler is None or _switched_off() or _answered(name):
        return None
    kept = place / f"{name}-{_key(Path(__file__).with_name(f'{name}.c'), compiler)}.so"
    if kept.is_file():
        return True
    return False if kept.with_suffix(".making").exists() else None


def look_again(names: Sequence[str]) -> bool:
    """Load what has been compiled since, and compile what is missing, in the background.

    Returns:
        True while some of these libraries are being compiled.
    """
    missing = [given for given, found in _loaded.items() if found is None and given[0] in names]
    for given in missing:
        if given[-1] != _TRIED:
            del _loaded[given]
    return len(available(names)) < len(names) and any(arrived(name) is False for name in names)


def _switched_off() -> bool:
    return os.environ.get(VARIABLE, "").lower() == "off"


def _answered(name: str) -> bool:
    return any(found is not None for given, found in _loaded.items() if given[0] == name)


def _compiler(cc: str) -> str | None:
    return next((found for c in (cc, "cc", "gcc", "clang") if c and (found := shutil.which(c))), None)


def _library(name: str, wait: bool) -> ctypes.CDLL | None:
    compiler = _compiler(os.environ.get("CC", ""))
    if compiler is None or os.name != "posix":
        return None
    source = Path(__file__).with_name(f"{name}.c")
    try:
        place = folder(os.environ)
        kept = None if place is None else place / f"{name}-{_key(source, compiler)}.so"
        if kept is not None and kept.is_file():
            return ctypes.CDLL(str(kept))
        if not wait and kept is not None:
            commands = [_command(compiler, machine, source) for machine in _machines()]
            background.compile_into(kept, commands)
        if not (wait and _compiling):
            return None
        if kept is not None:
            kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place) as room:
            made = _compiled(compiler, source, Path(room))
            if made is None:
                return None
            if kept is None:
                return ctypes.CDLL(str(made))  # a loaded library no longer needs its file
            os.replace(made, kept)
            return ctypes.CDLL(str(kept))
    except OSError:
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
    asked = (os.environ.get(variable, "") for variable in (MARCH, FLAGS))
    return _digest(source.parent, compiler, stamp.st_size, stamp.st_mtime_ns, *asked)


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
