"""What the README shows of one's own data and families runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

import hfta_nb as hfta

README = Path(__file__).parents[2] / "README.md"


def shown(heading: str) -> str:
    """The code below a heading."""
    section = README.read_text(encoding="utf-8").partition(f"## {heading}\n")[2].partition("\n## ")[0]
    (code, *_) = re.findall(r"```python\n(.*?)```", section, re.S)
    return str(code)


def test_any_module_and_any_optimizer() -> None:
    def build(width: int) -> nn.Module:
        return nn.Sequential(nn.Linear(5, width), nn.ReLU(), nn.Linear(width, 3))

    names: dict[str, object] = {"hfta": hfta, "build": build, "loss_fn": nn.functional.cross_entropy}
    names |= {"x": torch.randn(8, 5), "y": torch.arange(8) % 3, "model_a": build(4), "model_b": build(5)}
    exec(compile(shown("Any module, any optimizer"), str(README), "exec"), names)  # noqa: S102 - our own text
    assert names["losses"].shape == (3,)  # type: ignore[attr-defined]
    assert type(names["model"]) is nn.Sequential
    assert torch.equal(names["array"][1][0].weight, names["array"][2][0].weight)  # type: ignore[index]


def test_own_data_and_families(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = shown("Your own data")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "readme"}
    exec(compile(code, str(README), "exec"), names)  # noqa: S102 - our own text
    study = names["study"]
    assert study.history.state == "COMPLETE"  # type: ignore[attr-defined]
    assert len(study.results()) == 4  # type: ignore[attr-defined]
