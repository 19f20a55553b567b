"""Fixtures of the contract tests."""

from __future__ import annotations

import importlib.util
import sys

import pytest
import torch
from torch import Tensor

from hfta_nb.optim import one_pass


@pytest.fixture
def x(device: torch.device) -> Tensor:
    """A mini-batch of six."""
    return torch.randn(6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(device)


@pytest.fixture
def y(device: torch.device) -> Tensor:
    """Its targets."""
    return torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).to(device)


@pytest.fixture(autouse=True)
def cudnn_draws(request: pytest.FixtureRequest) -> None:
    """Left out on a GPU: dropout between recurrent layers is cuDNN's, which draws from a state of the process that
    `torch.manual_seed` does not set again, so that two plain modules differ as well."""
    if not {"row", "device"} <= set(request.fixturenames):
        return
    row, device = (request.getfixturevalue(name) for name in ("row", "device"))
    if device.type == "cuda" and "dropout" in row.name and "lstm" in row.name:
        pytest.skip("cuDNN's dropout draws from a state of the process")


@pytest.fixture(params=["chain", "triton"])
def made_by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Optimizers step on a CPU as they do on a GPU: by a chain of torch's kernels, or by Triton's."""
    name: str = request.param
    monkeypatch.setattr(one_pass, "DEVICES", {"cpu"})
    monkeypatch.setattr(one_pass, "_found", {})
    if name == "chain":
        monkeypatch.setitem(sys.modules, "hfta_nb.optim.triton_kernels", None)
    elif not importlib.util.find_spec("triton"):
        pytest.skip("Triton is not installed; it comes with torch's CUDA builds")
    elif torch.cuda.is_available():
        pytest.skip("on this machine Triton compiles for the GPU, and tests that take a device run its kernels there")
    else:
        monkeypatch.setenv("TRITON_INTERPRET", "1")  # read when the kernels are first imported
    return name
