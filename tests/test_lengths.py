"""No function of the package exceeds 60 lines."""

from __future__ import annotations

from pathlib import Path

from tests.lengths import functions

ROOT = Path(__file__).resolve().parent.parent / "hfta_nb"

MOST = 60


def test_no_function_is_longer_than_a_screen() -> None:
    lengths = functions(ROOT)
    assert len(lengths) > 1000
    assert [name for name, lines in lengths.items() if lines > MOST] == []


def test_lines_are_counted_to_the_end_of_the_body(tmp_path: Path) -> None:
    first = "@decorated\ndef f(\n    x,\n):\n    def g():\n        return x\n    return g\n"
    text = f"{first}\n\nclass A:\n    async def f(self): ...\n"
    (tmp_path / "part.py").write_text(text, encoding="utf-8")
    assert functions(tmp_path) == {"part.py: f": 6, "part.py: f.g": 2, "part.py: A.f": 1}
