"""A platform's wheel brings the compiled kernels, and they are used where there is no compiler."""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib.util
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from hfta_nb.engine.kernels.native import prebuilt
from tests.core.compiled import NEEDS_COMPILER

ROOT = Path(__file__).resolve().parents[2]
V3 = {"avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "sse2"}
V4 = V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}


def wheels() -> ModuleType:
    spec = importlib.util.spec_from_file_location("wheels", ROOT / ".ci" / "wheels.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("system", "machine", "flags", "expected"),
    [
        ("linux", "x86_64", V4, ["linux-x86-64-v4", "linux-x86-64-v3"]),
        ("linux", "x86_64", V3, ["linux-x86-64-v3"]),
        ("linux", "x86_64", V4 - {"fma"}, []),
        ("linux", "aarch64", set(), ["linux-arm64"]),
        ("darwin", "arm64", set(), ["darwin-arm64"]),
        ("darwin", "x86_64", V3, []),
        ("win32", "amd64", V3, []),
    ],
)
def test_the_processor_decides(system: str, machine: str, flags: set[str], expected: list[str]) -> None:
    assert list(prebuilt._levels(system, machine, flags)) == expected


def test_every_kind_of_processor_that_is_asked_for_is_built() -> None:
    built = {level.name for wheel in wheels().PLATFORMS.values() for level in wheel.levels}
    assert built == {"linux-x86-64-v3", "linux-x86-64-v4", "linux-arm64", "darwin-arm64"}


@NEEDS_COMPILER
@pytest.mark.long
@pytest.mark.packaging
@pytest.mark.skipif(not prebuilt.levels(), reason="no wheel is built for this processor")
def test_without_a_compiler_the_wheels_kernels_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, dist, site = wheels(), tmp_path / "dist", tmp_path / "site"
    dist.mkdir()
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(dist), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    [pure] = dist.glob("*.whl")
    level = made.Level(prebuilt.levels()[0], "", "")
    out = made.with_libraries(pure, made.Platform("linux_x86_64", (level,)), ["cc", "-O1"])
    check_record(out)
    with zipfile.ZipFile(out) as archive:
        archive.extractall(site)
        assert (
            "Root-Is-Purelib: false"
            in archive.read(next(n for n in archive.namelist() if n.endswith("/WHEEL"))).decode()
        )
    code = (
        "from hfta_nb.engine.kernels.native import build; import hfta_nb; print(hfta_nb.__file__); "
        "print(build.make_all()); print(build.told())"
    )
    variables = {k: v for k, v in os.environ.items() if not k.startswith("HFTA_NB") and k != "CC"}
    variables |= {"PYTHONPATH": str(site), "PATH": str(tmp_path), "HFTA_NB_CACHE": str(tmp_path / "cache")}
    ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=variables, capture_output=True, text=True)
    place, names, told = ran.stdout.splitlines()
    assert Path(place).is_relative_to(site)
    sources = (ROOT / made.NATIVE).glob("*.c")
    assert names == repr(sorted(source.stem for source in sources))
    assert told == f"prebuilt for {level.name}"
    assert not (tmp_path / "cache").exists() or not list((tmp_path / "cache").glob("*.so"))
    digest = site / made.NATIVE / "prebuilt" / level.name / prebuilt.DIGEST
    digest.write_text("of other sources")
    ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=variables, capture_output=True, text=True)
    assert ran.stdout.splitlines()[1] == "[]"
    assert ran.stdout.splitlines()[2].startswith("none (no C compiler")


def check_record(wheel: Path) -> None:
    """Every file of a wheel is in its record, with its hash."""
    with zipfile.ZipFile(wheel) as archive:
        [record] = (name for name in archive.namelist() if name.endswith("/RECORD"))
        rows = {row[0]: row[1] for row in csv.reader(archive.read(record).decode().splitlines())}
        assert set(rows) == set(archive.namelist())
        for name, told in rows.items():
            if told:
                digest = base64.urlsafe_b64encode(hashlib.sha256(archive.read(name)).digest()).rstrip(b"=").decode()
                assert told == f"sha256={digest}"
