"""A member's weights as a file, and the code that loads them into a plain module."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hfta_nb as hfta
from hfta_nb.study import taking_home


class Net(nn.Module):
    def __init__(self, width: int = 4, hidden: list[int] = [3]) -> None:  # noqa: B006 - as people write it
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class Told(Net):
    def get_extra_state(self) -> dict[str, int]:
        return {"calls": 1}

    def set_extra_state(self, state: Any) -> None:
        pass


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("family", ["mlp", Net])
def test_the_code_loads_the_weights_into_a_plain_module(
    family: Any, dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = hfta.Study(family, {"width": [4, 6]}, "iris", epochs=1, dtype=dtype, directory=tmp_path / "run")
    study.fit(progress=False)
    result = study.member(1)
    path = taking_home.write(result)
    assert path == tmp_path / "run" / "member_1.safetensors"
    monkeypatch.chdir(tmp_path)
    code = taking_home.source(result, path)
    assert "load_file('run/member_1.safetensors')" in code
    found: dict[str, Any] = {"Net": Net}
    exec(code, found)  # noqa: S102 - as a cell does
    expected = result.module()
    assert type(found["model"]) is type(expected)
    assert not found["model"].training
    torch.testing.assert_close(found["model"].state_dict(), expected.state_dict(), rtol=0, atol=0)
    hfta.delete_run(study.directory)  # the file is the run's own
    assert not path.exists()


def test_what_no_file_of_tensors_holds_is_loaded_from_the_run(tmp_path: Path) -> None:
    study = hfta.Study(Told, {"width": [4]}, "iris", epochs=1, directory=tmp_path / "run")
    study.fit(progress=False)
    result = study.member(0)
    assert taking_home.write(result) is None
    assert taking_home.source(result, None) == result.to_code()
