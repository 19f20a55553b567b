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


class Interaction(nn.Module):
    """DLRM without its tables: dense features ``[N, dense]`` and embeddings ``[N, tables, width]`` to the logit of a
    click ``[N]``."""

    def __init__(self, dense: int, tables: int, width: int, bottom: Sequence[int], top: Sequence[int]) -> None:
        super().__init__()
        self.bottom = _mlp([dense, *bottom, width], last=False)
        pairs = torch.tril_indices(tables + 1, tables + 1, -1)
        self.register_buffer("pairs", pairs[0] * (tables + 1) + pairs[1], persistent=False)
        self.top = _mlp([width + pairs.shape[1], *top, 1], last=True)

    pairs: Tensor

    def forward(self, dense: Tensor, looked_up: Tensor) -> Tensor:
        first = self.bottom(dense)
        features = torch.cat([first.unsqueeze(1), looked_up], 1)
        products = (features @ features.transpose(1, 2)).flatten(1)
        return self.top(torch.cat([first, products.index_select(1, self.pairs)], 1)).squeeze(1)


class DLRM(Interaction):
    """Dense features ``[N, dense]`` and categories to the logit of a click ``[N]``.

    Categories are ``[N, tables]``, one per table, or ``[N, tables, L]``, up to L per table, whose embeddings are added
    up; a negative one is none.

    All tables lie in one `EmbeddingBag`, one after another: one lookup in place of one per table.

    Args:
        rows: of each table.
        sparse: the tables' gradients are sparse tensors, for `RowwiseAdagrad` and `SparseAdam`.

    Source: Naumov et al. 2019 (arXiv 1906.00091), with its initialisation; Mudigere et al., ISCA 2022.
    """

    def __init__(
        self, dense: int, rows: Sequence[int], width: int, bottom: Sequence[int], top: Sequence[int], sparse: bool
    ) -> None:
        super().__init__(dense, len(rows), width, bottom, top)
        self.tables = nn.EmbeddingBag(sum(rows), width, mode="sum", sparse=sparse)
        for table in torch.split(self.tables.weight.data, list(rows)):
            nn.init.uniform_(table, -math.sqrt(1 / len(table)), math.sqrt(1 / len(table)))
        self.register_buffer("rows", torch.tensor(list(rows)), persistent=False)

    rows: Tensor

    def forward(self, dense: Tensor, categories: Tensor) -> Tensor:
        several = categories.ndim == 3
        every, given = categories if several else categories.unsqueeze(2), None
        rows = self.rows.unsqueeze(1)
        if several:
            given = (every >= 0).flatten(0, 1).to(dense.dtype)
            every = every.clamp(min=0)
        # Beyond its table lies another one: beyond them all, the lookup is an error.
        at = torch.where((every >= 0) & (every < rows), every + rows.cumsum(0) - rows, rows.sum()).flatten(0, 1)
        looked_up = self.tables(at, per_sample_weights=given)
        return super().forward(dense, looked_up.unflatten(0, categories.shape[:2]))


def build(
    width: Size = 16,
    bottom_width: Size = 64,
    bottom_depth: Layers = 1,
    top_width: Size = 64,
    top_depth: Layers = 1,
    dense_features: int = 13,
    categorical_features: int = 26,
    categories: int = 1000,
    sparse: bool = False,
) -> nn.Module:
    """DLRM: clicks from dense and categorical features.

    Args:
        width: width of an embedding.
        bottom_width, bottom_depth: size of the perceptron on the dense features; its last layer has width `width`.
        top_width, top_depth: size of the perceptron on the products, without its last layer.
        sparse: the tables' gradients are sparse tensors, for the optimizer "rowwise_adagrad".
    """
    bottom, top = [bottom_width] * bottom_depth, [top_width] * top_depth
    return DLRM(dense_features, [categories] * categorical_features, width, bottom, top, sparse)


dlrm = from_function(build, name="dlrm", data="clicks", inputs="dense features and categories")
