"""Vision Transformer."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from hfta_nb.errors import FamilyError
from hfta_nb.models.recipes import from_function
from hfta_nb.search.grid import Depth, Size


class Block(nn.Module):
    """Attention and a two-layer perceptron, each after a layer norm and around a shortcut."""

    def __init__(self, width: int, heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6)
        self.attention = nn.MultiheadAttention(width, heads, dropout, batch_first=True)
        self.dropout = nn.Dropout(dropout)
        first, second = nn.Linear(width, hidden), nn.Linear(hidden, width)
        for layer in (first, second):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.normal_(layer.bias, std=1e-6)
        self.mlp = nn.Sequential(first, nn.GELU(), nn.Dropout(dropout), second, nn.Dropout(dropout))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        x = x + self.dropout(self.attention(y, y, y, need_weights=False)[0])
        return x + self.mlp(self.norm2(x))


class VisionTransformer(nn.Module):
    """Images ``[N, in_channels, H, W]`` to logits ``[N, num_classes]``.

    Source: Dosovitskiy et al. 2021 (arXiv 2010.11929), initialised as torchvision's. The head begins at zero.
    """

    def __init__(
        self, image: int, patch: int, width: int, depth: int, heads: int, dropout: float, channels: int, classes: int
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(channels, width, patch, patch)
        self.summary = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.empty(1, (image // patch) ** 2 + 1, width).normal_(std=0.02))
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(Block(width, heads, 4 * width, dropout) for _ in range(depth)))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, classes)
        nn.init.trunc_normal_(self.patches.weight, std=math.sqrt(1 / (channels * patch**2)))
        for tensor in (self.patches.bias, self.head.weight, self.head.bias):
            if tensor is not None:
                nn.init.zeros_(tensor)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.summary.expand(x.shape[0], -1, -1), patches], 1) + self.positions
        return self.head(self.norm(self.blocks(self.dropout(tokens)))[:, 0])


def build(
    patch_size: Size = 2,
    width: Size = 64,
    depth: Depth = 4,
    heads: Size = 4,
    dropout: float = 0.0,
    image_size: int = 8,
    in_channels: int = 3,
    num_classes: int = 10,
) -> nn.Module:
    """Vision Transformer; ViT-B/16 is patch_size 16, width 768, depth 12, heads 12, image_size 224."""
    if image_size % patch_size:
        raise FamilyError(
            "the image can't be cut into whole patches",
            where="vit(patch_size)",
            got=patch_size,
            accepted=f"a divisor of the image's size, {image_size}",
        )
    return VisionTransformer(image_size, patch_size, width, depth, heads, dropout, in_channels, num_classes)


vit = from_function(build, name="vit", data="digits", inputs="images")
