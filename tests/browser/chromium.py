"""Finds a Chromium that runs on this machine, or installs one.

``python tests/browser/chromium.py`` prints the path of the Chromium that the browser tests use. With ``--install`` it
first installs one if there is none: Playwright's own if it can be downloaded, otherwise the system's package. It needs
no other file of the project, so that it can run before anything else is installed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

PATH_VARIABLE = "HFTA_NB_CHROMIUM"
SKIP_VARIABLE = "HFTA_NB_NO_BROWSER"
COMMANDS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PACKAGES = ("chromium", "fonts-dejavu-core")
DOWNLOAD_TIMEOUT_S = 300.0
PACKAGE_TIMEOUT_S = 600.0
VERSION_TIMEOUT_S = 30.0
ADVICE = (
    f"Install one with `{Path(sys.executable).name} tests/browser/chromium.py --install`, or set {PATH_VARIABLE} to "
    f"the path of a Chromium or Chrome, or set {SKIP_VARIABLE}=1 to leave the browser tests out."
)


class ChromiumError(RuntimeError):
    """There is no Chromium that runs, and none could be had."""


@dataclass(frozen=True)
class Done:
    """What became of a command: its exit status, and the end of what it said."""

    code: int
    output: str = ""


def run(command: Sequence[str], timeout_s: float, environment: Mapping[str, str] | None = None) -> Done:
    """Run a command to its end or to the end of its time; then it goes with all its children."""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**os.environ, **(environment or {})},
            start_new_session=True,  # so that a download running in a grandchild can be ended with it
        )
    except OSError as error:
        return Done(127, str(error))
    try:
        output, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        return Done(124, f"{output}\nno end after {timeout_s:g} s")
    return Done(process.returncode, output)


def playwright_path() -> str | None:
    """Where Playwright has, or would have, its own Chromium; None where there is no Playwright."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None
    with sync_playwright() as playwright:
        return playwright.chromium.executable_path


@dataclass(frozen=True)
class Machine:
    """What the decisions below look at; tests hand in another one."""

    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    which: Callable[[str], str | None] = shutil.which
    exists: Callable[[str], bool] = os.path.isfile
    run: Callable[..., Done] = run
    playwright_path: Callable[[], str | None] = playwright_path
    root: Callable[[], bool] = lambda: hasattr(os, "geteuid") and os.geteuid() == 0
    say: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True)

    @property
    def skipped(self) -> bool:
        """Whether the person asked for no browser at all."""
        return self.environment.get(SKIP_VARIABLE, "") not in ("", "0")

    def runs(self, path: str) -> bool:
        """Whether this is a browser that starts: not a stub of another packager, no library missing."""
        return self.exists(path) and self.run([path, "--version"], VERSION_TIMEOUT_S).code == 0


def _candidates(machine: Machine) -> Iterator[str]:
    own = machine.playwright_path()
    if own:
        yield own
    for command in COMMANDS:
        path = machine.which(command)
        if path:
            yield path


def find(machine: Machine | None = None) -> str | None:
    """The path of a Chromium that runs: the one that was named, Playwright's, the system's; None without one.

    Raises:
        ChromiumError: the one named by HFTA_NB_CHROMIUM does not run; no other is taken in its place.
    """
    machine = machine or Machine()
    named = machine.environment.get(PATH_VARIABLE)
    if not named:
        return next(filter(machine.runs, _candidates(machine)), None)
    path = machine.which(named) or named
    if not machine.runs(path):
        raise ChromiumError(
            f"{PATH_VARIABLE} is {named!r}, and that is no browser that runs here. Correct or unset it."
        )
    return path


def install(machine: Machine | None = None) -> str:
    """The path of a Chromium that runs, got from Playwright or from the system's packages if need be.

    Raises:
        ChromiumError: none could be had; says what was tried, how it ended and what to do.
    """
    machine = machine or Machine()
    path = find(machine)
    if path:
        return path
    failures = []
    for name, step in (("Playwright's Chromium", _from_playwright), ("the system's package", _from_packages)):
        machine.say(f"No Chromium here; trying {name} ...")
        problem = step(machine)
        path = find(machine)
        if path:
            return path
        failures.append(f"  {name}: {problem or 'installed, and it does not start'}")
    raise ChromiumError("\n".join(["No Chromium for the browser tests could be installed:", *failures, ADVICE]))


def _from_playwright(machine: Machine) -> str:
    """Get Playwright's Chromium; what went wrong, or an empty string."""
    path = machine.playwright_path()
    if path is None:
        return "Playwright is not installed in this Python (it comes with the extra `dev`)"
    command = [sys.executable, "-m", "playwright", "install", "chromium"]
    # A network that swallows packets would be waited for half a minute per server and attempt.
    problem = _problem(machine.run(command, DOWNLOAD_TIMEOUT_S, {"PLAYWRIGHT_DOWNLOAD_CONNECTION_TIMEOUT": "10000"}))
    if problem or machine.runs(path):
        return problem
    prefix = _as_root(machine)
    if prefix is None:
        return "it lacks libraries of the system; `playwright install-deps chromium` installs them for root"
    return _problem(
        machine.run([*prefix, sys.executable, "-m", "playwright", "install-deps", "chromium"], PACKAGE_TIMEOUT_S)
    )


def _from_packages(machine: Machine) -> str:
    """Get the system's Chromium; what went wrong, or an empty string."""
    if not machine.which("apt-get"):
        return "there is no apt-get; install Chromium with this system's own package manager"
    prefix = _as_root(machine)
    if prefix is None:
        return "apt-get needs root, and sudo asks for a password or is missing"
    settings = {"DEBIAN_FRONTEND": "noninteractive"}
    problem = _problem(machine.run([*prefix, "apt-get", "update"], PACKAGE_TIMEOUT_S, settings))
    if problem:
        return problem
    command = [*prefix, "apt-get", "install", "-y", "--no-install-recommends", *PACKAGES]
    return _problem(machine.run(command, PACKAGE_TIMEOUT_S, settings))


def _as_root(machine: Machine) -> list[str] | None:
    """What to put before a command that needs root; None where that can't be had without a password."""
    if machine.root():
        return []
    if machine.which("sudo") and machine.run(["sudo", "-n", "true"], VERSION_TIMEOUT_S).code == 0:
        return ["sudo", "-n"]
    return None


def _problem(done: Done) -> str:
    if done.code == 0:
        return ""
    lines = [line.strip() for line in done.output.splitlines() if line.strip()]
    user_warnings = [
        line for line in lines if line.startswith(("Error", "E:", "sudo:"))
    ]  # the rest of a trace is no help
    return f"exit status {done.code}: {' | '.join((user_warnings or lines)[-2:]) or 'it said nothing'}"


def main(arguments: Sequence[str] | None = None, machine: Machine | None = None) -> int:
    """Print the path of a Chromium; 0 when there is one (or none is wanted), 1 when not."""
    parser = argparse.ArgumentParser(description="Find a Chromium for the browser tests.")
    parser.add_argument("--install", action="store_true", help="get one where there is none")
    options = parser.parse_args(arguments)
    machine = machine or Machine()
    if machine.skipped:
        machine.say(f"{SKIP_VARIABLE} is set: no browser wanted.")
        return 0
    try:
        path = install(machine) if options.install else find(machine)
    except ChromiumError as error:
        machine.say(str(error))
        return 1
    if path is None:
        machine.say(f"No Chromium found. {ADVICE}")
        return 1
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
