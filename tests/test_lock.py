"""requirements.lock pins all requirements of pyproject.toml exactly, and names no package index."""

from __future__ import annotations

import re

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.requirements_files import DOCS_LOCK, LOCK, ROOT, lock_lines, locked, project, required

PINS = {canonicalize_name(r.name): r for r in locked()}
WANTED = required("lab", "ray", "dev")
DOCS_PINS = {canonicalize_name(r.name): r for r in locked(DOCS_LOCK)}


@pytest.mark.parametrize("file", [LOCK, DOCS_LOCK])
def test_every_line_is_a_pin_and_nothing_else(file: str) -> None:
    pin = re.compile(r'[a-z0-9-]+==[0-9][0-9a-z.]*(; (sys_platform|python_version) (==|<|>=) "[a-z0-9.]+")?')
    assert [line for line in lock_lines(file) if not line.startswith("#") and not pin.fullmatch(line)] == []


@pytest.mark.parametrize("file", [LOCK, DOCS_LOCK])
def test_no_line_names_an_index_or_an_address(file: str) -> None:
    assert [line for line in lock_lines(file) if re.search(r"://|^-|@|--(hash|index|find)|file:", line)] == []


def test_no_package_is_pinned_twice() -> None:
    assert len(locked()) == len(PINS)


def test_torch_is_a_plain_pin_that_any_build_satisfies() -> None:
    assert str(PINS["torch"]) == "torch==2.13.0"
    assert PINS["torch"].specifier.contains("2.13.0+cpu")


def test_torch_brings_its_own_cuda_libraries() -> None:
    own = {"nvidia-ml-py"}
    assert [n for n in PINS if n.startswith(("nvidia-", "cuda-", "triton")) and n not in own] == []


@pytest.mark.parametrize("name", sorted(WANTED))
def test_every_requirement_is_pinned_within_its_range(name: str) -> None:
    assert name in PINS, "run `make lock`"
    [pin] = PINS[name].specifier
    assert WANTED[name].specifier.contains(pin.version, prereleases=True)


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
def test_requirements_are_pinned_for_every_python(python: str) -> None:
    environment = {**default_environment(), "python_version": python, "sys_platform": "linux"}
    missing = [n for n in WANTED if (m := PINS[n].marker) is not None and not m.evaluate(environment)]
    assert missing == []


def test_what_the_lock_pins_needs_nothing_that_it_lacks() -> None:
    """The lock is closed: what is installed here asks for no package outside it, but for timm's torchvision."""
    import importlib.metadata

    lacking = set()
    for name in PINS:
        try:
            needs = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue  # of another platform
        for need in map(Requirement, needs):
            wanted = need.marker is None or need.marker.evaluate({"extra": ""})
            if wanted and not need.name.startswith(("nvidia-", "cuda-", "triton")):
                lacking |= {canonicalize_name(need.name)} - PINS.keys()
    assert lacking == {"torchvision"}


def test_the_documentation_needs_its_own_lock_beside_the_first_one() -> None:
    """So that it can be installed into a folder of its own, and `make lab` and `make test` do without."""
    assert len(locked(DOCS_LOCK)) == len(DOCS_PINS)
    assert DOCS_PINS.keys() & PINS.keys() == set()
    asked = required("docs").keys() - required().keys()
    assert len(asked) >= 3
    for name in asked:
        [pin] = DOCS_PINS[name].specifier
        assert required("docs")[name].specifier.contains(pin.version), "run `make lock`"


def test_no_torchvision_is_installed_and_the_one_that_is_tested_apart_belongs_to_torch() -> None:
    assert "torchvision" not in PINS
    made = re.search(r"^TORCHVISION := torchvision==0\.(\d+)\.\d+$", (ROOT / "Makefile").read_text("utf-8"), re.M)
    [torch] = PINS["torch"].specifier
    assert made is not None
    assert int(made[1]) == Version(torch.version).minor + 15


def test_the_extras_are_those_that_people_are_told_of() -> None:
    names = {"lab", "search", "ray", "data", "peft", "export", "bench", "docs", "dev"}
    assert set(project()["optional-dependencies"]) == names
