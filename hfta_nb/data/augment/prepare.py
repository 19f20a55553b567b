"""Turns stored samples into those that members train on: floats, augmented, standardised."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from hfta_nb.data import AnyData, Cached, Samples
from hfta_nb.data.augment import clouds, images
from hfta_nb.data.augment.augmentable import kind_of
from hfta_nb.data.augment.augmentation_axes import CLOUDS, Setting
from hfta_nb.data.augment.random_numbers import Draws
from hfta_nb.data.augment.statistics import Statistics

Pair = tuple[Any, Any]
Key = TypeVar("Key", bound=Hashable)


class Augmenting:
    """Prepares the data for the members of a group.

    Args:
        data: the data; already on the device unless it is a stream.
        device, dtype: of the members.

    Attributes:
        cached: where several groups prepare the same batches, what one of them has computed; None for one group alone.
    """

    def __init__(self, data: AnyData, device: torch.device, dtype: torch.dtype) -> None:
        self.data, self.dtype = data, dtype
        self.cached: Cached | None = None
        self.statistics = Statistics(data, device)

    def of(
        self, rows: Sequence[Mapping[str, Any]], seeds: Sequence[int], behind: Sequence[int] = ()
    ) -> Prepared | None:
        """The preparation of these members' batches; None if batches are used as stored.

        Args:
            rows: per member, its values of the axes.
            seeds: per member, the seed of its data order.
            behind: per member, how many epochs later it has begun; none without.
        """
        settings = [Setting.of(row) for row in rows]
        if all(setting == Setting() for setting in settings):
            return None
        return Prepared(self, settings, seeds, behind)


class Prepared:
    """Makes the batches of some members. If all settings agree, a batch is computed once and shared.

    Args:
        augmenting: the data and what is known of it.
        settings: per member.
        seeds: per member, the seed of its data order.
        behind: per member, how many epochs later it has begun; none without.
    """

    def __init__(
        self, augmenting: Augmenting, settings: Sequence[Setting], seeds: Sequence[int], behind: Sequence[int] = ()
    ) -> None:
        self.data, self.dtype, self.statistics = augmenting.data, augmenting.dtype, augmenting.statistics
        self.cached = augmenting.cached
        self.keys = list(zip(zip(seeds, behind or [0] * len(seeds), strict=True), settings, strict=True))
        self.mixes = any(s.mixes for s in settings)
        self.of_clouds = kind_of(self.data) == CLOUDS

    def training(self, x: Samples, y: Samples, own: bool, epoch: int, number: int) -> tuple[Samples, Samples, bool]:
        """A training batch.

        Args:
            x, y: stored samples ``[N, ...]``, or ``[M, N, ...]`` if `own`.
            own: whether every member has its own samples.
            epoch, number: of the batch; with the data seed they determine the random numbers.

        Returns:
            The prepared `x`, `y` and `own`. If a member mixes classes, all targets are class probabilities ``[..., N,
            classes]``.
        """
        size = x.shape[1] if own else x.shape[0]
        draws: dict[tuple[int, int], Draws] = {}

        def make(key: tuple[tuple[int, int], Setting], member: int) -> Pair:
            (seed, late), setting = key
            if key[0] not in draws:
                draws[key[0]] = Draws(seed, epoch - late, number, size, x.device)
            return self._augmented(x[member] if own else x, y[member] if own else y, setting, draws[key[0]])

        return _spread(self.keys, make if own else self._shared(x, make, self.mixes))

    def validation(self, x: Samples, y: Samples, own: bool) -> tuple[Samples, Samples, bool]:
        """A batch of validation: floats, standardised, otherwise as stored."""

        def make(key: tuple[bool, int], member: int) -> Pair:
            mine, target = (x[member], y[member]) if own else (x, y)
            return self._standardised(self.data.scaled(mine, self.dtype), key[0]), target

        keys = [(setting.normalize, member if own else 0) for member, (_, setting) in enumerate(self.keys)]
        return _spread(keys, make if own else self._shared(x, make, None))

    def _shared(self, x: Samples, make: Callable[[Key, int], Pair], how: Any) -> Callable[[Key, int], Pair]:
        """`make`, which takes what another group has made of the batch `x`."""
        cached = self.cached
        if cached is None:
            return make

        def taken(key: Key, member: int) -> Pair:
            x_made, y_made = cached(x, (how, key), lambda: make(key, member))
            return x_made, y_made

        return taken

    def _augmented(self, x: Tensor, y: Tensor, setting: Setting, draws: Draws) -> Pair:
        x = self.data.scaled(x, self.dtype)
        if self.of_clouds:
            if setting.point_rotation:
                x = clouds.point_rotation(x, setting.point_rotation, setting.rotation_axis, draws)
            return (clouds.point_jitter(x, setting.point_jitter, draws) if setting.point_jitter else x), y
        masks = y if self.data.task == "segmentation" else None
        if setting.random_crop:
            x, masks = images.random_crop(x, masks, setting.random_crop, draws)
        if setting.horizontal_flip:
            x, masks = images.horizontal_flip(x, masks, setting.horizontal_flip, draws)
        y = y if masks is None else masks
        if setting.color_jitter:
            x = images.color_jitter(x, setting.color_jitter, *self.statistics.range, draws)
        if setting.random_erasing:
            x = images.random_erasing(x, setting.random_erasing, self.statistics.moments[0], draws)
        if self.mixes and not y.is_floating_point():
            # Not one_hot, which reads the values and so waits for the device.
            y = (y.unsqueeze(1) == torch.arange(self.data.facts["num_classes"], device=y.device)).to(self.dtype)
        if setting.mixes:
            x, y = images.mix(x, y, setting.mixup, setting.cutmix, draws)
        return self._standardised(x, setting.normalize), y

    def _standardised(self, x: Samples, normalized: bool) -> Samples:
        if not normalized:
            return self.data.standardised(x)
        mean, deviation = (v.to(x).view(-1, 1, 1) for v in self.statistics.moments)
        return (x - mean) / deviation


def _spread(keys: Sequence[Key], make: Callable[[Key, int], Pair]) -> tuple[Samples, Samples, bool]:
    """The result for each member's key, computed once per key: shared if all keys are equal, else ``[M, ...]``."""
    first = {key: member for member, key in reversed(list(enumerate(keys)))}
    made = {key: make(key, member) for key, member in first.items()}
    if len(made) == 1:
        return (*made[keys[0]], False)
    return torch.stack([made[k][0] for k in keys]), torch.stack([made[k][1] for k in keys]), True
