"""A step creates tensors on the members' device only: otherwise it could not be recorded or captured on a GPU.

Torch's device "meta", which computes shapes only, stands for the GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import hfta_nb as hfta
from hfta_nb.engine.padded.rules.packing import _index

META = torch.device("meta")


class _Devices(TorchDispatchMode):
    """Notes what lies elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.elsewhere: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else [out]:
            if isinstance(tensor, Tensor) and tensor.device != META:
                self.elsewhere.append(f"{func} {list(tensor.shape)}")
        return out


def _perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3))


def _images() -> nn.Module:
    return nn.Sequential(nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 4, 2), nn.GroupNorm(2, 4), nn.GELU(), nn.Flatten(),
                         nn.Linear(8, 3))  # fmt: skip


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.TransformerEncoderLayer(6, 2, 8, 0.0, batch_first=True), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x.unsqueeze(1)).squeeze(1))


@pytest.mark.parametrize("build", [_perceptron, _images, _Attention])
@pytest.mark.parametrize("size", [3, 2, 1])
def test_all_is_made_where_the_members_are(build: Callable[[], nn.Module], size: int) -> None:
    array = hfta.fuse([build().to(META) for _ in range(3)])
    array.block_size = size
    x, y = torch.empty(5, 6, device=META), torch.empty(5, dtype=torch.long, device=META)
    array.backward(nn.functional.cross_entropy, x, y)  # once-only work is done
    with _Devices() as seen:
        array.backward(nn.functional.cross_entropy, x, y)
        array.losses(nn.functional.cross_entropy, array(x), y)
    assert not seen.elsewhere


def test_places_of_padded_members_are_made_there() -> None:
    _index.cache_clear()
    places = (((0, 1), (0, 1)), ((0,), (1,)))
    with _Devices() as seen:
        _index(places, 2, META)
    assert not seen.elsewhere
    index, own = _index(places, 2, torch.device("cpu"))
    assert index.tolist() == [[0, 1], [0, 0]]
    assert own.tolist() == [[True, True], [False, True]]
