"""The random numbers of augmentation, which depend only on the data seed, the epoch and the batch."""

from __future__ import annotations

import zlib

import torch
from torch import Tensor


class Draws:
    """The random numbers of one mini-batch, by name; the same for every caller, in any order.

    No member's generator and no default generator is used. Numbers per sample are drawn on the CPU in float64, so that
    they are the same on every device and in every precision. Noise per point is drawn on the device, so that nothing
    large is copied.

    Args:
        seed: seed of the order of the data.
        epoch, number: epoch and number of the mini-batch.
        size: N, its samples.
        device: device of the samples.
    """

    def __init__(self, seed: int, epoch: int, number: int, size: int, device: torch.device) -> None:
        self.source, self.size, self.device = f"{seed}/{epoch}/{number}", size, device
        self._made: dict[str, Tensor] = {}

    def uniform(self, name: str, count: int) -> Tensor:
        """Numbers from 0 to 1, float64 on the CPU, ``[count, N]``."""
        if name not in self._made:
            self._made[name] = torch.rand(count, self.size, generator=self._generator(name), dtype=torch.float64)
        return self._made[name]

    def directions(self, name: str) -> Tensor:
        """Unit vectors, even over the sphere, float64 on the CPU, ``[N, 3]``."""
        if name not in self._made:
            drawn = torch.randn(self.size, 3, generator=self._generator(name), dtype=torch.float64)
            self._made[name] = drawn / drawn.norm(dim=1, keepdim=True)
        return self._made[name]

    def partners(self) -> Tensor:
        """For each sample another of the batch (or itself), on the device ``[N]``: a permutation."""
        if "partners" not in self._made:
            order = torch.randperm(self.size, generator=self._generator("partners"))
            self._made["partners"] = self.send(order)
        return self._made["partners"]

    def noise(self, name: str, like: Tensor) -> Tensor:
        """Numbers from N(0, 1) of the shape, dtype and device of a tensor."""
        if name not in self._made:
            generator = torch.Generator(like.device).manual_seed(self._seed(name))
            self._made[name] = torch.randn(like.shape, generator=generator, dtype=like.dtype, device=like.device)
        return self._made[name]

    def send(self, tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Copy numbers from the CPU to the device without waiting."""
        made = tensor if dtype is None else tensor.to(dtype)
        if self.device.type == "cuda":
            made = made.pin_memory()  # from unpinned memory the host would wait for everything that was launched
        return made.to(self.device, non_blocking=True)

    def _seed(self, name: str) -> int:
        return zlib.crc32(f"augment/{self.source}/{name}".encode())

    def _generator(self, name: str) -> torch.Generator:
        return torch.Generator().manual_seed(self._seed(name))
