"""Modules as files of other formats: run by the libraries that read them, on batches of any size."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.errors import StoreError, StudyError
from hfta_nb.study import module_files
from tests.contract.test_families import ROWS, FamilyRow, _data


class Two(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.a, self.b, self.out = nn.Linear(3, width), nn.Linear(2, width), nn.Linear(width, 1)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        found: Tensor = self.out(torch.tanh(self.a(first) + self.b(second)))
        return found


def two(folder: Path) -> hfta.Study:
    draw = torch.Generator().manual_seed(0)
    x = {"first": torch.randn(12, 3, generator=draw), "second": torch.randn(12, 2, generator=draw)}
    data = (x, torch.randn(12, 1, generator=draw), x, torch.randn(12, 1, generator=draw))
    study = hfta.Study(Two, {"width": [4, 8]}, data, loss="mse", epochs=1, directory=folder / "run")
    list(study.run())
    return study


def cnn(folder: Path) -> hfta.Study:
    study = hfta.Study("cnn", {"width": [2, 4]}, "digits", epochs=1, steps_per_epoch=3, directory=folder / "run")
    list(study.run())
    return study


@pytest.mark.long  # to import the exporter takes seconds
def test_onnxruntime_gives_what_the_module_gives(tmp_path: Path) -> None:
    import onnxruntime

    study = two(tmp_path)
    path = study.member(1).export(tmp_path / "out" / "member.onnx")
    session, module = onnxruntime.InferenceSession(path), study.member(1).module()
    for size in (1, 7):
        x = {"first": torch.randn(size, 3), "second": torch.randn(size, 2)}
        [found] = session.run(None, {name: value.numpy() for name, value in x.items()})
        torch.testing.assert_close(torch.from_numpy(found), module(**x).detach(), atol=1e-5, rtol=1e-5)
    card = path.with_suffix(".md").read_text()
    assert f"Compared with the module by onnxruntime {onnxruntime.__version__}: the largest difference is" in card
    assert sorted(p.name for p in path.parent.iterdir()) == ["member.md", "member.onnx"]


@pytest.mark.long
def test_exported_programs_are_read_by_torch(tmp_path: Path) -> None:
    study = cnn(tmp_path)
    best = study.best()
    module, x = best.module(), torch.randn(3, 1, 8, 8)
    program = torch.export.load(best.export(tmp_path / "a.pt2")).module()
    torch.testing.assert_close(program(x), module(x))
    assert '"a.pt2"' in (tmp_path / "a.md").read_text()


def test_weights_are_read_by_safetensors_and_the_card_says_what_they_are(tmp_path: Path) -> None:
    study = two(tmp_path)
    path, module = study.member(1).export(tmp_path / "out" / "weights", "safetensors"), study.member(1).module()
    weights = load_file(path)
    assert all(torch.equal(weights[name], value) for name, value in module.state_dict().items())
    assert len(weights) == len(module.state_dict())
    card = path.with_suffix(".md").read_text()
    assert "Compared with the module by a module that was built anew: the largest difference is 0." in card
    for said in ("| width | 8 |", "| first | float32 [batch, 3] |", "| seed | 0 |", "| val_loss |", torch.__version__):
        assert said in card
    assert sorted(p.name for p in path.parent.iterdir()) == ["weights", "weights.md"]


def test_what_differs_from_the_module_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def other(build: Any, module: nn.Module, x: Any, path: Path) -> Any:
        path.write_bytes(b"something")
        return "a fault", lambda given: [value + 1 for value in module_files._run(module, given)]

    study = two(tmp_path)
    monkeypatch.setattr(module_files, "_program", other)
    with pytest.raises(StudyError, match=r"torch.export, by a fault: gives other outputs than the module; got 1"):
        study.member(0).export(tmp_path / "out" / "a.pt2")
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.long
def test_a_module_of_one_batch_size_is_refused(tmp_path: Path) -> None:
    class Fixed(Two):
        def forward(self, first: Tensor, second: Tensor) -> Tensor:
            return super().forward(first, second).view(len(first))

    def batch(size: int) -> Any:
        return torch.ones(size, 3), torch.ones(size, 2)

    for name in ("onnx", "torch.export"):
        with pytest.raises(StudyError, match=rf"format {name}: can't be exported .*x.shape\[0\] in place of len\(x\)"):
            module_files.write(Fixed, Fixed().eval(), batch, tmp_path / "a", name)
    assert not list(tmp_path.iterdir())


def test_a_module_that_draws_is_refused(tmp_path: Path) -> None:
    class Noisy(Two):
        def forward(self, first: Tensor, second: Tensor) -> Tensor:
            return super().forward(first, second) + torch.randn(len(first), 1)

    draws = Noisy().eval()
    x = {"first": torch.ones(2, 3), "second": torch.ones(2, 2)}
    with pytest.raises(StudyError, match="Noisy: draws random numbers"):
        module_files.write(Noisy, draws, lambda size: x, tmp_path / "a.pt2", "torch.export")


def test_wrong_formats_and_missing_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = hfta.Study("mlp", {"lr": [1e-3]}, "iris", directory=tmp_path)
    with pytest.raises(StudyError, match=r"format: not a format of a module; got 'a.bin'; accepted: onnx \(.onnx\)"):
        study.member(0).export(tmp_path / "a.bin")
    with pytest.raises(StudyError, match="got 'keras'"):
        study.member(0).export(tmp_path / "a.onnx", "keras")
    with pytest.raises(StoreError, match="no such file in the run"):
        study.member(0).export(tmp_path / "a.onnx")
    there = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "onnxscript" else there(name))
    with pytest.raises(StudyError, match=r"needs onnxscript, which is not .* pip install 'hfta_nb\[export\]'"):
        study.member(0).export(tmp_path / "a.onnx")


@pytest.mark.long
@pytest.mark.parametrize("row", [row for row in ROWS if row.name != "dcgan"], ids=str)
def test_every_family(row: FamilyRow, tmp_path: Path) -> None:
    data, family = _data(row), hfta.family(row.name)

    def build() -> nn.Module:
        return family.build(**row.facts, **row.axes)

    def batch(size: int) -> Any:
        return data.sample(size, dtype=torch.float32)

    for name, end in module_files.FORMATS.items():
        checked = module_files.write(build, build().eval(), batch, tmp_path / f"a{end}", name)
        assert checked.difference < 1e-4
