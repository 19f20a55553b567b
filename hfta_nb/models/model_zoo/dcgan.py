"""DCGAN: a generator and a discriminator of images, trained against each other."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hfta_nb.errors import FamilyError
from hfta_nb.models.phases import Phase
from hfta_nb.models.recipes import from_function
from hfta_nb.search.grid import Size

SLOPE = 0.2
"""Slope of the discriminator's leaky ReLUs."""


def _generator(latent: int, width: int, channels: int, size: int) -> nn.Sequential:
    """``[N, latent, 1, 1]`` to images ``[N, channels, size, size]`` in [-1, 1]; every layer but the first doubles."""
    widths = [width * 2**i for i in reversed(range(int(math.log2(size)) - 2))]
    layers: list[nn.Module] = []
    for i, (a, b) in enumerate(zip([latent, *widths[:-1]], widths, strict=True)):
        stride, padding = (2, 1) if i else (1, 0)
        layers += [nn.ConvTranspose2d(a, b, 4, stride, padding, bias=False), nn.BatchNorm2d(b), nn.ReLU()]
    return nn.Sequential(*layers, nn.ConvTranspose2d(width, channels, 4, 2, 1, bias=False), nn.Tanh())


def _discriminator(width: int, channels: int, size: int) -> nn.Sequential:
    """Images ``[N, channels, size, size]`` to logits ``[N, 1, 1, 1]``: positive for real. Every layer halves."""
    widths = [width * 2**i for i in range(int(math.log2(size)) - 2)]
    layers: list[nn.Module] = [nn.Conv2d(channels, width, 4, 2, 1, bias=False), nn.LeakyReLU(SLOPE)]
    for a, b in itertools.pairwise(widths):
        layers += [nn.Conv2d(a, b, 4, 2, 1, bias=False), nn.BatchNorm2d(b), nn.LeakyReLU(SLOPE)]
    return nn.Sequential(*layers, nn.Conv2d(widths[-1], 1, 4, bias=False))


class DCGAN(nn.Module):
    """Both networks in one module. Every call draws standard normal noise, one sample per image.

    With ``phase="discriminator"`` it returns logits of the real and of generated images, with ``phase="generator"``
    logits of generated images, and without a phase ``(generated, real)`` images.

    Source: Radford et al. 2016 (arXiv 1511.06434): the generator of strided transposed convolutions, batch norm and
    ReLU, with tanh at the end; the discriminator of strided convolutions, batch norm but in the first layer, and leaky
    ReLU; all weights from N(0, 0.02), those of batch norm from N(1, 0.02). As in PyTorch's own tutorial the first and
    last layers are 4x4 convolutions in place of the paper's projection and no layer has a bias. The loss of the
    generator is the one that does not saturate (Goodfellow et al. 2014), and either phase draws noise anew (there,
    algorithm 1).
    """

    def __init__(self, latent: int, generator_width: int, discriminator_width: int, channels: int, size: int) -> None:
        super().__init__()
        self.latent = latent
        self.generator = _generator(latent, generator_width, channels, size)
        self.discriminator = _discriminator(discriminator_width, channels, size)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.ConvTranspose2d):
                nn.init.normal_(module.weight, 0.0, 0.02)
            elif isinstance(module, nn.BatchNorm2d):
                nn.init.normal_(module.weight, 1.0, 0.02)

    def generate(self, count: int) -> Tensor:
        """Images ``[count, channels, height, width]`` in [-1, 1]."""
        like = next(self.generator.parameters())
        images: Tensor = self.generator(torch.randn(count, self.latent, 1, 1, dtype=like.dtype, device=like.device))
        return images

    def forward(self, x: Tensor, phase: str = "") -> Any:
        if phase == "discriminator":
            return self._logits(x), self._logits(self.generate(len(x)).detach())
        if phase == "generator":
            return self._logits(self.generate(len(x)))
        return self.generate(len(x)), x

    def _logits(self, images: Tensor) -> Tensor:
        return self.discriminator(images).flatten()


def _tell_apart(output: tuple[Tensor, Tensor], target: Any) -> Tensor:
    """Loss of the discriminator: classify real images as real and generated ones as generated."""
    real, generated = output
    right = F.binary_cross_entropy_with_logits(real, torch.ones_like(real))
    return right + F.binary_cross_entropy_with_logits(generated, torch.zeros_like(generated))


def _deceive(output: Tensor, target: Any) -> Tensor:
    """Loss of the generator: the discriminator should classify generated images as real."""
    return F.binary_cross_entropy_with_logits(output, torch.ones_like(output))


def build(
    latent: Size = 100,
    generator_width: Size = 64,
    discriminator_width: Size = 64,
    in_channels: int = 3,
    image_size: int = 64,
) -> nn.Module:
    """DCGAN: a generator and a discriminator of images of a side of 16, 32, 64, ..., trained in turn."""
    if image_size < 16 or image_size & (image_size - 1):
        raise FamilyError("not a power of two from 16", where="dcgan, image_size", got=image_size,
                          accepted="16, 32, 64, 128, ...")  # fmt: skip
    return DCGAN(latent, generator_width, discriminator_width, in_channels, image_size)


dcgan = from_function(
    build,
    name="dcgan",
    data=("photograph_patches", "digit_images"),
    phases=[Phase("discriminator", ["discriminator"], _tell_apart), Phase("generator", ["generator"], _deceive)],
    defaults={"lr": 2e-4, "beta1": 0.5},
    monitor="val_distance",
    inputs="images",
)
