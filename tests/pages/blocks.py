"""Code blocks of the documentation, and the comments that exclude blocks from tests.

A comment on a separate line before a block marks it: ``<!-- not run: needs a GPU -->`` excludes it from all tests,
``<!-- long: takes a minute -->`` from all but `make test-all`. Blocks of a page run in order and share their names.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"

_BLOCK = re.compile(r"(?:^<!-- (not run|long): ([^\n]*) -->\n+)?^```(\w*)\n(.*?)^```$", re.M | re.S)
_MARK = re.compile(r"^<!-- (?:not run|long)\b.*$", re.M)


@dataclass(frozen=True)
class Block:
    """A block of code.

    Attributes:
        language: as the fence says.
        code: its lines.
        mark: "not run", "long" or "".
        reason: why.
        line: of the page, at which its code begins.
    """

    language: str
    code: str
    mark: str
    reason: str
    line: int


def pages() -> list[Path]:
    """Every page that a person reads, decisions (which are history) left out."""
    return sorted(p for p in DOCS.rglob("*.md") if not {"decisions", "_site"} & set(p.relative_to(DOCS).parts))


def blocks(path: Path) -> list[Block]:
    """The blocks of a page."""
    text = path.read_text(encoding="utf-8")
    found = []
    for m in _BLOCK.finditer(text):
        mark, reason, language, code = m.groups(default="")
        found.append(Block(language, code, mark, reason.strip(), text.count("\n", 0, m.start(4)) + 1))
    return found


def marks(path: Path) -> int:
    """How many comments of a page mark a block."""
    return len(_MARK.findall(path.read_text(encoding="utf-8")))


def run(path: Path, long: bool) -> int:
    """Run the Python of a page; returns how many blocks were run.

    Args:
        path: the page.
        long: those that take long as well.
    """
    names: dict[str, object] = {"__name__": "page"}
    count = 0
    for block in blocks(path):
        if block.language == "python" and block.mark in (("", "long") if long else ("",)):
            code = "\n" * (block.line - 1) + block.code  # so that a traceback has the page's lines
            exec(compile(code, str(path), "exec"), names)  # noqa: S102 - our own text
            count += 1
    return count
