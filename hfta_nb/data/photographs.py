"""The two sample photographs of scikit-learn (a palace in China and a flower), cut into patches."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from hfta_nb.data.order import SPLIT_SEED
from hfta_nb.data.samples import Data

PATCH, COLOURS = 32, 4

TILE, STRIDE, HELD_TILES = 64, 6, 12
"""For generation: size of the tiles into which pictures are cut, tiles held out of each, and distance of patches."""


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


def photograph_patches() -> Data:
    """4,320 colour patches of two photographs ``[3, 32, 32]`` in [-1, 1], for generation.

    Each picture is cut into 60 tiles of 64x64 pixels, of which training never sees 12; patches begin 6 pixels apart.
    """
    from sklearn.datasets import load_sample_image

    generator = torch.Generator().manual_seed(SPLIT_SEED)
    kept: list[Tensor] = []
    held: list[Tensor] = []
    for name in ("china.jpg", "flower.jpg"):
        picture = torch.tensor(load_sample_image(name)).movedim(2, 0) / 127.5 - 1
        tiles = picture.unfold(1, TILE, TILE).unfold(2, TILE, TILE).flatten(1, 2).movedim(1, 0)
        order = torch.randperm(len(tiles), generator=generator)
        for part, chosen in ((held, order[:HELD_TILES]), (kept, order[HELD_TILES:])):
            cut = tiles[chosen].unfold(2, PATCH, STRIDE).unfold(3, PATCH, STRIDE)
            part.append(cut.permute(0, 2, 3, 1, 4, 5).reshape(-1, 3, PATCH, PATCH))
    return pictures_of("photograph_patches", torch.cat(kept), torch.cat(held))


def pictures_of(name: str, x: Tensor, held: Tensor) -> Data:
    """Images in [-1, 1] to learn to generate; there are no targets."""
    facts = {"in_channels": x.shape[1], "image_size": x.shape[-1]}
    none = torch.zeros(len(x), dtype=torch.long), torch.zeros(len(held), dtype=torch.long)
    return Data(name, "generation", x, none[0], held, none[1], facts)


def _patches(picture: Tensor) -> Tensor:
    """``[H, W]`` as ``[N, PATCH, PATCH]``; what is left over at the edges is cut off."""
    return picture.unfold(0, PATCH, PATCH).unfold(1, PATCH, PATCH).reshape(-1, PATCH, PATCH)
