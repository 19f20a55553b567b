"""Fixtures of the contract tests."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor


@pytest.fixture
def x(device: torch.device) -> Tensor:
    """A mini-batch of six."""
    return torch.randn(6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(device)


@pytest.fixture
def y(device: torch.device) -> Tensor:
    """Its targets."""
    return torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).to(device)
