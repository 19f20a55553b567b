"""DLRM: predicts clicks on advertisements from dense and categorical features."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hfta_nb.models.recipes import from_function
from hfta_nb.search.grid import Layers, Size


def _mlp(sizes: Sequence[int], last: bool) -> nn.Sequential:
    layers: list[nn.Module] = []
    for i, (a, b) in enumerate(itertools.pairwise(sizes)):
        linear = nn.Linear(a, b)
        nn.init.normal_(linear.weight, std=math.sqrt(2 / (a + b)))
        nn.init.normal_(linear.bias, std=math.sqrt(1 / b))
        layers += [linear] if last and i == len(sizes) - 2 else [linear, nn.ReLU()]
    return nn.Sequential(*layers)


class DLRM(nn.Module):
    """Dense features ``[N, dense]`` and a category per table ``[N, tables]`` to the logit of a click ``[N]``.

    Source: Naumov et al. 2019 (arXiv 1906.00091), with its initialisation. All tables have the same number of rows.
    """

    def __init__(
        self, dense: int, tables: int, rows: int, width: int, bottom: Sequence[int], top: Sequence[int]
    ) -> None:
        super().__init__()
        self.bottom = _mlp([dense, *bottom, width], last=False)
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables))
        for table in self.tables.children():
            nn.init.uniform_(table.weight, -math.sqrt(1 / rows), math.sqrt(1 / rows))  # type: ignore[arg-type]
        pairs = torch.tril_indices(tables + 1, tables + 1, -1)
        self.register_buffer("pairs", pairs, persistent=False)
        self.top = _mlp([width + pairs.shape[1], *top, 1], last=True)

    pairs: Tensor

    def forward(self, dense: Tensor, categories: Tensor) -> Tensor:
        first = self.bottom(dense)
        looked_up = [table(categories[:, i : i + 1]) for i, table in enumerate(self.tables)]
        features = torch.stack([first, *looked_up], 1)
        products = features @ features.transpose(1, 2)
        interaction = products[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([first, interaction], 1)).squeeze(1)


def build(
    width: Size = 16,
    bottom_width: Size = 64,
    bottom_depth: Layers = 1,
    top_width: Size = 64,
    top_depth: Layers = 1,
    dense_features: int = 13,
    categorical_features: int = 26,
    categories: int = 1000,
) -> nn.Module:
    """DLRM: clicks from dense and categorical features.

    Args:
        width: width of an embedding.
        bottom_width, bottom_depth: size of the perceptron on the dense features; its last layer has width `width`.
        top_width, top_depth: size of the perceptron on the products, without its last layer.
    """
    bottom, top = [bottom_width] * bottom_depth, [top_width] * top_depth
    return DLRM(dense_features, categorical_features, categories, width, bottom, top)


dlrm = from_function(build, name="dlrm", data="clicks", inputs="dense features and categories")
