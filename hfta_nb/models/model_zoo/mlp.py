"""Multilayer perceptron."""

from __future__ import annotations

from typing import Literal

from torch import nn

from hfta_nb.models.recipes import from_function
from hfta_nb.search.grid import Layers, Size

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "gelu": nn.GELU, "tanh": nn.Tanh}


def build(
    width: Size = 64,
    depth: Layers = 2,
    activation: Literal["relu", "gelu", "tanh"] = "relu",
    dropout: float = 0.0,
    in_features: int = 64,
    out_features: int = 10,
) -> nn.Module:
    """Multilayer perceptron on flattened inputs."""
    layers: list[nn.Module] = [nn.Flatten()]
    size = in_features
    for _ in range(depth):
        layers += [nn.Linear(size, width), ACTIVATIONS[activation]()]
        if dropout:
            layers.append(nn.Dropout(dropout))
        size = width
    return nn.Sequential(*layers, nn.Linear(size, out_features))


mlp = from_function(build, name="mlp", data=("digits", "breast_cancer", "wine", "iris", "diabetes"))
