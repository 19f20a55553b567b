"""Every example in a docstring runs and gives what it says."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import hfta_nb

MODULES = sorted(
    m.name for m in pkgutil.walk_packages(hfta_nb.__path__, "hfta_nb.") if not m.name.endswith(("__main__", "_main"))
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    if name.endswith(".triton_kernels"):
        pytest.importorskip("triton", reason="it comes with torch's CUDA builds")
    monkeypatch.chdir(tmp_path)
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_the_public_face_has_examples() -> None:
    finder = doctest.DocTestFinder(exclude_empty=True)
    names = ("array.fused", "members.per_member", "grid.axes", "families.registry", "study.study", "executors.start")
    for name in (*names, "events.requests"):
        found = finder.find(importlib.import_module(f"hfta_nb.{name}"))
        assert sum(len(t.examples) for t in found), name
