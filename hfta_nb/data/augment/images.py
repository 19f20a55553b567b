"""Augmentation of images ``[N, channels, H, W]``, with separate random numbers for every sample.

Each function takes the images, a strength and the batch's `Draws`. Different strengths use the same random numbers.
Nothing waits for the device.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hfta_nb.data.augment.random_numbers import Draws

GREY = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in brightness (ITU-R BT.601)."""

ERASED_SHARE, ERASED_ASPECT = (0.02, 0.33), (0.3, 3.3)
"""Share of the image that a box takes, and its height over its width (Zhong et al. 2020)."""


def random_crop(images: Tensor, masks: Tensor | None, pixels: int, draws: Draws) -> tuple[Tensor, Tensor | None]:
    """Shift images by up to this many pixels each way: pad, then crop to the old size.

    The padding is 0 (He et al. 2016, section 4.2). With masks ``[N, H, W]`` both are padded by reflection instead, so
    that every pixel has a true class.
    """
    height, width = images.shape[2:]
    move = (draws.uniform("crop", 2) * (2 * pixels + 1)).long() - pixels
    down, right = draws.send(move).unsqueeze(2)
    rows = torch.arange(height, device=images.device) + down
    columns = torch.arange(width, device=images.device) + right
    outside = _outside(rows, height).unsqueeze(2) | _outside(columns, width).unsqueeze(1)
    places = (_mirrored(rows, height).unsqueeze(2) * width + _mirrored(columns, width).unsqueeze(1)).flatten(1)
    moved = images.flatten(2).gather(2, places.unsqueeze(1).expand(-1, images.shape[1], -1)).view_as(images)
    if masks is None:
        return moved.masked_fill(outside.unsqueeze(1), 0.0), None
    return moved, masks.flatten(1).gather(1, places).view_as(masks)


def horizontal_flip(
    images: Tensor, masks: Tensor | None, probability: float, draws: Draws
) -> tuple[Tensor, Tensor | None]:
    """Images, and their masks ``[N, H, W]``, mirrored left to right with this probability."""
    flipped = draws.send(draws.uniform("flip", 1)[0] < probability).view(-1, 1, 1)
    seen = torch.where(flipped.unsqueeze(1), images.flip(3), images)
    return seen, masks if masks is None else torch.where(flipped, masks.flip(2), masks)


def color_jitter(images: Tensor, strength: float, low: Tensor, high: Tensor, draws: Draws) -> Tensor:
    """Multiply brightness, contrast and (with three channels) saturation by factors from ``1 - strength`` to
    ``1 + strength``, in this order; hue stays.

    Args:
        images: values from `low` (black) to `high`; the result has the same range.
        strength: from 0 to 1.
        low, high: tensors ``[]``.
        draws: the batch's random numbers.
    """
    factors = draws.send(1 + strength * (2 * draws.uniform("color", 3) - 1), images.dtype)
    brightness, contrast, saturation = factors.view(3, -1, 1, 1, 1)
    seen = (low + (images - low) * brightness).clamp(low, high)
    seen = torch.lerp(_grey(seen).mean((2, 3), keepdim=True).expand_as(seen), seen, contrast).clamp(low, high)
    if images.shape[1] == 3:
        seen = torch.lerp(_grey(seen).expand_as(seen), seen, saturation).clamp(low, high)
    return seen


def random_erasing(images: Tensor, probability: float, fill: Tensor, draws: Draws) -> Tensor:
    """A box of the image, with this probability, filled with `fill` ``[channels]`` (Zhong et al. 2020).

    Deviation: a box that exceeds the image is cropped rather than drawn again.
    """
    height, width = images.shape[2:]
    chosen, share, aspect, down, right = draws.uniform("erase", 5)
    low, high = ERASED_SHARE
    area = (low + (high - low) * share) * height * width
    low, high = (math.log(v) for v in ERASED_ASPECT)
    ratio = torch.exp(low + (high - low) * aspect)
    tall = (area * ratio).sqrt().round().clamp(1, height)
    wide = (area / ratio).sqrt().round().clamp(1, width)
    top, left = (down * (height - tall + 1)).floor(), (right * (width - wide + 1)).floor()
    tall = tall * (chosen < probability)  # a box of height 0 is no box
    box = _box(images, torch.stack([top, left, top + tall, left + wide]), draws)
    return torch.where(box, fill.to(images).view(-1, 1, 1), images)


def mix(images: Tensor, targets: Tensor, mixup: float, cutmix: float, draws: Draws) -> tuple[Tensor, Tensor]:
    """Mix each image with another one of the batch, and its target in the same proportion.

    Args:
        images: ``[N, channels, H, W]``.
        targets: class probabilities ``[N, classes]``.
        mixup: alpha of Beta(alpha, alpha), the distribution of the image's own weight (Zhang et al. 2018); 0 for none.
        cutmix: alpha of Beta(alpha, alpha), the distribution of the share of the image that stays (Yun et al. 2019); 0
            for none.
            If both are given, each sample gets one of the two, equally often.
        draws: the batch's random numbers.

    Deviation: the share is drawn for each sample, where the papers' code draws one for the whole batch.
    """
    quantile, which, down, right = draws.uniform("mix", 4)
    partners = draws.partners()
    share = beta(mixup, quantile) if mixup else torch.ones_like(quantile)
    cut = beta(cutmix, quantile) if cutmix else torch.ones_like(quantile)
    if mixup and cutmix:
        share, cut = torch.where(which < 0.5, share, 1.0), torch.where(which < 0.5, 1.0, cut)
    keep = draws.send(share, images.dtype).view(-1, 1, 1, 1)
    mixed = images[partners].lerp(images, keep) if mixup else images
    if cutmix:
        ends, kept = _cut(images, cut, down, right)
        box = _box(images, ends, draws)
        mixed = torch.where(box, images[partners], mixed)
        share = share * kept
    part = draws.send(share, targets.dtype).unsqueeze(1)
    return mixed, part * targets + (1 - part) * targets[partners]


def beta(alpha: float, quantile: Tensor) -> Tensor:
    """The quantiles of Beta(alpha, alpha), float64 on the CPU; through them one draw serves every alpha."""
    from scipy.special import betaincinv

    return torch.from_numpy(betaincinv(alpha, alpha, quantile.numpy())).clamp(0, 1)


def _cut(images: Tensor, stays: Tensor, down: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """The corners of the pasted box ``[4, N]``, and the share of each image that stays ``[N]``."""
    height, width = images.shape[2:]
    side = (1 - stays).sqrt()
    tall, wide = (side * height).floor(), (side * width).floor()
    middle, centre = (down * height).floor(), (right * width).floor()
    top, bottom = ((middle + s * tall / 2).floor().clamp(0, height) for s in (-1, 1))
    left, end = ((centre + s * wide / 2).floor().clamp(0, width) for s in (-1, 1))
    return torch.stack([top, left, bottom, end]), 1 - (bottom - top) * (end - left) / (height * width)


def _box(images: Tensor, ends: Tensor, draws: Draws) -> Tensor:
    """Which pixels are in each image's box ``[N, 1, H, W]``, of its top, left, bottom and right end ``[4, N]``."""
    height, width = images.shape[2:]
    ends = draws.send(ends.long()).unsqueeze(2)
    rows, columns = (torch.arange(n, device=images.device) for n in (height, width))
    tall = (rows >= ends[0]) & (rows < ends[2])
    wide = (columns >= ends[1]) & (columns < ends[3])
    return (tall.unsqueeze(2) & wide.unsqueeze(1)).unsqueeze(1)


def _grey(images: Tensor) -> Tensor:
    """Brightness ``[N, 1, H, W]``."""
    if images.shape[1] != 3:
        return images.mean(1, keepdim=True)
    parts = [weight * channel for weight, channel in zip(GREY, torch.split(images, 1, 1), strict=True)]
    return parts[0] + parts[1] + parts[2]


def _outside(places: Tensor, size: int) -> Tensor:
    return (places < 0) | (places >= size)


def _mirrored(places: Tensor, size: int) -> Tensor:
    """Places beyond an end counted back from it, the end itself once."""
    return (size - 1) - ((size - 1) - places.abs()).abs()
