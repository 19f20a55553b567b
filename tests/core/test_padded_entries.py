"""Padded entries become zero, and all others keep their bits."""

from __future__ import annotations

import pytest
import torch

from hfta_nb.engine.members.padded_entries import clear_padded, keep_bits

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.complex64, torch.int64, torch.bool)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("transposed", [False, True])
def test_padded_entries_become_zero(dtype: torch.dtype, transposed: bool, device: torch.device) -> None:
    given = (torch.randn(5, 7, generator=torch.Generator().manual_seed(0)) * 3).to(device, dtype)
    if dtype.is_floating_point:
        given[0, :4] = torch.tensor([torch.nan, torch.inf, -torch.inf, -0.0])
    padded = torch.zeros(5, 7, dtype=torch.bool, device=device)
    padded[:, ::2] = True
    if transposed:
        given, padded = given.t(), padded.t()
    before = given.clone()
    clear_padded(given, keep_bits(padded, given))
    assert not given[padded].any()
    torch.testing.assert_close(given[~padded], before[~padded], rtol=0, atol=0, equal_nan=True)
