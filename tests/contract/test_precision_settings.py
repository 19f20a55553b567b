"""A step leaves torch's settings of precision as its caller has them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import hfta_nb as hfta
from hfta_nb.train.step import Precision
from tests.contract.test_mixed_precision import HALVES, _batch, _steps


@contextlib.contextmanager
def _settings_stay() -> Iterator[None]:
    def settings() -> list[Any]:
        backends = torch.backends
        places = backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn, backends.mkldnn.matmul
        kinds = [(torch.is_autocast_enabled(k), torch.get_autocast_dtype(k)) for k in ("cpu", "cuda")]
        legacy = backends.cuda.matmul.allow_tf32, backends.cudnn.allow_tf32, torch.get_float32_matmul_precision()
        return [*kinds, *legacy, *(p.fp32_precision for p in places)]

    before = settings()
    yield
    assert settings() == before


@pytest.mark.parametrize("precision", ["fp32", *HALVES])
def test_settings_are_those_of_the_caller_after_a_step(precision: str, device: torch.device) -> None:
    step, alone = _steps("mlp", precision, device)
    x, y = _batch("mlp", device)
    with _settings_stay():
        for one in (step, alone[0]):
            one.train(x, y)
            one.evaluate(x, y)
        with pytest.raises(hfta.HftaError):
            step.train(x[:, :2], y)


@pytest.mark.parametrize("matmul", ["highest", "high"])
def test_tf32_is_set_for_a_while(matmul: str) -> None:
    """The settings alone: whether products are TF32 then is the device's."""
    before = torch.get_float32_matmul_precision()
    places = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul
    newer = [p.fp32_precision for p in places]
    try:
        torch.set_float32_matmul_precision(matmul)
        with _settings_stay(), contextlib.suppress(KeyError), Precision("tf32").products():
            assert torch.backends.cuda.matmul.allow_tf32
            assert torch.backends.cudnn.allow_tf32
            assert torch.backends.mkldnn.matmul.fp32_precision == "tf32"
            raise KeyError
    finally:
        torch.set_float32_matmul_precision(before)
        for place, value in zip(places, newer, strict=True):
            place.fp32_precision = value


@contextlib.contextmanager
def _set(matmul: str, cudnn: bool) -> Iterator[None]:
    """Within, somebody has set torch's older settings so."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision(matmul)
    torch.backends.cudnn.allow_tf32 = cudnn
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


@pytest.mark.parametrize("matmul", ["highest", "high"])
@pytest.mark.parametrize("cudnn", [False, True])
def test_fp32_is_float32_on_a_gpu(matmul: str, cudnn: bool) -> None:
    """The settings alone; cuDNN's is TF32 by default."""
    backends, fp32 = torch.backends, Precision("fp32", torch.device("cuda", 0))
    with _set(matmul, cudnn), _settings_stay(), fp32.products():
        assert not backends.cuda.matmul.allow_tf32
        assert not backends.cudnn.allow_tf32
        places = backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn
        assert "tf32" not in [p.fp32_precision for p in places]


def test_on_a_cpu_fp32_leaves_torch_s_settings() -> None:
    with _set("high", True), Precision("fp32").products():
        assert torch.backends.cuda.matmul.allow_tf32
        assert torch.backends.cudnn.allow_tf32
