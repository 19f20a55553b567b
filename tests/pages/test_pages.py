"""The pages of the documentation: each is linked, and all links are valid."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from docs._site import layout, links, tables
from docs._site.assemble import MAKERS
from tests.pages.blocks import DOCS, ROOT, pages

TEXTS = [*pages(), *sorted((DOCS / "decisions").glob("*.md")), *(ROOT / name for name in layout.ROOT_PAGES)]
_TREE = re.compile(r"^```\{toctree\}\n(.*?)^```$", re.M | re.S)


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def in_contents() -> list[str]:
    """The pages that tables of contents list, by their places on the site, without suffix."""
    found = ["index"]
    for path in pages():
        page = layout.pages()[name_of(path)]
        for tree in _TREE.findall(path.read_text(encoding="utf-8")):
            for line in tree.splitlines():
                if line.strip() and not line.startswith(":"):
                    folder = Path(page).parent
                    found.append(line.removeprefix("/") if line.startswith("/") else (folder / line).as_posix())
    return found


def test_every_page_is_in_one_table_of_contents() -> None:
    apart = {"dependencies", *(p.removesuffix(".md") for p in layout.pages().values() if p.startswith("decisions/"))}
    every = {re.sub(r"\.(md|ipynb)$", "", place) for place in layout.pages().values()}
    listed = Counter(in_contents())
    assert set(listed) == every - apart
    assert [page for page, times in listed.items() if times > 1] == []


def test_the_notebooks_are_the_tutorial() -> None:
    notebooks = {f"tutorial/{p.stem}" for p in (ROOT / "notebooks").glob("*.ipynb")}
    assert len(notebooks) >= 9
    assert notebooks <= set(in_contents())


@pytest.mark.parametrize("path", TEXTS, ids=name_of)
def test_links_lead_somewhere(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert [t for t in links.links(text) if not there(t, name_of(path))] == []


@pytest.mark.parametrize("path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=name_of)
def test_links_of_notebooks_lead_somewhere(path: Path) -> None:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    text = "\n\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
    assert [t for t in links.links(text) if not there(t, name_of(path))] == []


def there(target: str, path: str) -> bool:
    """Whether the file, and the heading in it, exist."""
    file, anchor = links.split(target, path)
    if layout.place_of(file) is None:
        return False
    if not anchor or not file.endswith(".md"):
        return True
    page = "docs/index.md" if file == "README.md" else file  # as on the site
    text = (ROOT / page).read_text(encoding="utf-8")
    return anchor in {slug(head) for head in headings(tables.filled(text, MAKERS))}


def headings(text: str) -> list[str]:
    return re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S), re.M)


def slug(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def test_a_link_that_leads_nowhere_is_found() -> None:
    assert not there("no_such_page.md", "docs/index.md")
    assert not there("speed.md#no-such-heading", "docs/index.md")
    assert not there("../hfta_nb/no_such_file.py", "docs/engine.md")
    assert not there("../README.md#gallery", "docs/speed.md")
    assert there("speed.md#precision", "docs/index.md")


def test_the_engine_page_passes_the_files_of_a_step() -> None:
    text = (DOCS / "engine.md").read_text(encoding="utf-8")
    sources = [t for t in links.links(text) if t.startswith("../hfta_nb/")]
    assert len(set(sources)) >= 20
    assert "FusedArray" in (ROOT / links.split(sources[0], "docs/engine.md")[0]).read_text(encoding="utf-8")


def test_decisions_are_linked_from_contributing_only() -> None:
    to_decisions = [
        name_of(p)
        for p in TEXTS
        if p.parent != DOCS / "decisions" and p.name != "CHANGELOG.md"
        for t in links.links(p.read_text(encoding="utf-8"))
        if links.split(t, name_of(p))[0].startswith("docs/decisions")
    ]
    assert set(to_decisions) == {"CONTRIBUTING.md"}


REWRITTEN = [
    ("docs/engine.md", "engine.md", "../hfta_nb/optim/adam.py", "source/hfta_nb/optim/adam.py.md"),
    ("docs/how_to/resume.md", "how_to/resume.md", "../speed.md#data", "../speed.md#data"),
    ("docs/how_to/own_model.md", "how_to/own_model.md", "../../notebooks/09_dcgan.ipynb", "../tutorial/09_dcgan.ipynb"),
    ("notebooks/05_resnet18.ipynb", "tutorial/05_resnet18.ipynb", "../docs/convergence.md", "../convergence.md"),
    ("CONTRIBUTING.md", "contributing.md", "docs/architecture.md", "architecture.md"),
    ("docs/index.md", "index.md", "../CONTRIBUTING.md", "contributing.md"),
    ("docs/index.md", "index.md", "https://example.org/a.md", "https://example.org/a.md"),
    ("docs/index.md", "index.md", "nowhere.md", "nowhere.md"),
]


@pytest.mark.parametrize(("path", "page", "target", "expected"), REWRITTEN)
def test_links_of_the_repository_become_links_of_the_site(path: str, page: str, target: str, expected: str) -> None:
    text = f"See [the `file`]({target}).\n\n```text\n[kept]({target})\n```\n"
    assert links.rewritten(text, path, page, set()) == text.replace(f"`]({target})", f"`]({expected})")
