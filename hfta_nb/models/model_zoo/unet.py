"""U-Net: segmentation of images."""

from __future__ import annotations

from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hfta_nb.models.recipes import from_function
from hfta_nb.search.grid import Bounds, Size


def _twice(channels: int, out: int, norm: bool) -> nn.Sequential:
    """Two 3x3 convolutions that keep the size."""
    layers: list[nn.Module] = []
    for size in (channels, out):
        layers.append(nn.Conv2d(size, out, 3, padding=1, bias=not norm))
        if norm:
            layers.append(nn.BatchNorm2d(out))
        layers.append(nn.ReLU())
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """Images ``[N, in_channels, H, W]`` to logits ``[N, num_classes, H, W]``.

    Source: Ronneberger et al. 2015 (arXiv 1505.04597). As usual today, convolutions are padded, so that the output has
    the input's size; `norm` adds batch norm, which the paper did without. A side that does not halve evenly is padded.

    With `masked`, the last channel of an image is the mask of the area that is annotated, 1 where it is and 0
    elsewhere; the logits are multiplied by it (MaskIt, Kariryaa 2020, arXiv 2006.12004).
    """

    def __init__(
        self, in_channels: int, num_classes: int, width: int, depth: int, norm: bool, masked: bool = False
    ) -> None:
        super().__init__()
        self.masked = masked
        widths = [width * 2**i for i in range(depth + 1)]
        self.down = nn.ModuleList(_twice(a, b, norm) for a, b in zip([in_channels, *widths[:-1]], widths, strict=True))
        falling = list(zip(widths[:0:-1], widths[-2::-1], strict=True))
        self.raise_ = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, 2) for a, b in falling)
        self.up = nn.ModuleList(_twice(a, b, norm) for a, b in falling)
        self.head = nn.Conv2d(width, num_classes, 1)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        mask, levels = x[:, -1:], []
        for i, block in enumerate(self.down):
            x = block(F.max_pool2d(x, 2, ceil_mode=True) if i else x)
            levels.append(x)
        levels.pop()
        for rise, block in zip(self.raise_, self.up, strict=True):
            beside = levels.pop()
            higher = rise(x)[..., : beside.shape[-2], : beside.shape[-1]]
            x = block(torch.cat([beside, higher], 1))
        logits = self.head(x)
        return logits * mask if self.masked else logits


def build(
    width: Size = 16,
    depth: Annotated[int, Bounds(1, 8)] = 2,
    norm: bool = True,
    masked: bool = False,
    in_channels: int = 3,
    num_classes: int = 2,
) -> nn.Module:
    """U-Net: segmentation of images; the paper's is width 64, depth 4, norm False. Masked: an image's last channel is
    the mask of its annotated area, by which the output is multiplied."""
    return UNet(in_channels, num_classes, width, depth, norm, masked)


unet = from_function(build, name="unet", data="photographs", inputs="images")
