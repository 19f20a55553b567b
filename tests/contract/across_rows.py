"""Cases of members with different architectures, which must equal serial training in every form of execution."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class AcrossRow:
    """A builder, and what it is called with per member.

    Attributes:
        noise: parts of names of parameters whose exact gradient is zero.
    """

    name: str
    build: Callable[..., nn.Module]
    knobs: Sequence[dict[str, Any]]
    x: Callable[[], Tensor]
    noise: tuple[str, ...] = ()

    def modules(self, device: torch.device) -> list[nn.Module]:
        """Plain modules in float64, member i initialised under seed 10 + i."""
        made = []
        for i, knobs in enumerate(self.knobs):
            torch.manual_seed(10 + i)
            made.append(self.build(**knobs).to(device, torch.float64))
        return made

    @property
    def seeds(self) -> list[int]:
        """Of the members."""
        return [101 + i for i in range(len(self.knobs))]


def _vectors() -> Tensor:
    return torch.randn(6, 5, dtype=torch.float64)


def _images() -> Tensor:
    return torch.randn(6, 2, 8, 8, dtype=torch.float64)


def _tokens() -> Tensor:
    return torch.randint(0, 7, (6, 4))


def _sequences() -> Tensor:
    return torch.randn(6, 4, 3, dtype=torch.float64)


class Exp(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.exp(-x)


def mlp(widths: Sequence[int] = (8,), act: Callable[[], nn.Module] = nn.ReLU, norm: Any = None, p: float = 0.0):
    layers: list[nn.Module] = []
    size = 5
    for width in widths:
        layers += [nn.Linear(size, width)]
        if norm is not None:
            layers += [norm(width)]
        layers += [act()]
        if p:
            layers += [nn.Dropout(p)]
        size = width
    return nn.Sequential(*layers, nn.Linear(size, 3))


def cnn(width: int = 4) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3),
        nn.GELU(),
        nn.Dropout2d(0.3),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(2 * width, 3),
    )


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.bn(self.conv(x)))


class Residual(nn.Module):
    """Blocks that can be left out, walked over by the model's own loop."""

    def __init__(self, width: int = 4, depth: int = 1) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, width, 3)
        self.blocks = nn.ModuleList([Block(width) for _ in range(depth)])
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))


class Separable(nn.Module):
    def __init__(self, width: int = 4, squeeze: int = 2) -> None:
        super().__init__()
        self.point = nn.Conv2d(2, width, 1)
        self.depth = nn.Conv2d(width, width, 3, groups=width)
        self.norm = nn.GroupNorm(2, width)
        self.down, self.up = nn.Conv2d(width, squeeze, 1), nn.Conv2d(squeeze, width, 1)
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.silu(self.norm(self.depth(self.point(x))))
        gate = torch.sigmoid(self.up(F.relu(self.down(F.adaptive_avg_pool2d(x, 1)))))
        x = x * gate
        return self.head(x.flatten(2).mean(-1))


class Attentive(nn.Module):
    """Attention as people write it: sizes read from tensors, a scale kept as a number."""

    def __init__(self, width: int = 8, heads: int = 2, act: Callable[[Tensor], Tensor] = F.gelu) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, width)
        self.position = nn.Parameter(torch.randn(1, 4, width) * 0.1)
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.heads, self.scale, self.act = heads, (width // heads) ** -0.5, act
        self.head = nn.Linear(width, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) + self.position
        n, t, c = x.shape
        q, k, v = self.qkv(self.norm(x)).reshape(n, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-2, -1) * self.scale).softmax(-1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(n, t, c))
        return self.head(self.act(x).mean(1) / x.shape[-1] ** 0.5)


class Encoder(nn.Module):
    def __init__(self, width: int = 8, inner: int = 16, heads: int = 2, layers: int = 1) -> None:
        super().__init__()
        self.embed = nn.Linear(3, width)
        layer = nn.TransformerEncoderLayer(width, heads, inner, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.embed(x))[:, 0])


class Causal(nn.Module):
    """A decoder as in GPT-2: split by its width, masked by a buffer, weights tied."""

    def __init__(self, width: int = 8, heads: int = 2) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(7, width), nn.Linear(width, 7, bias=False)
        self.head.weight = self.embed.weight
        self.norm, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.heads, self.width = heads, width
        self.register_buffer("past", torch.ones(4, 4).tril().bool())

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        n, t, c = x.size()
        parts = self.qkv(self.norm(x)).split(self.width, dim=2)
        q, k, v = (p.view(n, t, self.heads, c // self.heads).transpose(1, 2) for p in parts)
        scores = (q @ k.transpose(-2, -1)).masked_fill(~self.past, float("-inf"))
        x = x + (F.softmax(scores, -1) @ v).transpose(1, 2).contiguous().view(n, t, c)
        a, b = x.chunk(2, dim=-1)
        return self.head(torch.cat([a, F.dropout(b, 0.2, self.training)], -1)).mean(1)


class Skipping(nn.Module):
    """Features of two widths beside each other."""

    def __init__(self, a: int = 4, b: int = 4) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, a), nn.Linear(a, b)
        self.norm, self.head = nn.LayerNorm(a + b), nn.Linear(a + b, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).tanh()
        return self.head(self.norm(torch.cat([h, self.second(h).sigmoid()], dim=1)))


class Recurrent(nn.Module):
    def __init__(self, hidden: int = 4) -> None:
        super().__init__()
        self.inner, self.head = nn.LSTM(3, hidden, batch_first=True), nn.Linear(hidden, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.inner(x)[0][:, -1])


class Tied(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(7, width), nn.Linear(width, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(F.softplus(self.embed(tokens))).mean(1)


@dataclass
class Found:
    """What a body returns, as an object."""

    features: Tensor
    level: int


class Body(nn.Module):
    """One of two kinds of module that return an object."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Found:
        return Found(self.inner(x).tanh(), 1)


class DeepBody(Body):
    def __init__(self) -> None:
        super().__init__()
        self.more = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Found:
        return Found(self.more(super().forward(x).features).sigmoid(), 1)


class Telling(nn.Module):
    def __init__(self, body: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.body, self.head = body(), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        found = self.body(x)
        return self.head(found.features) * found.level


def _widths(*widths: int) -> list[dict[str, Any]]:
    return [{"width": w} for w in widths]


ROWS = [
    AcrossRow("mlp, width", mlp, [{"widths": (w,)} for w in (8, 3, 16, 8)], _vectors),
    AcrossRow("mlp, bottleneck at different places", mlp, [{"widths": w} for w in ((8, 2), (3, 6), (2, 9))], _vectors),
    AcrossRow(
        "mlp, activation",
        mlp,
        [{"act": a} for a in (nn.ReLU, nn.Tanh, nn.GELU, nn.Sigmoid, nn.Softplus, Exp, nn.Tanh)],
        _vectors,
    ),
    AcrossRow(
        "mlp, width, depth and activation",
        mlp,
        [
            {"widths": (8,), "act": nn.ReLU},
            {"widths": (4, 6, 5), "act": nn.Sigmoid},
            {"widths": (9, 3), "act": nn.Tanh},
            {"widths": (4, 6, 5), "act": Exp},
        ],
        _vectors,
    ),
    AcrossRow("mlp, leaky slope", mlp, [{"act": lambda s=s: nn.LeakyReLU(s)} for s in (0.1, 0.2)], _vectors),
    AcrossRow("mlp, relu against prelu", mlp, [{"act": nn.ReLU}, {"act": nn.PReLU}, {"act": nn.PReLU}], _vectors),
    AcrossRow(
        "mlp, prelu of other width",
        mlp,
        [{"widths": (w,), "act": lambda w=w: nn.PReLU(w)} for w in (3, 5)],
        _vectors,
    ),
    AcrossRow("mlp, layer norm", mlp, [{"widths": (w, 4), "norm": nn.LayerNorm} for w in (8, 3, 5)], _vectors),
    AcrossRow("mlp, rms norm", mlp, [{"widths": (w, 4), "norm": nn.RMSNorm} for w in (8, 3, 5)], _vectors),
    AcrossRow(
        "mlp, batch norm",
        mlp,
        [{"widths": (w, 4), "norm": nn.BatchNorm1d} for w in (8, 3, 5)],
        _vectors,
        noise=("0.bias", "3.bias"),
    ),
    AcrossRow(
        "mlp, batch norm against layer norm",
        mlp,
        [{"norm": nn.BatchNorm1d}, {"norm": nn.LayerNorm}, {"norm": nn.Identity}],
        _vectors,
        noise=("0.bias",),
    ),
    AcrossRow("mlp, dropout rate", mlp, [{"p": p} for p in (0.1, 0.5, 0.3)], _vectors),
    AcrossRow("mlp, dropout and width", mlp, [{"p": 0.4, "widths": (w,)} for w in (8, 5, 8)], _vectors),
    AcrossRow("cnn, width", cnn, _widths(4, 2, 5, 4), _images),
    AcrossRow(
        "residual, width and depth",
        Residual,
        [{"width": 4, "depth": 2}, {"width": 3, "depth": 1}, {"width": 6, "depth": 3}, {"width": 4, "depth": 1}],
        _images,
    ),
    AcrossRow(
        "separable, width and squeeze",
        Separable,
        [{"width": 4, "squeeze": 2}, {"width": 8, "squeeze": 1}, {"width": 6, "squeeze": 3}],
        _images,
    ),
    AcrossRow(
        "attention by hand, width, heads and activation",
        Attentive,
        [
            {"width": 8, "heads": 2},
            {"width": 12, "heads": 3, "act": torch.tanh},
            {"width": 8, "heads": 4},
            {"width": 6, "heads": 1, "act": F.relu},
        ],
        _tokens,
        noise=("qkv.bias",),
    ),
    AcrossRow(
        "causal decoder",
        Causal,
        [{"width": 8, "heads": 2}, {"width": 12, "heads": 3}, {"width": 8, "heads": 4}, {"width": 4, "heads": 1}],
        _tokens,
        noise=("qkv.bias",),
    ),
    AcrossRow(
        "transformer encoder",
        Encoder,
        [
            {"width": 8, "heads": 2},
            {"width": 12, "heads": 3, "inner": 8},
            {"width": 8, "heads": 4, "layers": 2},
            {"width": 8, "heads": 2, "layers": 2, "inner": 10},
        ],
        _sequences,
        noise=("in_proj_bias",),
    ),
    AcrossRow("skip by concatenation", Skipping, [{"a": 4}, {"a": 6, "b": 2}, {"a": 2, "b": 9}], _vectors),
    AcrossRow("lstm, hidden size", Recurrent, [{"hidden": h} for h in (4, 6, 4)], _sequences),
    AcrossRow("tied parameters", Tied, _widths(4, 7), _tokens),
    AcrossRow("unlike bodies that return an object", Telling, [{"body": b} for b in (Body, DeepBody, Body)], _vectors),
]
