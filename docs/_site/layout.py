"""Which file of the repository becomes which page of the site."""

from __future__ import annotations

import functools
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[2]

ROOT_PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md", "README.md": "index.md"}
"""Files beside the docs that are pages as well. README and the home page say the same, so links go to the latter."""

SOURCE = (".py", ".c", ".h", ".js", ".css", ".toml")
"""Kinds of files that are shown as source code; any other file is copied, to be downloaded."""

TEXT = (".json", ".jsonl", ".yml", ".lock")


@functools.cache
def pages() -> dict[str, str]:
    """The repository's path of every Markdown page and notebook, to its path below the site's source."""
    docs = ROOT / "docs"
    written = [p for p in docs.rglob("*.md") if "_site" not in p.parts]
    found = {p.relative_to(ROOT).as_posix(): p.relative_to(docs).as_posix() for p in sorted(written)}
    notebooks = sorted((ROOT / "notebooks").glob("*.ipynb"))
    found |= {p.relative_to(ROOT).as_posix(): f"tutorial/{p.name}" for p in notebooks}
    found |= {"benchmarks/README.md": "benchmarks.md"}
    return found | ROOT_PAGES


def place_of(path: str) -> str | None:
    """Where a file or folder of the repository is found on the site; None where it does not exist.

    Args:
        path: relative to the repository's root.
    """
    known = pages().get(path) or pages().get(f"{path}/README.md")
    if known is not None:
        return known
    full = ROOT / path
    if full.is_dir():
        return "decisions/index.md" if path == "docs/decisions" else "reference/source_map.md"
    if not full.is_file():
        return None
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if full.suffix in SOURCE:
        return f"source/{path}.md"
    return f"files/{path}"


def relative(target: str, page: str) -> str:
    """A link from one page of the site to another file of it."""
    up = len(PurePosixPath(page).parts) - 1
    common = 0
    target_parts, page_parts = PurePosixPath(target).parts, PurePosixPath(page).parts[:-1]
    for a, b in zip(target_parts[:-1], page_parts, strict=False):
        if a != b:
            break
        common += 1
    return "/".join([".."] * (up - common) + list(target_parts[common:]))
