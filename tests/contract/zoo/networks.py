"""Random small networks, as plain data that hypothesis can shrink and print."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

BATCH = 6
VOCABULARY = 7


@dataclass(frozen=True)
class Network:
    """An input and what is done to it.

    Attributes:
        start: "vector", "image", "sequence" or "tokens".
        shape: of one sample.
        layers: ``(name, numbers)``, of `LAYERS`.
    """

    start: str
    shape: tuple[int, ...]
    layers: tuple[tuple[str, tuple[Any, ...]], ...]

    def build(self) -> nn.Module:
        return nn.Sequential(*(LAYERS[name](*numbers) for name, numbers in self.layers))

    def inputs(self) -> Tensor:
        if self.start == "tokens":
            return torch.randint(0, VOCABULARY, (BATCH, *self.shape))
        return torch.randn(BATCH, *self.shape, dtype=torch.float64)


class Residual(nn.Module):
    """Adds what a layer makes of its input."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


class Recurrent(nn.Module):
    """The outputs of a recurrent layer, without its last state."""

    def __init__(self, kind: str, inputs: int, hidden: int, layers: int, both: bool, dropout: float) -> None:
        super().__init__()
        options: dict[str, Any] = {"bidirectional": both, "dropout": dropout if layers > 1 else 0.0}
        self.inner = getattr(nn, kind)(inputs, hidden, layers, batch_first=True, **options)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)[0]


class Attention(nn.Module):
    """Attention of a sequence to itself, to the past only where `causal`."""

    def __init__(self, width: int, heads: int, dropout: float, causal: bool) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(width, heads, dropout, batch_first=True)
        self.causal = causal

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], dtype=x.dtype) if self.causal else None
        return self.inner(x, x, x, attn_mask=mask, need_weights=False)[0]


class Mean(nn.Module):
    """The mean over a sequence."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


LAYERS: dict[str, Callable[..., nn.Module]] = {
    "linear": lambda i, o, bias: nn.Linear(i, o, bias=bias),
    "residual linear": lambda w: Residual(nn.Linear(w, w)),
    "conv": lambda i, o, k, s, g, bias: nn.Conv2d(i, o, k, s, padding=k // 2, groups=g, bias=bias),
    "transposed conv": lambda i, o: nn.ConvTranspose2d(i, o, 2, stride=2),
    "residual conv": lambda c: Residual(nn.Conv2d(c, c, 3, padding=1)),
    "batch norm": lambda c, momentum: nn.BatchNorm1d(c, momentum=momentum),
    "batch norm 2d": lambda c, momentum: nn.BatchNorm2d(c, momentum=momentum),
    "group norm": nn.GroupNorm,
    "instance norm": lambda c: nn.InstanceNorm2d(c, affine=True, track_running_stats=True),
    "layer norm": nn.LayerNorm,
    # With torch's own eps of 2e-16 a row of zeros makes rounding 1e8 times as large.
    "rms norm": lambda w: nn.RMSNorm(w, eps=1e-5),
    "activation": lambda name, inplace: getattr(nn, name)(**({"inplace": True} if inplace else {})),
    "prelu": nn.PReLU,
    "dropout": nn.Dropout,
    "dropout 2d": nn.Dropout2d,
    "max pool": lambda: nn.MaxPool2d(2),
    "average pool": lambda: nn.AvgPool2d(2),
    "adaptive pool": nn.AdaptiveAvgPool2d,
    "flatten": nn.Flatten,
    "embedding": lambda w, padding: nn.Embedding(VOCABULARY, w, padding_idx=padding),
    "attention": Attention,
    "transformer": lambda w, h, d, first: nn.TransformerEncoderLayer(
        w, h, 2 * w, d, batch_first=True, norm_first=first
    ),
    "recurrent": Recurrent,
    "mean": Mean,
}

# What can be overwritten: torch itself refuses where the layer before needs its own output again.
_OVERWRITABLE = ("linear", "residual linear", "conv", "residual conv", "batch norm", "batch norm 2d", "group norm")

_widths = st.integers(1, 6)
_rates = st.sampled_from([0.0, 0.2, 0.5])
_activations = st.sampled_from(
    [("ReLU", True), ("ReLU", False), ("GELU", False), ("Tanh", False), ("SiLU", True), ("Softplus", False)]
)
_momenta = st.sampled_from([0.1, 0.5, None])


@st.composite
def networks(draw: st.DrawFn, most: int = 6) -> Network:
    """Networks of up to `most` layers whose shapes fit, and that have something to learn."""
    start = draw(st.sampled_from(["vector", "image", "sequence", "tokens"]))
    shape = tuple(draw(st.integers(2, 6)) for _ in range({"vector": 1, "image": 3, "sequence": 2, "tokens": 1}[start]))
    layers: list[tuple[str, tuple[Any, ...]]] = []
    now = shape
    if start == "tokens":
        width = draw(_widths)
        layers.append(("embedding", (width, draw(st.sampled_from([None, 1])))))
        now = (*shape, width)
    for _ in range(draw(st.integers(1, most))):
        layer, now = draw(_layer(now, layers[-1][0] if layers else ""))
        layers.append(layer)
    if not any(next(LAYERS[name](*numbers).parameters(), None) is not None for name, numbers in layers):
        layers.append(("flatten", ()))
        layers.append(("linear", (math.prod(now), 2, True)))
    return Network(start, shape, tuple(layers))


@st.composite
def _layer(draw: st.DrawFn, now: tuple[int, ...], before: str) -> tuple[tuple[str, tuple[Any, ...]], tuple[int, ...]]:
    """A layer that takes samples of this shape, and the shape that it gives."""
    if draw(st.integers(0, 3)) == 0:
        name = draw(st.sampled_from(["activation", "prelu", "dropout"]))
        kind, inplace = draw(_activations)
        numbers: dict[str, Any] = {
            "activation": (kind, inplace and before in _OVERWRITABLE),
            "prelu": (),
            "dropout": (draw(_rates),),
        }
        return (name, numbers[name]), now
    return draw({1: _vector, 2: _sequence, 3: _image}[len(now)](now))


@st.composite
def _vector(draw: st.DrawFn, now: tuple[int, ...]) -> Any:
    (width,) = now
    # Normed over one number, all is rounding.
    name = draw(st.sampled_from(["linear", "residual linear", "batch norm"] + ["layer norm", "rms norm"] * (width > 1)))
    out = draw(_widths) if name == "linear" else width
    numbers: dict[str, Any] = {
        "linear": (width, out, draw(st.booleans())),
        "batch norm": (width, draw(_momenta)),
    }
    return (name, numbers.get(name, (width,))), (out,)


@st.composite
def _sequence(draw: st.DrawFn, now: tuple[int, ...]) -> Any:
    length, width = now
    names = ["linear", "residual linear", "attention", "recurrent", "mean"]
    names += ["layer norm", "transformer"] * (width > 1)
    name = draw(st.sampled_from(names))
    heads = draw(st.sampled_from([h for h in (1, 2, 3) if width % h == 0]))
    if name == "recurrent":
        hidden, both = draw(st.integers(1, 4)), draw(st.booleans())
        kind = draw(st.sampled_from(["RNN", "LSTM", "GRU"]))
        return (name, (kind, width, hidden, draw(st.integers(1, 2)), both, draw(_rates))), (length, hidden * (1 + both))
    if name == "mean":
        return (name, ()), (width,)
    out = draw(_widths) if name == "linear" else width
    numbers: dict[str, Any] = {
        "linear": (width, out, draw(st.booleans())),
        "attention": (width, heads, draw(_rates), draw(st.booleans())),
        "transformer": (width, heads, draw(_rates), draw(st.booleans())),
    }
    return (name, numbers.get(name, (width,))), (length, out)


@st.composite
def _image(draw: st.DrawFn, now: tuple[int, ...]) -> Any:
    channels, height, width = now
    names = ["conv", "transposed conv", "residual conv", "batch norm 2d", "dropout 2d", "adaptive pool", "flatten"]
    names += ["instance norm", "group norm"] * (height * width > 1)
    names += ["max pool", "average pool"] * (min(height, width) > 1)
    name = draw(st.sampled_from(names))
    if name == "flatten":
        return (name, ()), (channels * height * width,)
    if name == "conv":
        groups = draw(st.sampled_from([g for g in (1, 2, 3) if channels % g == 0]))
        out, kernel, stride = groups * draw(st.integers(1, 3)), draw(st.sampled_from([1, 3])), draw(st.integers(1, 2))
        size = [(n + 2 * (kernel // 2) - kernel) // stride + 1 for n in (height, width)]
        return (name, (channels, out, kernel, stride, groups, draw(st.booleans()))), (out, *size)
    if name == "transposed conv":
        out = draw(st.integers(1, 3))
        # Not again and again larger.
        return (
            ((name, (channels, out)), (out, 2 * height, 2 * width))
            if height < 8
            else (("flatten", ()), (channels * height * width,))
        )
    sizes: dict[str, tuple[int, ...]] = {
        "max pool": (height // 2, width // 2),
        "average pool": (height // 2, width // 2),
        "adaptive pool": (2, 2),
    }
    groups = draw(st.sampled_from([g for g in (1, 2, 3) if channels % g == 0]))
    numbers: dict[str, Any] = {
        "batch norm 2d": (channels, draw(_momenta)),
        "group norm": (groups, channels),
        "dropout 2d": (draw(_rates),),
        "max pool": (),
        "average pool": (),
        "adaptive pool": (2,),
    }
    return (name, numbers.get(name, (channels,))), (channels, *sizes.get(name, (height, width)))
