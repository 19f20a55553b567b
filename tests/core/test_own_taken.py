"""Every kernel of the package passes its check before use, at each vector width of the processor.

Other tests compare the kernels with float64. This one tests that they are used: a rejected kernel costs speed and fails
no other test.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.engine.kernels.native import adam, attention, build, conv, images, norm, product, recurrent, rows
from tests.core.compiled import NEEDS_COMPILER, taken

pytestmark = [NEEDS_COMPILER, pytest.mark.usefixtures("libraries_anew", "own_libraries", "own_kernels_preferred")]
OWN = [adam, attention, conv, images, norm, product, rows]


class _Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.first, self.norm = nn.Embedding(11, 16), nn.Linear(16, 16), nn.LayerNorm(16)
        self.attention, self.last = nn.MultiheadAttention(16, 2, batch_first=True), nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.first(self.table(x)).relu())
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return self.last(x).mean(1)  # type: ignore[no-any-return]


def _cnn() -> nn.Module:
    head = [nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 5)]
    chains = [nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3), nn.GroupNorm(2, 8), nn.ReLU()]
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), *chains, *head)


def _tokens() -> Tensor:
    return torch.arange(6 * 9).view(6, 9) * 7 % 11


def _images() -> Tensor:
    drawn = torch.randn(6, 3, 12, 10, generator=torch.Generator().manual_seed(0))
    return drawn.contiguous(memory_format=torch.channels_last)


_PRODUCTS = {"addmm", "mm"}
MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor], set[str]]] = {
    "Transformer": (
        _Transformer,
        _tokens,
        {
            *_PRODUCTS,
            *("scaled_dot_product_flash_attention_for_cpu", "scaled_dot_product_flash_attention_for_cpu_backward"),
            *("native_layer_norm", "native_layer_norm_backward", "log_softmax_backward_data", "sum"),
            "embedding_dense_backward",
        },
    ),
    "CNN": (
        _cnn,
        _images,
        {
            *_PRODUCTS,
            *("convolution", "convolution_backward", "batch_norm + relu + max_pool2d", "group_norm + relu"),
        },
    ),
    "perceptron": (
        lambda: nn.Sequential(nn.Linear(8, 20), nn.BatchNorm1d(20), nn.ReLU(), nn.Linear(20, 5)),
        lambda: torch.randn(6, 8, generator=torch.Generator().manual_seed(0)),
        {*_PRODUCTS, "native_batch_norm", "native_batch_norm_backward"},
    ),
}


@pytest.mark.parametrize("model", MODELS)
def test_in_a_step(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, x, wanted = MODELS[model]
    if "native_batch_norm" in wanted:  # what is made for images takes these as well, and is found first
        monkeypatch.setattr(images, "library", lambda name, wait=True: None)
    torch.manual_seed(0)
    array = hfta.fuse([kind() for _ in range(2)])
    array.block_size = 1  # then products and sums are those of one member
    for _ in range(5):
        array.zero_grad()
        array.backward(F.cross_entropy, x(), torch.arange(6) % 5)
    assert set(taken(array)) >= wanted


def test_what_is_compared_when_it_is_loaded() -> None:
    assert adam.usable([[torch.zeros(3)] for _ in range(4)])
    with build.compiling():
        assert recurrent.usable(torch.zeros(1), torch.zeros(1, 16))
