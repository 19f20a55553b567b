"""Small convolutional network."""

from __future__ import annotations

from typing import Literal

from torch import nn

from hfta_nb.models.model_zoo.mlp import ACTIVATIONS
from hfta_nb.models.recipes import from_function
from hfta_nb.search.grid import Layers, Size


def build(
    width: Size = 16,
    depth: Layers = 2,
    activation: Literal["relu", "gelu", "tanh"] = "relu",
    dropout: float = 0.0,
    in_channels: int = 1,
    num_classes: int = 10,
) -> nn.Module:
    """Convolutions with batch norm, doubling their channels, then global average and a linear layer."""
    layers: list[nn.Module] = []
    channels, out = in_channels, width
    for i in range(depth):
        out = width * 2 ** min(i, 3)
        layers += [nn.Conv2d(channels, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), ACTIVATIONS[activation]()]
        if i < 2:
            layers.append(nn.MaxPool2d(2, ceil_mode=True))
        channels = out
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    if dropout:
        layers.append(nn.Dropout(dropout))
    return nn.Sequential(*layers, nn.Linear(channels, num_classes))


cnn = from_function(build, name="cnn", data="digits", inputs="images")
