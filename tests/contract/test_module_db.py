"""Every module class of torch, with torch's own sample inputs: fused equals serial."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from hfta_nb.train.step.precision import has_lstm
from tests.contract.zoo import agree
from tests.contract.zoo.kinds import KINDS, builder, inputs, members, modes, samples
from tests.contract.zoo.model import Model
from tests.contract.zoo.more_kinds import KINDS as MORE
from tests.contract.zoo.more_kinds import NOT_TESTED, TOGETHER

MEMBERS = 3
FEW_SAMPLES, MOST_SAMPLES = 3, 120
# What torch's samples themselves are warned of.
pytestmark = [
    # Inputs of layers that take any number of axes look as if their first one counted members.
    pytest.mark.filterwarnings("ignore::hfta_nb.errors.ArrayWarning"),
    pytest.mark.filterwarnings("ignore:reduction. 'mean' divides the total loss"),
    pytest.mark.filterwarnings("ignore:enable_nested_tensor is True"),
    pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight"),
    pytest.mark.filterwarnings("ignore:linear_cross_entropy. ``options`` ignored"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage"),
]

kinds = pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.name)
dtypes = pytest.mark.parametrize("dtype", list(agree.TOLERANCE), ids=str)


def test_torch_lists_its_kinds() -> None:
    assert len(KINDS) >= 113


@pytest.mark.only(most=FEW_SAMPLES)
@kinds
@pytest.mark.parametrize(
    ("dtype", "most"),
    [(torch.float64, FEW_SAMPLES), (torch.float64, MOST_SAMPLES), (torch.float32, MOST_SAMPLES // 4)],
    ids=str,
)
def test_kind(kind: Any, dtype: torch.dtype, most: int, device: torch.device) -> None:
    if dtype not in kind.supported_dtypes(device.type):
        pytest.skip(f"torch has no {kind.name} in {dtype}")
    for training in modes(kind):
        if device.type == "cuda" and not training and issubclass(kind.module_cls, nn.RNNBase):
            continue  # cuDNN differentiates recurrent layers in train mode only, in plain modules too
        found = samples(kind, dtype, device, training, most)
        assert found, "nothing was compared"
        for sample in found:
            _check(builder(kind, sample), inputs(sample), dtype, device, training)


@pytest.mark.long
@kinds
def test_kind_under_autocast(kind: Any, device: torch.device) -> None:
    if torch.float32 not in kind.supported_dtypes(device.type):
        pytest.skip(f"torch has no {kind.name} in float32")
    if kind.name == "nn.LSTM" and device.type == "cpu" and not has_lstm(torch.bfloat16):
        pytest.skip("this CPU has no LSTM in bf16, for a plain module neither")
    if kind.name == "nn.BCELoss" and device.type == "cuda":
        pytest.skip("torch refuses it under autocast on a GPU, for a plain module too")
    found = samples(kind, torch.float32, device, True, 12)
    assert found, "nothing was compared"
    for sample in found:
        modules = members(builder(kind, sample), MEMBERS, torch.float32, device, True)
        agree.check_autocast(modules, inputs(sample), device)
        modules = members(builder(kind, sample), MEMBERS, torch.float32, device, True)
        agree.check_low_inputs(modules, inputs(sample), device)


@pytest.mark.only(dtype=torch.float64, training=True)
@pytest.mark.parametrize("kind", MORE, ids=str)
@dtypes
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_kind_that_torch_does_not_list(kind: Model, dtype: torch.dtype, device: torch.device, training: bool) -> None:
    if device.type == "cuda" and not training and "packed" in kind.name:
        pytest.skip("cuDNN differentiates recurrent layers in train mode only, in plain modules too")
    torch.manual_seed(0)
    _check(kind.build, kind.sample().to(device, dtype), dtype, device, training)


def test_no_kind_is_left_out() -> None:
    """Also those of a newer torch: each has samples of torch's, or of ours, or a reason."""
    names = {name for name, value in vars(nn).items() if isinstance(value, type) and issubclass(value, nn.Module)}
    ours = {kind.name.partition(",")[0] for kind in MORE}
    assert names - {kind.module_cls.__name__ for kind in KINDS} - ours - set(TOGETHER) == set(NOT_TESTED)


def _check(
    build: Callable[[], nn.Module], sample: agree.Sample, dtype: torch.dtype, device: torch.device, training: bool
) -> None:
    def made() -> list[nn.Module]:
        return members(build, MEMBERS, dtype, device, training)

    tolerance = agree.TOLERANCE[dtype]
    agree.check_shared(made(), sample, tolerance)
    agree.check_per_member(made(), sample, tolerance)
    agree.check_without_gradients(made(), sample, tolerance)
