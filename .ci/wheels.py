"""Builds the wheels: one for any platform, and one for each platform in `PLATFORMS` that brings the kernels compiled.

The C files are cross-compiled by Zig's C compiler (`pip install ziglang`), so all wheels are made on one machine. The
wheel for any platform is built first; the others have the same files, and the libraries beside them.

Usage: python .ci/wheels.py FOLDER [--only linux-x86-64] [--compiler "cc"]
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import re
import shlex
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
NATIVE = Path("hfta_nb/engine/kernels/native")
FLAGS = ("-O3", "-std=gnu11", "-fPIC", "-shared", "-pthread")
GLIBC = "2.28"  # of manylinux_2_28


class Level(NamedTuple):
    """A kind of processor: the folder of its libraries (`native/prebuilt.py`), and how the compiler is told of it."""

    name: str
    target: str
    processor: str


class Platform(NamedTuple):
    """The tag of a wheel, and the kinds of processors whose libraries it brings."""

    tag: str
    levels: tuple[Level, ...]


_LINUX_X86 = f"x86_64-linux-gnu.{GLIBC}"
PLATFORMS = {
    "linux-x86-64": Platform(
        "manylinux_2_28_x86_64",
        (
            Level("linux-x86-64-v3", _LINUX_X86, "x86_64_v3"),
            Level("linux-x86-64-v4", _LINUX_X86, "x86_64_v4"),
        ),
    ),
    "linux-arm64": Platform("manylinux_2_28_aarch64", (Level("linux-arm64", f"aarch64-linux-gnu.{GLIBC}", "generic"),)),
    "macos-arm64": Platform("macosx_11_0_arm64", (Level("darwin-arm64", "aarch64-macos.11.0", "apple_m1"),)),
}


def main() -> int:
    parser = argparse.ArgumentParser(description="Build the wheels.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", choices=PLATFORMS, action="append", help="these platforms; may be repeated")
    parser.add_argument("--compiler", type=shlex.split, help="instead of Zig's, for this machine's processor")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(given.folder), str(ROOT)]
    subprocess.run(build, check=True, stdout=subprocess.DEVNULL)
    [pure] = given.folder.glob("*-none-any.whl")
    for name in given.only or PLATFORMS:
        sys.stdout.write(f"{with_libraries(pure, PLATFORMS[name], given.compiler)}\n")
    return 0


def with_libraries(pure: Path, platform: Platform, compiler: list[str] | None = None) -> Path:
    """Write a platform's wheel beside the one for any platform; returns its path.

    Raises:
        CalledProcessError: a kernel can't be compiled.
    """
    out = pure.with_name(pure.name.replace("none-any", f"none-{platform.tag}"))
    with tempfile.TemporaryDirectory() as room, zipfile.ZipFile(pure) as source:
        added = {
            str(NATIVE / "prebuilt" / file): data for file, data in compiled(platform, Path(room), compiler).items()
        }
        write(source, out, added, platform.tag)
    return out


def compiled(platform: Platform, room: Path, compiler: list[str] | None) -> dict[str, bytes]:
    """The libraries of a platform, by their paths in the folder of prebuilt ones."""
    digest = sources_digest()
    found = {}
    for level in platform.levels:
        zig = [sys.executable, "-m", "ziglang", "cc", "-target", level.target, f"-mcpu={level.processor}"]
        for source in sorted((ROOT / NATIVE).glob("*.c")):
            out = room / f"{level.name}-{source.stem}.so"
            subprocess.run([*(compiler or zig), *FLAGS, str(source), "-lm", "-o", str(out)], check=True)
            found[f"{level.name}/{source.stem}.so"] = out.read_bytes()
        found[f"{level.name}/sources.txt"] = digest.encode()
    return found


def sources_digest() -> str:
    """The hash that the package computes of its sources."""
    code = "from hfta_nb.engine.kernels.native.c_sources import sources_digest; print(sources_digest())"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    return ran.stdout.strip()


def write(source: zipfile.ZipFile, out: Path, added: dict[str, bytes], tag: str) -> None:
    """Copy a wheel with further files and another platform's tag; its record lists all files with their hashes."""
    files = {name: source.read(name) for name in source.namelist()} | added
    [record] = (name for name in files if name.endswith(".dist-info/RECORD"))
    wheel = record.replace("RECORD", "WHEEL")
    text = files[wheel].decode().replace("Root-Is-Purelib: true", "Root-Is-Purelib: false")
    files[wheel] = re.sub(r"^Tag: (\w+)-none-any$", rf"Tag: \1-none-{tag}", text, flags=re.MULTILINE).encode()
    del files[record]
    lines = [f"{name},sha256={_hash(data)},{len(data)}" for name, data in files.items()] + [f"{record},,"]
    files[record] = "\n".join([*lines, ""]).encode()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as target:
        for name, data in files.items():
            target.writestr(name, data)


def _hash(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


if __name__ == "__main__":
    sys.exit(main())
