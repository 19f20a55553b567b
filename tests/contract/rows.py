"""The tables of the contract tests: modules that must equal serial training. A new rule or optimizer is one row
here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class ModuleRow:
    """A module under contract.

    Attributes:
        build: makes one plain module.
        x: makes an input, of 6 samples.
        fused: whether `vmap` is expected to run it as one call.
        noise: parameters whose exact gradient is zero: an optimizer amplifies their rounding, so they are compared
            through outputs and gradients only.
    """

    name: str
    build: Callable[[], nn.Module]
    x: Callable[[], Tensor]
    fused: bool = True
    noise: tuple[str, ...] = ()


def _vectors() -> Tensor:
    return torch.randn(6, 5, dtype=torch.float64)


def _images() -> Tensor:
    return torch.randn(6, 2, 6, 6, dtype=torch.float64)


def _sequences() -> Tensor:
    return torch.randn(6, 4, 8, dtype=torch.float64)


def _tokens() -> Tensor:
    return torch.randint(0, 7, (6, 4))


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 5), nn.Linear(5, 5)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)))


class Frozen(nn.Module):
    """A layer that does not learn, and one that is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.still, self.last, self.unused = nn.Linear(5, 5), nn.Linear(5, 3), nn.Linear(2, 2)
        self.still.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.still(x).relu())


class Counting(nn.Module):
    """Replaces a buffer, changes another in place, and keeps one out of the state dict."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 3)
        self.register_buffer("mean", torch.zeros(5))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.register_buffer("scale", torch.full((), 2.0), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0) * self.linear.weight.detach().sum()
        self.calls.add_(1)
        return self.linear(x - self.mean) * self.scale


class Noisy(nn.Module):
    """Draws in every way that models do."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.linear(x) + 0.1 * torch.randn_like(x) + torch.rand(5, dtype=x.dtype, device=x.device)
        if self.training:
            keep = h.new_empty(len(h), 1).bernoulli_(0.8)
            h = h * keep / 0.8
        return F.dropout(h, 0.3, self.training)


class Choosy(nn.Module):
    """Goes a way that depends on its numbers, which `vmap` can't."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        out = self.linear(x)
        return out * 2 if out.mean().item() > 0 else out


def _net(*layers: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(*(layer() for layer in layers))


_attention: Callable[[], nn.Module] = lambda: nn.TransformerEncoderLayer(  # noqa: E731
    8, 2, 16, dropout=0.1, batch_first=True
)

MODULES = [
    ModuleRow("linear", lambda: nn.Linear(5, 3), _vectors),
    ModuleRow("mlp", _net(lambda: nn.Linear(5, 8), nn.ReLU, lambda: nn.Linear(8, 3)), _vectors),
    ModuleRow("dropout", _net(lambda: nn.Linear(5, 8), lambda: nn.Dropout(0.4), lambda: nn.Linear(8, 3)), _vectors),
    ModuleRow(
        "batch norm",
        _net(lambda: nn.Linear(5, 8), lambda: nn.BatchNorm1d(8), nn.GELU, lambda: nn.Linear(8, 3)),
        _vectors,
        noise=("0.bias",),
    ),
    ModuleRow("layer norm", _net(lambda: nn.Linear(5, 8), lambda: nn.LayerNorm(8), lambda: nn.Linear(8, 3)), _vectors),
    ModuleRow(
        "convolution",
        _net(
            lambda: nn.Conv2d(2, 4, 3, padding=1),
            lambda: nn.GroupNorm(2, 4),
            nn.Tanh,
            lambda: nn.MaxPool2d(2),
            nn.Flatten,
            lambda: nn.Linear(36, 3),
        ),
        _images,
    ),
    ModuleRow(
        "convolution, batch norm, 2d dropout",
        _net(
            lambda: nn.Conv2d(2, 4, 3, bias=False),
            lambda: nn.BatchNorm2d(4),
            lambda: nn.Dropout2d(0.3),
            lambda: nn.AdaptiveAvgPool2d(1),
            nn.Flatten,
        ),
        _images,
    ),
    ModuleRow(
        "embedding", _net(lambda: nn.Embedding(7, 5, padding_idx=1), nn.Flatten, lambda: nn.Linear(20, 3)), _tokens
    ),
    ModuleRow("bags of embeddings", _net(lambda: nn.EmbeddingBag(7, 5), lambda: nn.Linear(5, 3)), _tokens),
    ModuleRow("attention", _attention, _sequences, noise=("self_attn.in_proj_bias",)),
    ModuleRow("lstm", lambda: _Last(nn.LSTM(8, 6, batch_first=True)), _sequences),
    ModuleRow(
        "lstm of two layers, both ways, with dropout",
        lambda: _Last(nn.LSTM(8, 3, 2, batch_first=True, bidirectional=True, dropout=0.3)),
        _sequences,
    ),
    ModuleRow("gru", lambda: _Last(nn.GRU(8, 6, bias=False, batch_first=True)), _sequences),
    ModuleRow("recurrent", lambda: _Last(nn.RNN(8, 6, 2, nonlinearity="relu", batch_first=True)), _sequences),
    ModuleRow("tied parameters", Tied, _vectors),
    ModuleRow("frozen and unused parameters", Frozen, _vectors),
    ModuleRow("buffers replaced", Counting, _vectors),
    ModuleRow("random numbers of all kinds", Noisy, _vectors),
    ModuleRow("control flow on values", Choosy, _vectors, fused=False),
]


class _Last(nn.Module):
    """The last output of a recurrent module."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)[0][:, -1]
