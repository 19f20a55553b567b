"""Every block of Python in the README runs as it stands there, with the names that its text takes for granted."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import hfta_nb as hfta
from tests.pages.blocks import ROOT, Block, blocks

ELSEWHERE = {
    "-> nn.Module: ...": "its body is left to the reader",
    '"timm.': "tests/core/test_readme.py runs it",
    '"torchvision.': "tests/core/test_readme.py runs it",
}
"""What tells a block that is not run here, and why."""

README = [b for b in blocks(ROOT / "README.md") if b.language == "python"]


def build(width: int = 4) -> nn.Module:
    return nn.Sequential(nn.Linear(5, width), nn.ReLU(), nn.Linear(width, 3))


def elsewhere(block: Block) -> bool:
    return any(mark in block.code for mark in ELSEWHERE)


@pytest.mark.long
def test_blocks_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names: dict[str, object] = {"__name__": "readme", "hfta": hfta, "nn": nn, "F": F, "build": build}
    names |= {"x": torch.randn(8, 5), "y": torch.arange(8) % 3, "loss_fn": F.cross_entropy}
    names |= {"model_a": build(4), "model_b": build(5)}
    run = [b for b in README if not elsewhere(b)]
    for block in run:
        exec(compile("\n" * (block.line - 1) + block.code, "README.md", "exec"), names)  # noqa: S102 - our own text
    assert run


def test_most_blocks_are_run() -> None:
    assert sum(map(elsewhere, README)) < len(README) / 2
