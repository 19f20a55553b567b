"""What the README shows of several networks runs."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import hfta_nb as hfta
from hfta_nb.events import COMPLETE

README = Path(__file__).resolve().parents[2] / "README.md"


def test_several_networks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    section = README.read_text("utf-8").partition("## Several networks")[2].partition("\n## ")[0]
    (code,) = re.findall(r"```python\n(.*?)```", section, re.S)
    x = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
    scope = {"hfta": hfta, "torch": torch, "nn": nn, "F": F, "x": x, "y": torch.zeros(40)}
    file = tmp_path / "shown.py"
    file.write_text(code.replace("validate_every=5", "validate_every=5, epochs=2, device='cpu'"), "utf-8")
    study = runpy.run_path(str(file), scope)["study"]
    assert isinstance(study, hfta.Study)
    for _ in study.run():
        pass
    assert list(study.plan()["members"]) == [8]
    assert set(study.results()["state"]) == {COMPLETE}
    assert study.check()["equal"].all()
