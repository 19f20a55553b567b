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


def test_the_site(tmp_path: Path) -> None:
    """Built once, as `make docs` does, and looked at in every way."""
    site = tmp_path / "site"
    path = os.pathsep.join([str(ROOT), str(PACKAGES), *filter(None, [os.environ.get("PYTHONPATH")])])
    ran = subprocess.run(
        [sys.executable, "-m", "docs._site", str(site)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=550,
    )
    assert ran.returncode == 0, ran.stderr
    _pages_load_nothing_from_the_network(site)
    _notebooks_are_shown_with_their_outputs(site)
    _public_names_can_be_linked_to(site)
    assert "generated:" not in (site / "reference" / "axes.html").read_text(encoding="utf-8")


def _pages_load_nothing_from_the_network(site: Path) -> None:
    loaded = {
        (page.relative_to(site).as_posix(), "".join(found))
        for page in site.rglob("*.html")
        for found in _LOADED.findall(page.read_text(encoding="utf-8"))
    }
    assert loaded == set()
    styles = "".join(p.read_text(encoding="utf-8", errors="replace") for p in site.rglob("*.css"))
    assert re.findall(r"(?:@import|url\()\s*[\"']?https?:", styles) == []


def _notebooks_are_shown_with_their_outputs(site: Path) -> None:
    text = (site / "tutorial" / "02_your_own_model.html").read_text(encoding="utf-8")
    assert "<img" in text
    assert "cell_output" in text


def _public_names_can_be_linked_to(site: Path) -> None:
    pages = {p.name: p.read_text(encoding="utf-8") for p in (site / "reference").glob("*.html")}
    assert 'id="hfta_nb.Study"' in pages["study.html"]
    for name in api.public("hfta_nb.optim"):
        assert f'id="hfta_nb.optim.{name}"' in pages["optim.html"]
