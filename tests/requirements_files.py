"""Requirements in pyproject.toml, requirements.lock and environment.yml, for tests that compare them."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent

CONDA_NAMES = {
    "lmdb": "python-lmdb",
    "build": "python-build",
    "matplotlib": "matplotlib-base",
    "playwright": "playwright-python",
    "ray": "ray-core",
    "torch": "pytorch",
}
"""conda-forge's name where it isn't PyPI's."""


def project() -> dict[str, Any]:
    """The table [project] of pyproject.toml."""
    table: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return table


def required(*extras: str) -> dict[str, Requirement]:
    """The project's requirements by canonical name, with those of some extras."""
    table = project()
    lines = list(table["dependencies"])
    for extra in extras:
        lines += table["optional-dependencies"][extra]
    found = (Requirement(line) for line in lines)
    return {canonicalize_name(r.name): r for r in found if r.name != table["name"]}


LOCK, DOCS_LOCK = "requirements.lock", "requirements-docs.lock"


def locked(file: str = LOCK) -> list[Requirement]:
    """The pins of a lock."""
    return [Requirement(line) for line in lock_lines(file) if not line.startswith("#")]


def lock_lines(file: str = LOCK) -> list[str]:
    return (ROOT / file).read_text(encoding="utf-8").splitlines()


def environment() -> dict[str, Any]:
    """environment.yml as it stands."""
    content: dict[str, Any] = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    return content


def conda_ranges() -> dict[str, SpecifierSet]:
    """What environment.yml asks of conda, by conda's name."""
    specs = [line for line in environment()["dependencies"] if isinstance(line, str)]
    split = (spec.partition(" ") for spec in specs)
    return {name: SpecifierSet(versions) for name, _, versions in split}
