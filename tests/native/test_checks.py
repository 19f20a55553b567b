"""The kernels without torch: C programs that include a kernel and compare it with loops."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from hfta_nb.engine.kernels.native import build
from tests.widths import NARROWER, RUNNING, WIDTHS, compiler, skip_unless_known

HERE = Path(__file__).parent
SOURCES = Path(build.__file__).parent
KERNELS = sorted(source.stem for source in SOURCES.glob("*.c"))
SANITIZED = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
QUICK = ("-O0",)
"""What a compiler does at -O3 is for the tests with torch; this is what the sources say."""
ARM = "aarch64-linux-gnu-gcc"
EMULATOR = "qemu-aarch64"
SYSROOT = "/usr/aarch64-linux-gnu"
LONG = pytest.mark.long


def _flags(width: str) -> list[str]:
    march = WIDTHS[width].march
    return [*WIDTHS[width].flags, *([f"-march={march}"] if march else [])]


def _made(compiler: str, kernel: str, flags: Sequence[str], folder: Path) -> Path:
    program = folder / kernel
    command = [compiler, "-std=gnu11", "-pthread", "-Wno-psabi", *flags, f"-I{SOURCES}"]
    command += [str(HERE / f"check_{kernel}.c"), "-lm", "-o", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return program


def _run(*command: str | Path) -> None:
    variables = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}  # a check that ends gives nothing back before
    variables.pop("LD_PRELOAD", None)
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=variables)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_kernel_has_a_check() -> None:
    assert sorted(path.stem.removeprefix("check_") for path in HERE.glob("check_*.c")) == KERNELS


@pytest.mark.each("kernel")
@pytest.mark.parametrize("width", [*NARROWER, *(pytest.param(w, marks=LONG) for w in RUNNING if w not in NARROWER)])
@pytest.mark.parametrize("kernel", KERNELS)
def test_each_kernel_at_each_width(kernel: str, width: str, tmp_path: Path) -> None:
    cc = compiler()
    skip_unless_known(width, cc)
    assert cc is not None
    _run(_made(cc, kernel, [*QUICK, *_flags(width)], tmp_path))


@pytest.mark.parametrize("width", [w for w in WIDTHS if w not in RUNNING])
def test_widths_that_this_processor_lacks_are_c(width: str) -> None:
    """The compiler takes them; `test_sources_are_compiled_without_a_warning` makes libraries of them."""
    cc = compiler()
    skip_unless_known(width, cc)
    sources = [str(SOURCES / f"{kernel}.c") for kernel in KERNELS]
    command = [str(cc), "-std=gnu11", "-Wno-psabi", "-fsyntax-only", *_flags(width), *sources]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("kernel", [k if k == "rows" else pytest.param(k, marks=LONG) for k in KERNELS])
def test_with_address_and_undefined_behaviour_sanitizers(kernel: str, tmp_path: Path) -> None:
    cc = compiler()
    if cc is None:
        pytest.skip("no compiler")
    empty = tmp_path / "empty.c"
    empty.write_text("int main(void) { return 0; }\n")
    tried = subprocess.run(
        [cc, *SANITIZED, str(empty), "-o", str(tmp_path / "empty")], capture_output=True, check=False
    )
    if tried.returncode:
        pytest.skip("the compiler has no sanitizers")
    _run(_made(cc, kernel, SANITIZED, tmp_path))


@LONG
@pytest.mark.parametrize("shuffled", [True, False])
@pytest.mark.parametrize("kernel", KERNELS)
def test_on_arm64(kernel: str, shuffled: bool, tmp_path: Path) -> None:
    if not (shutil.which(ARM) and shutil.which(EMULATOR)):
        pytest.skip(f"no {ARM} and {EMULATOR} (Debian: gcc-aarch64-linux-gnu and qemu-user)")
    program = _made(ARM, kernel, ["-O3", *([] if shuffled else ["-DHFTA_NO_SHUFFLE"])], tmp_path)
    _run(EMULATOR, "-L", SYSROOT, program)


@LONG
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["gcc", "clang"])
def test_sources_are_compiled_without_a_warning(name: str, width: str, tmp_path: Path) -> None:
    """At -O1, where compilers look for values that are read before they are written."""
    found = shutil.which(name)
    skip_unless_known(width, found)
    assert found is not None
    for kernel in KERNELS:
        command = [found, *build._FLAGS, "-O1", "-Wall", "-Wextra", "-Wno-psabi", *_flags(width)]
        command += [str(SOURCES / f"{kernel}.c"), "-o", str(tmp_path / "library.so"), "-lm"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert (done.returncode, done.stderr) == (0, "")
