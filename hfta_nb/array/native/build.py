"""Compiling a C file of this package and loading it; whatever goes wrong, there is no library, which is no error.

The library is kept with the times of kernels (`HFTA_NB_CACHE`), named by its source, the compiler and the processor, so
that a machine compiles once. ``HFTA_NB_NATIVE=off`` compiles and loads nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from hfta_nb.array.strategy.kept import VARIABLE as CACHE

VARIABLE = "HFTA_NB_NATIVE"
_FLAGS = ("-O3", "-std=gnu11", "-fPIC", "-shared", "-pthread")
_OF_THIS_PROCESSOR = ("-march=native", "-mcpu=native")
_TIME_S = 60


def library(name: str) -> ctypes.CDLL | None:
    """The library of ``<name>.c``; None where it is switched off or can't be made."""
    if os.environ.get(VARIABLE, "").lower() == "off":
        return None
    return _library(name, os.environ.get(CACHE, ""), os.environ.get("XDG_CACHE_HOME", ""), os.environ.get("CC", ""))


@cache
def _library(name: str, given: str, xdg: str, cc: str) -> ctypes.CDLL | None:
    compiler = next((found for c in (cc, "cc", "gcc", "clang") if c and (found := shutil.which(c))), None)
    if compiler is None or os.name != "posix":
        return None
    source = Path(__file__).with_name(f"{name}.c")
    try:
        folder = _folder(given, xdg)
        if folder is not None:
            kept = folder / f"{name}-{_key(source, compiler)}.so"
            if kept.is_file():
                return ctypes.CDLL(str(kept))
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder) as room:
                made = _compiled(compiler, source, Path(room))
                if made is not None:
                    os.replace(made, kept)
            return None if made is None else ctypes.CDLL(str(kept))
        with tempfile.TemporaryDirectory() as room:
            made = _compiled(compiler, source, Path(room))
            return None if made is None else ctypes.CDLL(str(made))  # loaded, it needs its file no more
    except OSError:
        return None


def _folder(given: str, xdg: str) -> Path | None:
    if given.lower() == "off":
        return None
    with contextlib.suppress(RuntimeError):  # there is no home
        return Path(given) if given else (Path(xdg) if xdg else Path.home() / ".cache") / "hfta_nb"
    return None


def _compiled(compiler: str, source: Path, room: Path) -> Path | None:
    """Compiled for this processor, or for any of its kind."""
    out = room / "library.so"
    for machine in (*_OF_THIS_PROCESSOR, None):
        command = [compiler, *_FLAGS, *([] if machine is None else [machine]), "-o", str(out), str(source)]
        try:
            done = subprocess.run(command, capture_output=True, timeout=_TIME_S, check=False)
        except subprocess.SubprocessError:
            return None
        if done.returncode == 0 and out.is_file():
            return out
    return None


def _key(source: Path, compiler: str) -> str:
    """Of all that the library depends on; what another processor has made may have instructions that this one lacks."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    known = [next((v for v in lines if v.startswith(word)), "") for word in ("model name", "flags", "Features")]
    stamp = Path(compiler).resolve().stat()
    parts = [source.read_text(encoding="utf-8"), compiler, stamp.st_size, stamp.st_mtime_ns, *known, *_FLAGS]
    return hashlib.sha256("\n".join(map(str, [platform.platform(), *parts])).encode()).hexdigest()[:24]
