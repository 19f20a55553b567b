"""Synthetic clicks for DLRM."""

from __future__ import annotations

import torch
from torch import Tensor

from hfta_nb.data.order import SPLIT_SEED
from hfta_nb.data.samples import Data

DENSE, TABLES, CATEGORIES = 13, 26, 100
TRAINING, VALIDATION = 16_000, 4_000
FACTORS = 4


def clicks() -> Data:
    """20,000 SYNTHETIC impressions in the form of Criteo's (13 numbers, 26 categories).

    Categories are drawn by Zipf's law from 100 per table. Every category has its own effect and hidden factors;
    the logit of a click is linear in the numbers, the effects and the products of the factors of the first six tables,
    which is what DLRM's dot interaction can learn. Some 28% of the impressions are clicked.
    """
    generator = torch.Generator().manual_seed(SPLIT_SEED)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    samples = TRAINING + VALIDATION
    dense = normal(samples, DENSE)
    shares = 1 / torch.arange(1, CATEGORIES + 1)
    categories = torch.stack(
        [torch.multinomial(shares, samples, replacement=True, generator=generator) for _ in range(TABLES)], 1
    )
    effects = normal(TABLES, CATEGORIES)
    factors = normal(6, CATEGORIES, FACTORS)
    logit = 0.3 * dense @ normal(DENSE)
    for table in range(TABLES):
        logit += 0.3 * effects[table, categories[:, table]]
    hidden = torch.stack([factors[table, categories[:, table]] for table in range(6)], 1)
    products = hidden @ hidden.transpose(1, 2)
    logit += 0.2 * products.flatten(1).sum(1) - 0.2 * products.diagonal(dim1=1, dim2=2).sum(1)
    logit = logit - logit.quantile(0.75)
    y = (torch.rand(samples, generator=generator) < logit.sigmoid()).long()
    facts = {"dense_features": DENSE, "categorical_features": TABLES, "categories": CATEGORIES}
    kept, held = slice(0, TRAINING), slice(TRAINING, samples)
    x, xv = (dense[kept], categories[kept]), (dense[held], categories[held])
    return Data("clicks", "click", x, y[kept], xv, y[held], facts)
