"""What the README shows of one's own data and families runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"
HEADING = "## Your own data"


def test_own_data_and_families(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = README.read_text(encoding="utf-8")
    section = text.partition(HEADING)[2].partition("\n## ")[0]
    (code, *_) = re.findall(r"```python\n(.*?)```", section, re.S)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "readme"}
    exec(compile(code, str(README), "exec"), names)  # noqa: S102 - our own text
    study = names["study"]
    assert study.history.state == "COMPLETE"  # type: ignore[attr-defined]
    assert len(study.results()) == 4  # type: ignore[attr-defined]
