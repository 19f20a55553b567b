"""`.ci/venv.sh`, which `make lab` and `make test` call first: what it does, what it leaves alone, what it says.

The interpreter is a stand-in that writes down what it is asked and makes no environment that could be used: nothing is
downloaded, and installing anything twice would be seen.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

STAND_IN = """#!/bin/sh
# Answers what .ci/venv.sh asks of an interpreter.
case "$*" in
    *"import pip"* | *"sys.version_info[:2] <="*) exit {supported} ;;
    *"import venv, ensurepip"*) exit {ensurepip} ;;
    *"print("*) echo 3.11 ;;
    "--version") echo "Python 3.11.0" ;;
    "-m venv "*) echo "$*" >> "$LOG"; mkdir -p "$3/bin"; cp "$0" "$3/bin/python" ;;
    "-m pip "*) echo "$*" >> "$LOG"; exit "${{PIP_EXIT:-0}}" ;;
esac
"""


class Project:
    """A copy of what setting up needs, with a stand-in as the only interpreter on the path."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / ".ci").mkdir()
        for name in (".ci/venv.sh", "requirements.lock", "pyproject.toml"):
            shutil.copy(ROOT / name, folder / name)
        self.path = folder / "path"
        self.path.mkdir()
        for tool in ("bash", "sh", "cat", "cksum", "cp", "dirname", "mkdir", "rm", "touch", "tr"):
            found = shutil.which(tool)
            assert found is not None
            (self.path / tool).symlink_to(found)

    def interpreter(self, name: str = "python3", *, supported: bool = True, ensurepip: bool = True) -> Path:
        path = self.path / name
        path.write_text(STAND_IN.format(supported=int(not supported), ensurepip=int(not ensurepip)), encoding="utf-8")
        path.chmod(0o755)
        return path

    def set_up(self, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": str(self.path), "LOG": str(self.folder / "log"), **variables}
        script = ["bash", str(self.folder / ".ci" / "venv.sh"), ".venv"]
        return subprocess.run(script, env=environment, capture_output=True, text=True, timeout=60, check=False)

    def calls(self) -> list[str]:
        """What interpreters were asked to do since the last look."""
        log = self.folder / "log"
        found = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
        log.unlink(missing_ok=True)
        return found


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


CREATE = "-m venv .venv"
INSTALL = [
    "-m pip install --requirement requirements.lock",
    "-m pip install --no-deps --no-build-isolation --editable .",
]


def test_the_first_run_creates_and_installs_at_locked_versions(project: Project) -> None:
    project.interpreter()
    ran = project.set_up()
    assert (ran.returncode, ran.stderr) == (0, "")
    assert project.calls() == [CREATE, *INSTALL]


def test_the_second_run_installs_nothing(project: Project) -> None:
    project.interpreter()
    project.set_up()
    project.calls()
    os.utime(project.folder / "requirements.lock")  # its date says nothing
    ran = project.set_up()
    assert (ran.returncode, ran.stdout, project.calls()) == (0, "", [])


@pytest.mark.parametrize("file", ["requirements.lock", "pyproject.toml"])
def test_other_requirements_are_installed_into_the_environment_that_is_there(project: Project, file: str) -> None:
    project.interpreter()
    project.set_up()
    project.calls()
    with (project.folder / file).open("a", encoding="utf-8") as changed:
        changed.write("# something else\n")
    assert project.set_up().returncode == 0
    assert project.calls() == INSTALL
    assert project.set_up().returncode == 0
    assert project.calls() == []


def test_an_install_that_failed_is_done_again(project: Project) -> None:
    project.interpreter()
    assert project.set_up(PIP_EXIT="1").returncode == 1
    assert project.calls() == [CREATE, INSTALL[0]]
    assert project.set_up().returncode == 0
    assert project.calls() == INSTALL


def test_an_environment_whose_interpreter_is_gone_is_made_again(project: Project) -> None:
    project.interpreter()
    project.set_up()
    project.calls()
    (project.folder / ".venv" / "bin" / "python").unlink()
    assert project.set_up().returncode == 0
    assert project.calls() == [CREATE, *INSTALL]


def test_an_interpreter_that_does_not_fit_is_passed_over(project: Project) -> None:
    project.interpreter("python3", supported=False)
    project.interpreter("python3.12")
    assert "(python3.12)" in project.set_up().stdout


def test_one_that_can_make_environments_is_preferred(project: Project) -> None:
    project.interpreter("python3", ensurepip=False)
    project.interpreter("python3.11")
    assert "(python3.11)" in project.set_up().stdout


def test_python_names_the_interpreter(project: Project) -> None:
    project.interpreter("python3")
    other = project.interpreter("mine")
    assert f"({other})" in project.set_up(PYTHON=str(other)).stdout


def error(ran: subprocess.CompletedProcess[str]) -> str:
    """The one line that was said."""
    assert ran.returncode == 1
    [line] = ran.stderr.splitlines()
    return line


def test_no_interpreter_is_one_clear_line(project: Project) -> None:
    project.interpreter("python3", supported=False)
    assert error(project.set_up()).startswith("error: no Python 3.11, 3.12 or 3.13 found; install one")
    assert not (project.folder / ".venv").exists()


@pytest.mark.parametrize("name", ["nowhere", "python3"])
def test_a_named_interpreter_that_can_not_be_used_is_one_clear_line(project: Project, name: str) -> None:
    project.interpreter("python3", supported=False)
    project.interpreter("python3.12")
    assert error(project.set_up(PYTHON=name)).startswith(f"error: PYTHON={name} is not a Python 3.11, 3.12 or 3.13")


@pytest.mark.parametrize("variables", [{}, {"PYTHON": "python3"}])
def test_an_interpreter_without_ensurepip_says_what_to_install(project: Project, variables: dict[str, str]) -> None:
    project.interpreter("python3", ensurepip=False)
    line = error(project.set_up(**variables))
    assert line.startswith("error: python3 can't create virtual environments (no venv or ensurepip)")
    assert "python3.11-venv" in line
