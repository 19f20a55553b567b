"""Augmentation of one sample at a time, for the loop that `Study.check` compares with.

Of `hfta_nb.data.augment` it uses the random numbers alone, so that a fault in what is made of them makes a difference.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hfta_nb.data import AnyData, Data
from hfta_nb.data.augment import Setting
from hfta_nb.data.augment.images import ERASED_ASPECT, ERASED_SHARE, GREY
from hfta_nb.data.augment.random_numbers import Draws
from hfta_nb.data.augment.statistics import Statistics

Batch = tuple[Any, Any]
DIRECTIONS = {"z": (0.0, 0.0, 1.0), "y": (0.0, 1.0, 0.0)}


class BySample:
    """The augmentation of a member.

    Args:
        data: whose statistics count.
        row: the member's values of the axes.
        seed: of the order of its data.
        device: of its samples.
    """

    def __init__(self, data: AnyData, row: Mapping[str, Any], seed: int, device: torch.device) -> None:
        self.data, self.seed, self.setting = data, seed, Setting.of(row)
        self.on = self.setting != Setting()
        self._statistics = Statistics(data, device)

    def augmented(self, x: Tensor, y: Tensor, epoch: int, number: int) -> Batch:
        """A training batch.

        Args:
            x: inputs ``[N, ...]``; images between 0 and 1.
            y: targets.
            epoch, number: of the batch.
        """
        s, draws = self.setting, Draws(self.seed, epoch, number, len(x), x.device)
        if x.ndim == 3:
            return self._clouds(x, draws), y
        masks = self.data.task == "segmentation"
        pairs = [self._image(x[i], y[i], i, draws, masks) for i in range(len(x))]
        images, targets = torch.stack([image for image, _ in pairs]), torch.stack([target for _, target in pairs])
        if s.mixes:
            if not targets.is_floating_point():
                targets = F.one_hot(targets, self.data.facts["num_classes"]).to(x.dtype)
            images, targets = self._mixed(images, targets, draws)
        return images, targets

    def normalized(self, images: Tensor) -> Tensor:
        """Of mean 0 and deviation 1 per channel, where the member asks for it."""
        if not self.setting.normalize:
            return images
        if not isinstance(self.data, Data):
            mean, deviation = self._statistics.moments
        else:
            pixels = self._pixels()
            mean, deviation = pixels.mean(1), pixels.std(1, correction=0)
        deviation = torch.where(deviation > 0, deviation, 1.0)
        return (images - mean.to(images).view(-1, 1, 1)) / deviation.to(images).view(-1, 1, 1)

    def _pixels(self) -> Tensor:
        """All training images, ``[channels, pixels]``."""
        x: Tensor = self.data.x  # type: ignore[union-attr]
        whole = x.double() / 255 if x.dtype == torch.uint8 else x.double()
        return whole.transpose(0, 1).flatten(1)

    def _image(self, image: Tensor, target: Tensor, i: int, draws: Draws, masks: bool) -> Batch:
        s, (height, width) = self.setting, image.shape[1:]
        if s.random_crop:
            k = s.random_crop
            down, right = (int(k + math.floor(float(u) * (2 * k + 1)) - k) for u in draws.uniform("crop", 2)[:, i])
            image = F.pad(image[None], (k, k, k, k), "reflect" if masks else "constant")[0]
            image = image[:, down : down + height, right : right + width]
            if masks:
                target = F.pad(target[None, None].double(), (k, k, k, k), "reflect")[0, 0].to(target.dtype)
                target = target[down : down + height, right : right + width]
        if s.horizontal_flip and float(draws.uniform("flip", 1)[0, i]) < s.horizontal_flip:
            image, target = image.flip(-1), target.flip(-1) if masks else target
        if s.color_jitter:
            drawn = draws.uniform("color", 3)[:, i].tolist()
            image = self._coloured(image, [1 + s.color_jitter * (2 * u - 1) for u in drawn])
        if s.random_erasing:
            image = self._erased(image, draws.uniform("erase", 5)[:, i].tolist())
        return image, target

    def _coloured(self, image: Tensor, factors: list[float]) -> Tensor:
        low, high = (float(v) for v in self._statistics.range)
        brightness, contrast, saturation = factors
        seen = (low + (image - low) * brightness).clamp(low, high)
        seen = (_grey(seen).mean() * (1 - contrast) + seen * contrast).clamp(low, high)
        if len(image) == 3:
            seen = (_grey(seen) * (1 - saturation) + seen * saturation).clamp(low, high)
        return seen

    def _erased(self, image: Tensor, drawn: list[float]) -> Tensor:
        chosen, share, aspect, down, right = drawn
        if chosen >= self.setting.random_erasing:
            return image
        height, width = image.shape[1:]
        area = (ERASED_SHARE[0] + (ERASED_SHARE[1] - ERASED_SHARE[0]) * share) * height * width
        low, high = (math.log(v) for v in ERASED_ASPECT)
        ratio = math.exp(low + (high - low) * aspect)
        tall, wide = (min(max(round(math.sqrt(v)), 1), n) for v, n in ((area * ratio, height), (area / ratio, width)))
        top, left = math.floor(down * (height - tall + 1)), math.floor(right * (width - wide + 1))
        image = image.clone()
        fill = self._pixels().mean(1) if isinstance(self.data, Data) else self._statistics.moments[0]
        image[:, top : top + tall, left : left + wide] = fill.to(image).view(-1, 1, 1)
        return image

    def _mixed(self, images: Tensor, targets: Tensor, draws: Draws) -> Batch:
        from scipy.special import betaincinv

        s, partners = self.setting, draws.partners().tolist()
        seen, aims = images.clone(), targets.clone()
        height, width = images.shape[2:]
        for i, (quantile, which, down, right) in enumerate(draws.uniform("mix", 4).T.tolist()):
            other, cuts = partners[i], bool(s.cutmix) and not (s.mixup and which < 0.5)
            alpha = s.cutmix if cuts else s.mixup
            keep = float(betaincinv(alpha, alpha, quantile))
            if cuts:
                side = math.sqrt(1 - keep)
                tall, wide = math.floor(side * height), math.floor(side * width)
                middle, centre = math.floor(down * height), math.floor(right * width)
                top, bottom = (min(max(math.floor(middle + v * tall / 2), 0), height) for v in (-1, 1))
                left, end = (min(max(math.floor(centre + v * wide / 2), 0), width) for v in (-1, 1))
                seen[i, :, top:bottom, left:end] = images[other, :, top:bottom, left:end]
                keep = 1 - (bottom - top) * (end - left) / (height * width)
            else:
                seen[i] = images[i] * keep + images[other] * (1 - keep)
            aims[i] = targets[i] * keep + targets[other] * (1 - keep)
        return seen, aims

    def _clouds(self, x: Tensor, draws: Draws) -> Tensor:
        s, made = self.setting, x.clone()
        if s.point_rotation:
            for i in range(len(x)):
                angle = math.radians(s.point_rotation) * (2 * float(draws.uniform("angle", 1)[0, i]) - 1)
                about = DIRECTIONS.get(s.rotation_axis) or draws.directions("axis")[i].tolist()
                a, b, c = (angle * float(v) for v in about)
                turn = torch.matrix_exp(torch.tensor([[0, -c, b], [c, 0, -a], [-b, a, 0]], dtype=torch.float64)).to(x)
                for first in range(0, x.shape[2], 3):
                    made[i, :, first : first + 3] = x[i, :, first : first + 3] @ turn.T
        if s.point_jitter:
            noise = draws.noise("jitter", made[..., :3]).clamp(-5, 5)
            made[..., :3] += s.point_jitter * noise
        return made


def _grey(image: Tensor) -> Tensor:
    """Brightness ``[1, H, W]``."""
    if len(image) != 3:
        return image.mean(0, keepdim=True)
    return (image * torch.tensor(GREY).to(image).view(3, 1, 1)).sum(0, keepdim=True)
