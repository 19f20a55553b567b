"""The source of the site: the repository's Markdown and notebooks in one folder, with what is generated filled in."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

from docs._site import api, layout, links, sources, tables

MAKERS = {**tables.MAKERS, "api": api.entries, "source_map": sources.source_map}
_ORPHANS = ("decisions/", "dependencies.md")
"""Pages that stand in no table of contents."""

_UNSEARCHED = ("decisions/", "changelog.md")
"""Pages of history, which a search for how things are leaves out."""

_EMPTY_TAG = re.compile(r"<(\w+)[^>]*></\1>")
_PICTURE = re.compile(r"\.(png|svg)$")


def assemble(folder: Path) -> None:
    """Write the source of the site into a folder, which is emptied first."""
    shutil.rmtree(folder, ignore_errors=True)
    used: set[str] = set()
    for path, page in layout.pages().items():
        if path == "README.md":
            continue  # docs/index.md is the home page
        text = (layout.ROOT / path).read_text(encoding="utf-8")
        made = _notebook(text, path, page, used) if page.endswith(".ipynb") else _page(text, path, page, used)
        _write(folder / page, made)
    _write(folder / "decisions" / "index.md", _decisions())
    for picture in (layout.ROOT / "docs").rglob("*"):
        if _PICTURE.search(picture.name):
            used.add(picture.relative_to(layout.ROOT).as_posix())
    used |= {p.relative_to(layout.ROOT).as_posix() for p in sources.package_files()}
    for path in sorted(used - layout.pages().keys()):
        _other(path, folder)
    static = Path(__file__).parent / "static"
    shutil.copytree(static, folder / "_static")
    shutil.copy(Path(__file__).with_name("conf.py"), folder / "conf.py")


def _page(text: str, path: str, page: str, used: set[str]) -> str:
    text = links.rewritten(text, path, page, used)
    text = tables.filled(text, MAKERS)
    head = ["orphan: true"] * page.startswith(_ORPHANS) + ["nosearch: true"] * page.startswith(_UNSEARCHED)
    return "\n".join(["---", *head, "---", "", text]) if head else text


def _notebook(text: str, path: str, page: str, used: set[str]) -> str:
    """A notebook with its links rewritten, and without widgets, which need a kernel: they are shown as a picture."""
    notebook = json.loads(text)
    notebook["metadata"].pop("widgets", None)
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            cell["source"] = links.rewritten(source, path, page, used)
        for output in cell.get("outputs", []):
            output.get("data", {}).pop("application/vnd.jupyter.widget-view+json", None)
        if "outputs" in cell:
            cell["outputs"] = [output for output in cell["outputs"] if _shows(output)]
    return json.dumps(notebook)


def _shows(output: dict[str, Any]) -> bool:
    """Whether there is anything to see of an output."""
    forms = {kind: "".join(form) for kind, form in output.get("data", {}).items()}
    forms["text/html"] = _EMPTY_TAG.sub("", forms.get("text/html", ""))
    return output["output_type"] != "display_data" or any(form.strip() for form in forms.values())


def _decisions() -> str:
    found = sorted((layout.ROOT / "docs" / "decisions").glob("*.md"))
    listed = "\n".join(f"- [{p.stem}]({p.name})" for p in found)
    return (
        f"---\norphan: true\n---\n\n# Decisions\n\nWhat was decided, what was measured for it, and why.\n\n{listed}\n"
    )


def _other(path: str, folder: Path) -> None:
    """A file of the repository that a page leads to: shown, or copied."""
    full = layout.ROOT / path
    place = layout.place_of(path)
    if place is None or full.is_dir():
        return
    if full.suffix in layout.SOURCE:
        _write(folder / place, sources.page_of(path))
        return
    (folder / place).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(full, folder / place)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
