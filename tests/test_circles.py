"""The package has no import cycles, and private names are used in their own folder only."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.circles import circles, imports, privates

ROOT = Path(__file__).resolve().parent.parent / "hfta_nb"

PRIVATE: list[str] = []
"""Where a private name is used outside of its folder, with the reason in a comment; the aim is none."""


def test_there_are_no_circles() -> None:
    assert circles(ROOT) == []


def test_private_names_stay_in_their_folder() -> None:
    assert [f"{found.file}: {found.name}" for found in privates(ROOT)] == PRIVATE


def _plant(tmp_path: Path, files: dict[str, str]) -> Path:
    root = tmp_path / "pkg"
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("from pkg.b import y", "from pkg.a import x"),
        ("import pkg.b", "from pkg import a"),
        ("from . import b", "if TYPE_CHECKING:\n    from pkg.a import x"),
        ("from .b import y", "def f():\n    from .a import x"),
        ("from .b import y", "import importlib\nimportlib.import_module('pkg.a')"),
        ("from pkg.b import y", "from pkg.c import z"),
    ],
)
def test_a_planted_circle_is_found(tmp_path: Path, first: str, second: str) -> None:
    root = _plant(tmp_path, {"__init__.py": "", "a.py": first, "b.py": second, "c.py": "from pkg.a import x"})
    assert any({"a", "b"} <= set(circle) for circle in circles(root))


def test_a_package_may_import_what_is_in_it(tmp_path: Path) -> None:
    files = {"__init__.py": "from pkg.part import x", "part/__init__.py": "from .one import x", "part/one.py": "x = 1"}
    root = _plant(tmp_path, files)
    assert circles(root) == []
    assert imports(root) == {"": {"part"}, "part": {"part.one"}, "part.one": set()}


def test_a_private_name_of_another_folder_is_found(tmp_path: Path) -> None:
    files = {
        "__init__.py": "",
        "part/one.py": "class A:\n    def __init__(self):\n        self._x = 1\n    def f(self, other):\n"
        "        return other._x\n_y = 1",
        "part/two.py": "from pkg.part.one import A, _y\nA()._x",
        "third.py": "from pkg.part.one import _y\na._x\nself._x\na._unknown",
    }
    root = _plant(tmp_path, files)
    assert [str(found) for found in privates(root)] == ["third.py:1: _y", "third.py:2: _x"]
