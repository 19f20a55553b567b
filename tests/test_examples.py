"""Every example in a docstring runs and gives the stated result."""

from __future__ import annotations

import ast
import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import hfta_nb

ROOT = Path(hfta_nb.__file__).parent
MODULES = sorted(
    m.name for m in pkgutil.walk_packages(hfta_nb.__path__, "hfta_nb.") if not m.name.endswith(("__main__", "_main"))
)


def _has_prompts(name: str) -> bool:
    path = ROOT.parent.joinpath(*name.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ">>>" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [name for name in MODULES if _has_prompts(name)])
def test_examples_run(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_every_module_can_be_imported() -> None:
    for name in MODULES:
        if not name.endswith(".triton_kernels"):  # Triton comes with torch's CUDA builds
            importlib.import_module(name)


def test_the_public_face_has_examples() -> None:
    finder = doctest.DocTestFinder(exclude_empty=True)
    names = ("engine.array.fused", "engine.members.per_member", "search.grid.axes", "models.model_zoo.registry")
    for name in (*names, "study.study", "study.executors.start", "records.events.control"):
        found = finder.find(importlib.import_module(f"hfta_nb.{name}"))
        assert sum(len(t.examples) for t in found), name


def test_what_a_docstring_calls_an_example_is_run() -> None:
    """A section of that name holds prompts, so that doctest finds it, and skips none."""
    silent, skipped = [], []
    sources = {path: path.read_text(encoding="utf-8") for path in ROOT.rglob("*.py")}
    for path in sorted(p for p, text in sources.items() if "Example" in text or ">>>" in text):
        for node in ast.walk(ast.parse(sources[path])):
            if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                continue
            text = ast.get_docstring(node) or ""
            sections = re.split(r"^Examples?:\s*$", text, flags=re.M)[1:]
            silent += [f"{path.name}: {getattr(node, 'name', '')}" for part in sections if ">>> " not in part]
            skipped += [path.name for line in text.splitlines() if "+SKIP" in line]
    assert (silent, skipped) == ([], [])
