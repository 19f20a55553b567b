"""The site builds without warnings and without network access."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs._site import api
from tests.pages.blocks import ROOT

PACKAGES = ROOT / ".venv" / "docs"
"""Where `make docs` puts Sphinx."""

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        importlib.util.find_spec("sphinx") is None and not PACKAGES.is_dir(),
        reason="Sphinx is not installed: make docs",
    ),
]

_LOADED = re.compile(
    r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"((?:https?:)?//[^\"]+)|<link\b[^>]*\bhref=\"(https?://[^\"]+)"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` does."""
    folder = tmp_path_factory.mktemp("site") / "site"
    path = os.pathsep.join([str(ROOT), str(PACKAGES), *filter(None, [os.environ.get("PYTHONPATH")])])
    ran = subprocess.run(
        [sys.executable, "-m", "docs._site", str(folder)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=550,
    )
    assert ran.returncode == 0, ran.stderr
    return folder


def test_pages_load_nothing_from_the_network(site: Path) -> None:
    loaded = {
        (page.relative_to(site).as_posix(), "".join(found))
        for page in site.rglob("*.html")
        for found in _LOADED.findall(page.read_text(encoding="utf-8"))
    }
    assert loaded == set()
    styles = "".join(p.read_text(encoding="utf-8", errors="replace") for p in site.rglob("*.css"))
    assert re.findall(r"(?:@import|url\()\s*[\"']?https?:", styles) == []


def test_notebooks_are_shown_with_their_outputs(site: Path) -> None:
    text = (site / "tutorial" / "02_your_own_model.html").read_text(encoding="utf-8")
    assert "<img" in text
    assert "cell_output" in text


def test_public_names_can_be_linked_to(site: Path) -> None:
    pages = {p.name: p.read_text(encoding="utf-8") for p in (site / "reference").glob("*.html")}
    assert 'id="hfta_nb.Study"' in pages["study.html"]
    for name in api.public("hfta_nb.optim"):
        assert f'id="hfta_nb.optim.{name}"' in pages["optim.html"]


def test_nothing_is_left_to_be_filled_in(site: Path) -> None:
    assert "generated:" not in (site / "reference" / "axes.html").read_text(encoding="utf-8")
