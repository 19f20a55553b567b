"""DCGAN with its noise as an input, so that every mode of training uses the same noise."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


class GivenNoise(nn.Module):
    """The networks of the family `dcgan`, with the names that its phases train.

    Args:
        networks: the family's module.
    """

    def __init__(self, networks: nn.Module) -> None:
        super().__init__()
        self.generator, self.discriminator = networks.generator, networks.discriminator

    def forward(self, images: Tensor, noise: Tensor, again: Tensor, phase: str) -> Any:
        """Logits of real and generated images in the phase "discriminator", otherwise of images generated from new
        noise."""
        if phase == "discriminator":
            return self._logits(images), self._logits(self.generator(noise).detach())
        return self._logits(self.generator(again))

    def _logits(self, images: Tensor) -> Tensor:
        found: Tensor = self.discriminator(images).flatten()
        return found
