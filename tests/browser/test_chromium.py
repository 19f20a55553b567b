"""Choosing and installing a Chromium, on simulated machines of different kinds."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from tests.polling import eventually, gone

from . import chromium
from .chromium import ChromiumError, Done, Machine

OWN = "/cache/ms-playwright/chrome"
DOWNLOAD = f"{sys.executable} -m playwright install chromium"
LIBRARIES = f"{sys.executable} -m playwright install-deps chromium"
UPDATE = "apt-get update"
PACKAGE = "apt-get install -y --no-install-recommends chromium fonts-dejavu-core"


@dataclass
class Fake:
    """A machine with some commands on its path, some files that start, and effects of some commands."""

    environment: dict[str, str] = field(default_factory=dict)
    commands: set[str] = field(default_factory=set)
    files: set[str] = field(default_factory=set)
    broken: set[str] = field(default_factory=set)
    playwright: str | None = OWN
    root: bool = True
    effects: dict[str, Callable[[Fake], Done]] = field(default_factory=dict)
    ran: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def machine(self) -> Machine:
        return Machine(
            environment=self.environment,
            which=lambda name: name if name.startswith("/") and name in self.files else self._which(name),
            exists=lambda path: path in self.files or path.removeprefix("/usr/bin/") in self.commands,
            run=self._run,
            playwright_path=lambda: self.playwright,
            root=lambda: self.root,
            say=self.said.append,
        )

    def _which(self, name: str) -> str | None:
        return f"/usr/bin/{name}" if name in self.commands else None

    def _run(self, command: Sequence[str], timeout_s: float, environment: Mapping[str, str] | None = None) -> Done:
        assert timeout_s > 0
        if list(command[1:]) == ["--version"]:
            return Done(127, "error while loading shared libraries") if command[0] in self.broken else Done(0)
        line = " ".join(command)
        self.ran.append(line)
        return self.effects[line](self) if line in self.effects else Done(1, "out of order")


def gives(command: str | None = None, file: str | None = None, mends: str | None = None) -> Callable[[Fake], Done]:
    def effect(fake: Fake) -> Done:
        fake.commands |= {command} if command else set()
        fake.files |= {file} if file else set()
        fake.broken -= {mends} if mends else set()
        return Done(0)

    return effect


def test_a_named_chromium_goes_before_all_others() -> None:
    fake = Fake({"HFTA_NB_CHROMIUM": "/opt/chrome"}, commands={"chromium"}, files={"/opt/chrome", OWN})
    assert chromium.find(fake.machine()) == "/opt/chrome"


def test_a_named_chromium_may_be_a_command() -> None:
    fake = Fake({"HFTA_NB_CHROMIUM": "my-chrome"}, commands={"my-chrome"})
    assert chromium.find(fake.machine()) == "/usr/bin/my-chrome"


def test_a_named_chromium_that_is_missing_is_an_error_and_is_not_replaced() -> None:
    fake = Fake({"HFTA_NB_CHROMIUM": "/opt/chrome"}, commands={"chromium"})
    with pytest.raises(ChromiumError, match=r"'/opt/chrome'.*Correct or unset"):
        chromium.find(fake.machine())


def test_playwrights_own_goes_before_the_systems() -> None:
    assert chromium.find(Fake(commands={"chromium"}, files={OWN}).machine()) == OWN


@pytest.mark.parametrize("command", ["chromium", "chromium-browser", "google-chrome"])
def test_the_systems_is_found_under_its_names(command: str) -> None:
    assert chromium.find(Fake(commands={command}).machine()) == f"/usr/bin/{command}"


def test_one_that_does_not_start_is_passed_over() -> None:
    fake = Fake(commands={"chromium-browser", "google-chrome"}, broken={"/usr/bin/chromium-browser"})
    assert chromium.find(fake.machine()) == "/usr/bin/google-chrome"


def test_nothing_is_found_on_a_bare_machine() -> None:
    assert chromium.find(Fake(playwright=None).machine()) is None


def test_install_does_nothing_where_there_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    fake = Fake(commands={"chromium", "apt-get"})
    assert chromium.main(["--install"], fake.machine()) == 0
    assert capsys.readouterr().out == "/usr/bin/chromium\n"
    assert fake.ran == []


def test_playwright_is_tried_first() -> None:
    fake = Fake(commands={"apt-get"}, effects={DOWNLOAD: gives(file=OWN)})
    assert chromium.install(fake.machine()) == OWN
    assert fake.ran == [DOWNLOAD]


def test_libraries_missing_from_playwrights_are_installed() -> None:
    fake = Fake(broken={OWN}, effects={DOWNLOAD: gives(file=OWN), LIBRARIES: gives(mends=OWN)})
    assert chromium.install(fake.machine()) == OWN
    assert fake.ran == [DOWNLOAD, LIBRARIES]


def test_the_package_is_taken_where_playwright_can_not_download() -> None:
    fake = Fake(commands={"apt-get"}, effects={UPDATE: lambda _: Done(0), PACKAGE: gives(command="chromium")})
    assert chromium.install(fake.machine()) == "/usr/bin/chromium"
    assert fake.ran == [DOWNLOAD, UPDATE, PACKAGE]


def test_the_package_is_taken_where_playwright_is_missing() -> None:
    effects = {UPDATE: lambda _: Done(0), PACKAGE: gives(command="chromium")}
    fake = Fake(commands={"apt-get"}, playwright=None, effects=effects)
    assert chromium.install(fake.machine()) == "/usr/bin/chromium"
    assert fake.ran == [UPDATE, PACKAGE]


def test_sudo_is_used_where_it_asks_for_nothing() -> None:
    effects = {
        "sudo -n true": lambda _: Done(0),
        f"sudo -n {UPDATE}": lambda _: Done(0),
        f"sudo -n {PACKAGE}": gives(command="chromium"),
    }
    fake = Fake(commands={"apt-get", "sudo"}, root=False, effects=effects)
    assert chromium.install(fake.machine()) == "/usr/bin/chromium"


def test_without_root_nothing_of_the_system_is_touched() -> None:
    fake = Fake(commands={"apt-get", "sudo"}, root=False)
    with pytest.raises(ChromiumError, match="needs root"):
        chromium.install(fake.machine())
    assert fake.ran == [DOWNLOAD, "sudo -n true"]


def test_failure_says_what_was_tried_and_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    fake = Fake()
    assert chromium.main(["--install"], fake.machine()) == 1
    message = fake.said[-1]
    assert "Playwright's Chromium: exit status 1: out of order" in message
    assert "no apt-get" in message
    assert "HFTA_NB_NO_BROWSER=1" in message
    assert capsys.readouterr().out == ""


def test_of_a_long_trace_the_line_that_tells_is_shown() -> None:
    trace = "Downloading\nError: getaddrinfo ENOTFOUND cdn.example\n    at ChildProcess.emit (node:events:514:20)\n"
    fake = Fake(effects={DOWNLOAD: lambda _: Done(1, trace)})
    with pytest.raises(ChromiumError, match=r"exit status 1: Error: getaddrinfo ENOTFOUND cdn.example\n"):
        chromium.install(fake.machine())


def test_an_install_that_gives_nothing_that_starts_is_a_failure() -> None:
    effects = {UPDATE: lambda _: Done(0), PACKAGE: gives(command="chromium")}
    fake = Fake(commands={"apt-get"}, playwright=None, broken={"/usr/bin/chromium"}, effects=effects)
    with pytest.raises(ChromiumError, match="does not start"):
        chromium.install(fake.machine())


def test_a_person_who_wants_no_browser_gets_none() -> None:
    fake = Fake({"HFTA_NB_NO_BROWSER": "1"}, commands={"apt-get"})
    assert chromium.main(["--install"], fake.machine()) == 0
    assert fake.ran == []


def test_zero_does_not_switch_the_browser_off() -> None:
    assert not Fake({"HFTA_NB_NO_BROWSER": "0"}).machine().skipped


def test_a_command_that_never_ends_is_ended_with_its_children() -> None:
    done = chromium.run(["sh", "-c", "sleep 600 & echo $!; wait"], 1.0)
    assert done.code == 124
    eventually(lambda: gone(int(done.output.split()[0])), "the grandchild to end")


def test_a_command_that_does_not_exist_is_a_failure_and_no_exception() -> None:
    assert chromium.run(["/nowhere/at/all"], 1.0).code == 127
