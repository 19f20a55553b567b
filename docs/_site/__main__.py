"""Builds the site into a folder; any warning is an error.

Usage: python -m docs._site [FOLDER]
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from docs._site.assemble import assemble
from docs._site.layout import ROOT


def main(site: Path) -> int:
    """Build; returns Sphinx's exit code."""
    from sphinx.cmd.build import main as sphinx

    source = site.with_name(f"{site.name}-source")
    assemble(source)
    doctrees = site.with_name(f"{site.name}-doctrees")
    options = ["-b", "html", "-W", "--keep-going", "-q", "-d", str(doctrees)]
    code = sphinx([*options, str(source), str(site)])
    if code == 0:
        sys.stdout.write(f"built {os.path.relpath(site / 'index.html')}\n")
    return code


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "site"))
