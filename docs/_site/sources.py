"""Pages that show files of the repository, and the map of the package's folders."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

from docs._site.layout import ROOT, place_of, relative

_LANGUAGES = {".py": "python", ".c": "c", ".h": "c", ".js": "javascript", ".css": "css", ".toml": "toml"}
MAP = "reference/source_map.md"


def page_of(path: str) -> str:
    """A page that shows a file."""
    full = ROOT / path
    text = full.read_text(encoding="utf-8").rstrip()
    head = "---\norphan: true\nnosearch: true\n---\n\n"
    fence = "`" * 7
    return f"{head}# {path}\n\n{fence}{{code-block}} {_LANGUAGES[full.suffix]}\n:linenos:\n\n{text}\n{fence}\n"


def package_files() -> list[Path]:
    """The files of the package that the map lists."""
    package = ROOT / "hfta_nb"
    return sorted(p for p in package.rglob("*") if p.suffix in (".py", ".c", ".h") and "__pycache__" not in p.parts)


def source_map() -> str:
    """Every folder of the package with its files, and what each is for: the first line of its docstring."""
    folders: dict[Path, list[Path]] = {}
    for path in package_files():
        folders.setdefault(path.parent, []).append(path)
    return "\n".join(_folder(folder, folders[folder]) for folder in sorted(folders))


@functools.cache
def summary(path: Path) -> str:
    """What a file is for, in its own words."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        found = ast.get_docstring(ast.parse(text)) or ""
    else:
        found = text.lstrip().removeprefix("/*").removeprefix("//").lstrip(" *\n")
    paragraph = re.split(r"\n\s*\n", found.strip())[0].partition("*/")[0]
    return " ".join(re.sub(r"^\s*\* ?", "", paragraph, flags=re.M).split())


def _folder(folder: Path, files: list[Path]) -> str:
    name = folder.relative_to(ROOT).as_posix()
    lines = [f"## {name}/\n"]
    init = folder / "__init__.py"
    if init in files:
        lines.append((ast.get_docstring(ast.parse(init.read_text(encoding="utf-8"))) or "") + "\n")
    rows = [p for p in files if p != init]
    if rows:
        lines += ["| file | what it is for |", "| --- | --- |"]
    for path in rows:
        place = place_of(path.relative_to(ROOT).as_posix())
        assert place is not None  # as it was listed a moment ago
        link = relative(place, MAP)
        lines.append(f"| [`{path.name}`]({link}) | {summary(path).replace('|', chr(92) + '|')} |")
    return "\n".join(lines) + "\n"
