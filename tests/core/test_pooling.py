"""Max pooling by way of channels last, compared with torch's."""

from __future__ import annotations

import pytest
import torch

from hfta_nb.engine.kernels.strategy.pooling import ChannelsLast


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(2, 3, 8, 6), (2, 3, 7, 9), (1, 1, 2, 2)], ids=str)
def test_max_pooling_with_channels_last_is_torch_s(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.randn(shape, dtype=dtype).relu()
    special = torch.where(torch.rand(shape) < 0.2, float("inf"), torch.where(torch.rand(shape) < 0.2, -0.0, x))
    lost = torch.where(torch.rand(shape) < 0.3, float("nan"), x)
    for value in (x, special.to(dtype), lost.to(dtype)):
        for settings in (
            ([2, 2], [2, 2]),
            ([2, 2], []),
            ([3, 3], [2, 2], [1, 1]),
            ([2, 2], [2, 2], [0, 0], [1, 1], True),
        ):
            if min(shape[-2:]) < 3 and settings[0] == [3, 3]:
                continue
            out, indices = torch.ops.aten.max_pool2d_with_indices(value, *settings)
            rooms = torch.empty_like(out), torch.empty_like(indices)
            ChannelsLast(torch.ops.aten.max_pool2d_with_indices.out)(value, *settings, out=rooms[0], indices=rooms[1])
            torch.testing.assert_close(rooms[0], out, atol=0, rtol=0, equal_nan=True)
            assert torch.equal(rooms[1], indices)
