"""The two sample photographs of scikit-learn (a palace in China and a flower), cut into patches."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from hfta_nb.data.order import SPLIT_SEED
from hfta_nb.data.samples import Data

PATCH, COLOURS = 32, 4


def photographs() -> Data:
    """520 grey patches of two photographs ``[1, 32, 32]``; for each pixel, which of 4 colours it had ``[32, 32]``.

    The colours are the centres of k-means over both photographs, slightly blurred. Patches do not overlap.
    """
    from sklearn.cluster import KMeans
    from sklearn.datasets import load_sample_image

    pictures = [torch.tensor(load_sample_image(n)).movedim(2, 0) / 255 for n in ("china.jpg", "flower.jpg")]
    blurred = [F.avg_pool2d(p, 5, 1, 2, count_include_pad=False) for p in pictures]
    pixels = torch.cat([b.flatten(1).T for b in blurred])
    means = KMeans(COLOURS, n_init=1, random_state=SPLIT_SEED).fit(pixels[::97].double().numpy())
    centres = torch.tensor(means.cluster_centers_, dtype=torch.float32)
    centres = centres[centres.sum(1).argsort()]  # darkest first
    x, y = [], []
    for picture, soft in zip(pictures, blurred, strict=True):
        nearest = torch.cdist(soft.flatten(1).T, centres).argmin(1).view(soft.shape[1:])
        x.append(_patches(picture.mean(0)))
        y.append(_patches(nearest))
    grey, colour = torch.cat(x).unsqueeze(1), torch.cat(y)
    order = torch.randperm(len(grey), generator=torch.Generator().manual_seed(SPLIT_SEED))
    held, kept = order[: len(order) // 5], order[len(order) // 5 :]
    facts = {"in_channels": 1, "image_size": PATCH, "num_classes": COLOURS}
    return Data("photographs", "segmentation", grey[kept], colour[kept], grey[held], colour[held], facts)


def _patches(picture: Tensor) -> Tensor:
    """``[H, W]`` as ``[N, PATCH, PATCH]``; what is left over at the edges is cut off."""
    return picture.unfold(0, PATCH, PATCH).unfold(1, PATCH, PATCH).reshape(-1, PATCH, PATCH)
