"""`.ci/venv.sh`, which `make lab` and `make test` call first: what it changes, what it leaves unchanged, its messages.

The interpreter is a stand-in that records its arguments and creates no usable environment: nothing is downloaded, and a
repeated installation would be noticed.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

STAND_IN = """#!/bin/sh
# Answers what .ci/venv.sh asks of an interpreter.
case "$*" in
    *fcntl*) exec {python} "$@" ;;
    *"sys.version_info[:2] <="* | "-m pip --version") exit {supported} ;;
    *"import venv, ensurepip"*) exit {ensurepip} ;;
    *"print("*) echo 3.11 ;;
    "--version") echo "Python 3.11.0" ;;
    "-c import torchvision") exit "${{TORCHVISION_EXIT:-1}}" ;;
    "-m venv "*)
        echo "$*" >> "$LOG"
        [ -z "$HOLD_VENV" ] || cat "$HOLD_VENV"
        mkdir -p "$3/bin"
        cp "$0" "$3/bin/python" ;;
    "-m pip "*)
        echo "$*" >> "$LOG"
        echo "Collecting torch==2.13.0 (from -r requirements.lock (line 7))"
        echo "  Downloading torch-2.13.0-cp311.whl (191.8 MB)"
        case "$HOLD_PIP $*" in /*" --requirement "*) cat "$HOLD_PIP" ;; esac
        exit "${{PIP_EXIT:-0}}" ;;
esac
"""

# Between two lines of progress, in place of ten seconds: as long as the first FIFO has no writer, then never again.
ONE_TICK = """#!/bin/sh
[ ! -e "$TICK.over" ] || exit 1
touch "$TICK.over"
cat "$TICK"
"""


class Project:
    """A copy of what setting up needs, with a stand-in as the only interpreter on the path."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[subprocess.Popen[str]] = []
        (folder / ".ci").mkdir()
        for name in (".ci/venv.sh", "requirements.lock", "pyproject.toml"):
            shutil.copy(ROOT / name, folder / name)
        self.path = folder / "path"
        self.path.mkdir()
        for tool in (
            "bash",
            "sh",
            "cat",
            "cksum",
            "cp",
            "dirname",
            "grep",
            "mkdir",
            "rm",
            "sed",
            "sleep",
            "tail",
            "touch",
            "tr",
        ):
            found = shutil.which(tool)
            assert found is not None
            (self.path / tool).symlink_to(found)

    def interpreter(self, name: str = "python3", *, supported: bool = True, ensurepip: bool = True) -> Path:
        path = self.path / name
        facts = {"supported": int(not supported), "ensurepip": int(not ensurepip), "python": sys.executable}
        path.write_text(STAND_IN.format(**facts), encoding="utf-8")
        path.chmod(0o755)
        return path

    def set_up(self, **variables: str) -> subprocess.CompletedProcess[str]:
        started = self.start(**variables)
        out, err = started.communicate(timeout=60)
        return subprocess.CompletedProcess(started.args, started.returncode, out, err)

    def start(self, **variables: str) -> subprocess.Popen[str]:
        environment = {"PATH": str(self.path), "LOG": str(self.folder / "log"), **variables}
        script = ["bash", str(self.folder / ".ci" / "venv.sh"), ".venv"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.started.append(subprocess.Popen(script, env=environment, text=True, start_new_session=True, **pipes))
        return self.started[-1]

    def fifo(self, name: str) -> Path:
        path = self.folder / name
        os.mkfifo(path)
        return path

    def calls(self) -> list[str]:
        """What interpreters were asked to do since the last look."""
        log = self.folder / "log"
        found = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
        log.unlink(missing_ok=True)
        return found


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    made = Project(tmp_path)
    yield made
    for started in made.started:  # of a test that failed
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        started.communicate()


CREATE = "-m venv .venv"
PIP = "-m pip install --disable-pip-version-check --progress-bar off --no-compile "
INSTALL = [
    PIP + "--no-deps --requirement requirements.lock",
    PIP + "--no-build-isolation --constraint requirements.lock --editable .",
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
    failed = project.set_up(PIP_EXIT="1")
    assert failed.returncode == 1
    *shown, last = failed.stderr.splitlines()
    assert "  Downloading torch-2.13.0-cp311.whl (191.8 MB)" in shown
    assert last.startswith("error: pip failed; its last lines are above, all of them in .venv/install.log")
    assert project.calls() == [CREATE, INSTALL[0]]
    assert project.set_up().returncode == 0
    assert project.calls() == INSTALL


def test_a_package_whose_files_are_not_all_there_is_installed_again(project: Project) -> None:
    project.interpreter()
    project.set_up(PIP_EXIT="1")
    site = project.folder / ".venv" / "lib" / "python3.11" / "site-packages"
    for name, files in {"whole-1.dist-info": ("METADATA", "INSTALLER"), "half-1.dist-info": ("METADATA",)}.items():
        (site / name).mkdir(parents=True)
        for file in files:
            (site / name / file).touch()
    project.set_up()
    assert [path.name for path in site.iterdir()] == ["whole-1.dist-info"]


def test_two_at_once_install_once(project: Project) -> None:
    project.interpreter()
    hold = project.fifo("hold")
    first = project.start(HOLD_VENV=str(hold))
    with hold.open("w"):  # which waits until the first one is there
        second = project.start()
        assert second.stdout is not None
        assert second.stdout.readline() == "waiting for another process that sets .venv up\n"
    assert [started.communicate(timeout=60)[1] for started in (first, second)] == ["", ""]
    assert (first.returncode, second.returncode) == (0, 0)
    assert project.calls() == [CREATE, *INSTALL]


def test_it_says_how_far_it_is(project: Project) -> None:
    project.interpreter()
    hold, tick = project.fifo("hold"), project.fifo("tick")
    (project.path / "sleep").unlink()
    (project.path / "sleep").write_text(ONE_TICK, encoding="utf-8")
    (project.path / "sleep").chmod(0o755)
    started = project.start(HOLD_PIP=str(hold), TICK=str(tick))
    with hold.open("w"):  # pip has begun
        tick.open("w").close()
        assert started.stdout is not None
        said = [started.stdout.readline() for _ in range(3)]
    last = started.communicate(timeout=60)[0]
    packages = sum(line[0].isalpha() for line in (ROOT / "requirements.lock").read_text("utf-8").splitlines())
    assert said[0] == "creating .venv with Python 3.11.0 (python3)\n"
    assert said[1].startswith(f"installing {packages} packages at locked versions: 2 to 4 minutes")
    progress = rf"  \d+ s: fetching, 1 of {packages} packages; now torch-2.13.0-cp311.whl \(191.8 MB\)\n"
    assert re.fullmatch(progress, said[2])
    assert re.fullmatch(r"done in \d+ min \d+ s\n", last)


@pytest.mark.parametrize("fits", [True, False])
def test_a_torchvision_that_can_not_be_imported_is_removed(project: Project, fits: bool) -> None:
    project.interpreter()
    project.set_up(PIP_EXIT="1")
    info = project.folder / ".venv" / "lib" / "python3.11" / "site-packages" / "torchvision-0.28.0.dist-info"
    info.mkdir(parents=True)
    (info / "INSTALLER").touch()
    project.calls()
    ran = project.set_up(TORCHVISION_EXIT="0" if fits else "1")
    assert project.calls() == INSTALL + ([] if fits else ["-m pip uninstall --yes torchvision"])
    assert ("removing torchvision, which can't be imported with this torch" in ran.stdout) is not fits


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
