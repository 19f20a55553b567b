"""The Fréchet distance between two sets of images, over features that need no download.

Published values (the Fréchet Inception distance of Heusel et al. 2017) use features of an Inception network trained on
ImageNet. Here the features are those of a small convolutional network with fixed random weights. Naeem et al. 2020
(arXiv 2002.09797) found embeddings by random networks to be sound for measuring generated images, and better suited
than ImageNet's where images are unlike ImageNet. The values compare with one another, on the same validation images and
the same number of them (the estimate is biased by it), and **not with published ones**.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

WIDTHS = (32, 64, 16)
"""Channels of the three convolutions."""

GRID = 2
"""The last activations are averaged over so many fields each way, so that features know where something is."""

FEATURES = WIDTHS[-1] * GRID * GRID

SEED = 20200225
"""Of the weights: drawn by NumPy's frozen Mersenne Twister, the same numbers everywhere."""


@functools.cache
def _kernels(channels: int) -> tuple[np.ndarray[Any, Any], ...]:
    """Convolution kernels ``[out, in, 3, 3]``, normal with deviation sqrt(2 / fan in) (He et al. 2015)."""
    random = np.random.RandomState(SEED)
    sizes = zip((channels, *WIDTHS), WIDTHS, strict=False)
    return tuple(random.standard_normal((b, a, 3, 3)) * math.sqrt(2 / (9 * a)) for a, b in sizes)


def features(images: Float[Tensor, "N channels height width"]) -> Float[Tensor, "N features"]:
    """Features of images in [-1, 1], in float64.

    Three 3x3 convolutions of stride 2, each followed by a leaky ReLU (slope 0.2), with 32, 64 and 16 channels and fixed
    random weights; then the mean over each quarter of the picture: 64 numbers.
    """
    x = images.double()
    for kernel in _kernels(images.shape[-3]):
        x = F.leaky_relu(F.conv2d(x, torch.from_numpy(kernel).to(x.device), stride=2, padding=1), 0.2)
    return F.adaptive_avg_pool2d(x, GRID).flatten(1)


def sums(found: Float[Tensor, "N features"]) -> Float[Tensor, " rows"]:
    """How many, their sum, and the sum of their outer products, which add up over batches."""
    count = found.new_ones(1) * found.shape[0]
    return torch.cat([count, found.sum(0), (found.T @ found).flatten()])


def moments(total: Float[Tensor, " rows"], size: int) -> tuple[Float[Tensor, " size"], Float[Tensor, "size size"]]:
    """Mean and covariance (over N - 1) from what `sums` added up to."""
    count, first, second = total[0], total[1 : size + 1], total[size + 1 :]
    mean = first / count
    spread = second.view(size, size) - count * torch.outer(mean, mean)
    return mean, spread / (count - 1).clamp(min=1)


def distance(
    mean_a: Float[Tensor, " size"],
    covariance_a: Float[Tensor, "size size"],
    mean_b: Float[Tensor, " size"],
    covariance_b: Float[Tensor, "size size"],
) -> Float[Tensor, ""]:
    """``|m_a - m_b|^2 + tr(C_a + C_b - 2 (C_a C_b)^(1/2))``, by symmetric eigendecompositions.

    The trace of the root of ``C_a C_b`` is that of the symmetric ``C_a^(1/2) C_b C_a^(1/2)``.

    Source: Dowson and Landau 1982; Heusel et al. 2017 (arXiv 1706.08500), equation 6.
    """
    values, vectors = torch.linalg.eigh(covariance_a)
    root = (vectors * values.clamp(min=0).sqrt()) @ vectors.T
    inner = root @ covariance_b @ root
    cross = torch.linalg.eigvalsh((inner + inner.T) / 2).clamp(min=0).sqrt().sum()
    apart = (mean_a - mean_b).square().sum()
    found: Tensor = apart + covariance_a.trace() + covariance_b.trace() - 2 * cross
    return found.clamp(min=0)  # equal sets are rounding apart, which may have either sign


def generated_and_real(output: Any, target: Any) -> Float[Tensor, "2 rows"]:
    """The sums over features of generated and of real images.

    Args:
        output: ``(generated, real)``, images ``[N, channels, height, width]`` each.
        target: not used.
    """
    generated, real = output
    return torch.stack([sums(features(generated)), sums(features(real))])


def between(total: Float[Tensor, "2 rows"]) -> Float[Tensor, ""]:
    """The distance, from the sums over all samples; NaN where a value is not finite."""
    if not bool(torch.isfinite(total).all()):
        return total.new_full((), math.nan)
    (mean_a, a), (mean_b, b) = (moments(row, FEATURES) for row in total)
    return distance(mean_a, a, mean_b, b)
