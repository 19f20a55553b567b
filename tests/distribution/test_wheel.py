"""The wheel works without the source tree: built, installed in another place, and used from another folder."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from email.parser import Parser
from pathlib import Path

import pytest

import hfta_nb

pytestmark = pytest.mark.packaging

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built wheel; the packages that building needs are those of the environment, so nothing is downloaded."""
    folder = tmp_path_factory.mktemp("dist")
    run([sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)], folder)
    [found] = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the wheel, and nothing else, is installed."""
    folder = tmp_path_factory.mktemp("site")
    run(
        [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target", str(folder), str(wheel)], folder
    )
    return folder


def run(command: Sequence[str], folder: Path, site: Path | None = None) -> str:
    """Standard output of a command that must succeed; `site` goes before all other packages."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if site is not None:
        variables["PYTHONPATH"] = str(site)
    ran = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_the_wheel_holds_the_package_and_no_more(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    files = (p for p in (ROOT / "hfta_nb").rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    assert names == {p.relative_to(ROOT).as_posix() for p in files}
    assert "hfta_nb/py.typed" in names


@pytest.mark.long
def test_the_live_view_has_its_script_and_style(site: Path) -> None:
    assert (site / "hfta_nb" / "ui" / "front" / "live_view.js").stat().st_size > 0
    assert (site / "hfta_nb" / "ui" / "live_view.css").stat().st_size > 0


def test_its_metadata_say_what_it_needs(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = Parser().parsestr(archive.read(name).decode("utf-8"))
    assert metadata["Name"] == "hfta_nb"
    assert metadata["Version"] == hfta_nb.__version__
    assert metadata["License-Expression"] == "MIT"
    assert set(metadata["Requires-Python"].split(",")) == {">=3.11", "<3.14"}
    assert "torch>=2.11" in metadata.get_all("Requires-Dist")
    extras = {"lab", "search", "ray", "data", "peft", "export", "bench", "dev", "docs"}
    assert set(metadata.get_all("Provides-Extra")) == extras


@pytest.mark.long
def test_it_is_imported_from_where_it_was_installed(site: Path, tmp_path: Path) -> None:
    code = "import hfta_nb, hfta_nb.ui.live_view, hfta_nb.figures; print(hfta_nb.__file__, hfta_nb.__version__)"
    place, version = run([sys.executable, "-c", code], tmp_path, site).split()
    assert Path(place) == site / "hfta_nb" / "__init__.py"
    assert version == hfta_nb.__version__


@pytest.mark.long
def test_its_command_runs_the_quickstart(site: Path, tmp_path: Path) -> None:
    script = site / "bin" / "hfta-nb"
    arguments = ["run", "--family", "cnn", "--data", "digits", "--grid", "lr=3e-3,1e-2", "--epochs", "1"]
    shown = run([sys.executable, str(script), *arguments], tmp_path, site)
    assert "cnn on digits: 2 variants, 1 epoch" in shown
    assert "COMPLETE in" in shown
    assert [p.name for p in (tmp_path / "hfta_runs").glob("*/study.sqlite")] == ["study.sqlite"]


@pytest.mark.long
def test_its_studies_run_in_a_worker(site: Path, tmp_path: Path) -> None:
    """The worker is a process of its own, which must find the same package."""
    code = """
import hfta_nb
from hfta_nb.study.executors import close_all, start
study = hfta_nb.Study("mlp", {"lr": [1e-3, 1e-2]}, "digits", epochs=1, directory="run")
handle = start(study)
print(handle.wait(120), len(study.reload().results()))
close_all()
"""
    assert run([sys.executable, "-c", code], tmp_path, site).split() == ["COMPLETE", "2"]
