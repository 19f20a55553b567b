"""Saves images of notebook cells that fail under nbval as files: a pytest plugin (``-p tests.pictures``)."""

from __future__ import annotations

import base64
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

ARTIFACTS_VARIABLE = "HFTA_NB_ARTIFACTS"
REPOSITORY = Path(__file__).parents[1]


def artifacts() -> Path:
    """The folder in which screenshots and the like are kept."""
    folder = Path(os.environ.get(ARTIFACTS_VARIABLE) or REPOSITORY / "artifacts")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """Keep the pictures that a failing cell has drawn."""
    report: Any = yield
    if report.when == "call" and report.failed:
        kept = [str(path) for path in _kept(item)]
        if kept:
            report.sections.append(("pictures of this cell", "\n".join(kept)))
    return report


def _kept(item: pytest.Item) -> list[Path]:
    paths = []
    for number, output in enumerate(getattr(item, "test_outputs", None) or []):
        if picture := output.get("data", {}).get("image/png"):
            path = artifacts() / f"{item.path.stem}_{item.name.replace(' ', '_').lower()}_{number}.png"
            path.write_bytes(base64.b64decode(picture))
            paths.append(path)
    return paths
