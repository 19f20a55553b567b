"""Every Python block in the README runs, with the names that the text assumes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.pages.blocks import ROOT, blocks

README = [b for b in blocks(ROOT / "README.md") if b.language == "python"]


def build(width: int = 4) -> nn.Module:
    return nn.Sequential(nn.Linear(5, width), nn.ReLU(), nn.Linear(width, 3))


@pytest.mark.long
def test_blocks_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names: dict[str, object] = {"__name__": "readme", "build": build, "loss_fn": F.cross_entropy}
    names |= {"x": torch.randn(8, 5), "y": torch.arange(8) % 3}
    for block in README:
        exec(compile("\n" * (block.line - 1) + block.code, "README.md", "exec"), names)  # noqa: S102 - our own text
    assert type(names["model"]) is nn.Sequential
    assert names["losses"].shape == (3,)  # type: ignore[attr-defined]


def test_it_has_a_study_a_search_and_a_loop() -> None:
    study, search, loop = README
    assert "hfta.Study(" in study.code
    assert "trials=" in search.code
    assert "array.backward(" in loop.code
