"""Whole third-party models, unmodified: fused equals serial, and models that cannot be fused give a reason."""

from __future__ import annotations

from fnmatch import fnmatch

import pytest
import torch
from torch import nn

from hfta_nb.engine.array import FusedArray
from tests.contract.zoo import agree
from tests.contract.zoo.model import Model
from tests.contract.zoo.timm_models import MODELS as TIMM
from tests.contract.zoo.torchvision_models import MODELS as TORCHVISION
from tests.contract.zoo.transformers_language import MODELS as LANGUAGE
from tests.contract.zoo.transformers_others import MODELS as OTHERS

MODELS = [*TORCHVISION, *TIMM, *LANGUAGE, *OTHERS]
MEMBERS = 3

models = pytest.mark.parametrize(
    "model", [pytest.param(m, id=m.name, marks=() if m.core else pytest.mark.long) for m in MODELS]
)
pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop because we have not yet implemented")


def _made(model: Model, device: torch.device) -> tuple[list[nn.Module], agree.Sample]:
    modules = []
    for i in range(MEMBERS):
        torch.manual_seed(10 + i)
        modules.append(model.build().to(device, model.dtype))
    torch.manual_seed(0)
    return modules, model.sample().to(device, model.dtype)


def _as_expected(model: Model, array: FusedArray) -> None:
    """What runs one member at a time is what the row names, and nothing else."""
    told = dict(array.explain().itertuples(index=False))
    apart = [f.removeprefix("submodule ") for f in told if f.startswith("submodule ")]
    assert all(any(fnmatch(path, pattern) for pattern in model.apart) for path in apart), apart
    assert all(any(fnmatch(path, pattern) for path in apart) for pattern in model.apart), apart
    assert array.block_size == MEMBERS, told


@pytest.mark.each("model", every=2)
@models
def test_training_and_evaluation(model: Model, device: torch.device) -> None:
    modules, sample = _made(model, device)
    array = agree.check_training(modules, sample, agree.TOLERANCE[model.dtype])
    _as_expected(model, array)
    agree.check_without_gradients(modules, sample, agree.TOLERANCE[model.dtype])
