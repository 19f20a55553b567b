"""The precision of a study: accepted values, storage, messages, and fused equal to serial."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

import hfta_nb as hfta
from hfta_nb import events as ev
from hfta_nb.cli.displays import headline
from hfta_nb.errors import DeviceError, HftaError, StudyError
from hfta_nb.study import running
from tests.frames import steady

CPU = torch.device("cpu")


def _study(directory: Path, precision: str, **more: Any) -> hfta.Study:
    options = {"epochs": 2, "device": "cpu", "directory": directory, "dropout": 0.1, "batch_size": 32, **more}
    # With 3e-2, validation is off by 3% in float32 too, and equal in float64: Adam moves the biases before batch norms,
    # whose gradients are but rounding, and running statistics lag behind.
    return hfta.Study("cnn", {"lr": [1e-3, 3e-3, 1e-2]}, "digits", width=4, precision=precision, **options)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"precision": "half"}, StudyError, "unknown precision; got 'half'; accepted: fp32, tf32, bf16, fp16"),
        ({"precision": 16}, StudyError, "unknown precision"),
        ({"precision": "bf16", "dtype": "float64"}, StudyError, "got 'bf16 with float64'; accepted: fp32; use dtype"),
        ({"precision": "tf32", "dtype": "float64"}, StudyError, "tf32 is a precision of float32 models"),
        pytest.param(
            *({"precision": "tf32"}, DeviceError, "this CPU has no TF32, .*; got 'tf32 on cpu'; use fp32 or bf16"),
            marks=pytest.mark.skipif(torch.cpu._is_amx_fp16_supported(), reason="it has"),
        ),
    ],
)
def test_what_can_not_be_is_refused(options: dict[str, Any], error: type[HftaError], message: str) -> None:
    with pytest.raises(error, match=message):
        hfta.Study("mlp", {"lr": [1e-3]}, "digits", device="cpu", **options)


def test_what_was_asked_before_there_was_a_choice_is_fp32(tmp_path: Path) -> None:
    study = hfta.Study("mlp", {"lr": [1e-3]}, "digits", device="cpu", directory=tmp_path)
    assert study.precision == study.options["precision"] == "fp32"
    assert "precision" not in study.to_code()
    study.save(tmp_path)
    asked = study.store.read_study()
    del asked["options"]["precision"]
    study.store.write_study(asked)
    assert hfta.Study.load(tmp_path).precision == "fp32"
    started = ev.to_json(running.started(study, False))
    del started["precision"]
    assert ev.from_json(started).precision == "fp32"


@pytest.mark.each
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_study_in_half_precision(precision: str, tmp_path: Path) -> None:
    study = _study(tmp_path / "fused", precision)
    for event in study.run():
        # Nothing of it leaks to whoever iterates.
        assert not torch.is_autocast_enabled("cpu")
        if isinstance(event, ev.RunStarted):
            assert event.precision == precision
            assert f"float32 in {precision}, cpu" in headline(event)
    assert f"precision={precision!r}" in study.to_code()
    checked = study.check(members=[0, 1, 2])
    assert checked["equal"].all()
    again = hfta.Study.load(study.directory)
    assert again.precision == precision
    assert {p.dtype for p in again.best().module().parameters()} == {torch.float32}
    serial = _study(tmp_path / "serial", precision, serial=True)
    list(serial.run())
    fused, alone = study.results().sort_index(), serial.results().sort_index()
    losses = ["train_loss", "val_loss"]
    # Means over the steps of an epoch: products of several members may round otherwise.
    pd.testing.assert_frame_equal(fused[losses], alone[losses], rtol=0.02, atol=0.02)
    if precision == "fp16":
        assert (fused["train_loss_scale"] == alone["train_loss_scale"]).all()
        assert (fused["train_loss_scale"] >= 1).all()
    else:
        assert "train_loss_scale" not in fused


@pytest.mark.each
@pytest.mark.parametrize("serial", [False, True])
def test_a_run_in_fp16_goes_on_with_its_scales(serial: bool, tmp_path: Path) -> None:
    found = []
    for name in ("whole", "parts"):
        study = _study(tmp_path / name, "fp16", serial=serial, epochs=3)
        control = hfta.Control()
        for event in study.run(control):
            if name == "parts" and isinstance(event, ev.EpochDone) and event.epoch == 2:
                control.stop()
        if name == "parts":
            assert study.history.state == ev.STOPPED
            study = hfta.Study.load(study.directory)
            list(study.run(resume=True))
        assert study.history.state == ev.COMPLETE
        found.append(study.results().sort_index())
    scales = [f.pop("train_loss_scale") for f in found]
    assert (scales[0] == scales[1]).all()
    assert (scales[0] > 0).all()
    numbers = ["train_loss", "val_loss"]
    pd.testing.assert_frame_equal(found[0][numbers], found[1][numbers], rtol=0.02, atol=0.02)
    if serial:
        pd.testing.assert_frame_equal(steady(found[0]), steady(found[1]), check_exact=True)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("precision", ["tf32", "bf16", "fp16"])
def test_a_study_on_a_gpu(precision: str, tmp_path: Path) -> None:
    if precision == "tf32" and torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("no TF32")
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    study = _study(tmp_path, precision, device="cuda")
    for _ in study.run():
        assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == before
        assert not torch.is_autocast_enabled("cuda")
    assert study.check()["equal"].all()
