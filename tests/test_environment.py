"""environment.yml gives conda users the requirements of pyproject.toml."""

from __future__ import annotations

import pytest
from packaging.specifiers import SpecifierSet

from tests.requirements_files import CONDA_NAMES, conda_ranges, environment, project, required

EXPECTED = {CONDA_NAMES.get(name, name): r.specifier for name, r in required("lab", "search", "ray", "dev").items()}


def test_both_name_the_same_packages() -> None:
    assert set(conda_ranges()) - {"python", "pip"} == set(EXPECTED)


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_both_ask_for_the_same_versions(name: str) -> None:
    assert conda_ranges().get(name) == EXPECTED[name]


def test_both_ask_for_the_same_python() -> None:
    assert conda_ranges()["python"] == SpecifierSet(project()["requires-python"])


def test_no_package_is_listed_twice() -> None:
    specs = [line.partition(" ")[0] for line in environment()["dependencies"] if isinstance(line, str)]
    assert sorted(specs) == sorted(set(specs))


def test_only_conda_forge_is_asked() -> None:
    assert environment()["channels"] == ["conda-forge"]


def test_pip_installs_nothing_but_the_project() -> None:
    [from_pip] = [line["pip"] for line in environment()["dependencies"] if isinstance(line, dict)]
    assert from_pip == ["--editable ."]
