"""Every example on a page runs, or states why it cannot."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import torch

from hfta_nb.cli.options import parse
from tests.pages.blocks import DOCS, blocks, marks, pages, run

WITH_PYTHON = [p for p in pages() if any(b.language == "python" for b in blocks(p))]
LONG = [p for p in WITH_PYTHON if any(b.mark == "long" for b in blocks(p))]


def name_of(path: Path) -> str:
    return path.relative_to(DOCS).with_suffix("").as_posix()


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty directory for what the examples write."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("path", WITH_PYTHON, ids=name_of)
def test_examples_run(path: Path) -> None:
    wanted = [b for b in blocks(path) if b.language == "python" and not b.mark]
    assert run(path, long=False) == len(wanted)


@pytest.mark.long
@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("path", LONG, ids=name_of)
def test_long_examples_run(path: Path) -> None:
    assert run(path, long=True) > len([b for b in blocks(path) if b.language == "python" and not b.mark])


def test_the_pages_have_examples() -> None:
    found = {name_of(p): [b for b in blocks(p) if b.language == "python" and not b.mark] for p in WITH_PYTHON}
    guides = {"how_to/own_model", "how_to/own_data", "how_to/training_loop", "how_to/resume", "how_to/add_variants"}
    assert {name for name, code in found.items() if code} >= {"index", "speed", "how_to/tracking", *guides}


@pytest.mark.parametrize("path", pages(), ids=name_of)
def test_a_block_that_is_not_run_says_why(path: Path) -> None:
    marked = [b for b in blocks(path) if b.mark]
    assert marks(path) == len(marked), "a comment marks no block"
    assert [b.line for b in marked if len(b.reason.split()) < 3] == []


def test_a_mark_belongs_to_its_block(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    text = "```python\na = 1\n```\n\n<!-- not run: needs a GPU -->\n\n```python\n1 / 0\n```\n\n```python\nb = a\n```\n"
    page.write_text(text, encoding="utf-8")
    assert [(b.mark, b.reason, b.line) for b in blocks(page)] == [
        ("", "", 2),
        ("not run", "needs a GPU", 8),
        ("", "", 12),
    ]
    assert run(page, long=True) == 2
    page.write_text(text.replace("<!-- not run: needs a GPU -->\n\n", ""), encoding="utf-8")
    with pytest.raises(ZeroDivisionError):
        run(page, long=False)


COMMANDS = [
    (name_of(path), line)
    for path in pages()
    for block in blocks(path)
    if block.language == "sh"
    for line in block.code.splitlines()
]


@pytest.mark.parametrize(("page", "line"), COMMANDS)
def test_commands_are_understood(page: str, line: str) -> None:
    program, *arguments = shlex.split(line)
    assert program == "hfta-nb"
    assert parse(arguments).command == arguments[0]


def test_languages_are_told() -> None:
    """A block without one would be shown as Python by some viewers, and run by no test."""
    known = {"python", "sh", "text", "toml", "eval", ""}
    for path in pages():
        plain = [b for b in blocks(path) if b.language not in known or re.search(r"^\s*import \w+$", b.code, re.M)]
        assert [b.line for b in plain if b.language != "python"] == [], path
