"""The axes of augmentation: which there are, for what kind of data, and what each accepts. All off by default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hfta_nb.events import Json
from hfta_nb.grid import AxisSpec

IMAGES, CLOUDS = "images", "point clouds"
"""Kinds of data that can be augmented: ``[N, channels, H, W]``, and ``[N, P, 3]`` or, with normals, ``[N, P, 6]``."""


GROUP = "augmentation"
"""How these axes are marked in a list."""


def _axis(name: str, off: Json, help: str, high: float | None = None, choices: tuple[Json, ...] = ()) -> AxisSpec:
    kind = type(off).__name__
    low = 0.0 if kind in ("int", "float") else None
    return AxisSpec(name, kind, off, choices, low, high, help, fusible=True, group=GROUP)


_IMAGES = (
    _axis("random_crop", 0, "Pixels by which an image is moved at most, each way."),
    _axis("horizontal_flip", 0.0, "Probability that an image is mirrored.", 1.0),
    _axis("color_jitter", 0.0, "By how much brightness, contrast and saturation change at most.", 1.0),
    _axis("random_erasing", 0.0, "Probability that a box of an image is erased.", 1.0),
    _axis("mixup", 0.0, "Alpha of mixup: two images laid over each other."),
    _axis("cutmix", 0.0, "Alpha of cutmix: a box of one image in another."),
    _axis("normalize", False, "Mean 0, deviation 1 per channel, over the training data."),
)
_CLOUDS = (
    _axis("point_jitter", 0.0, "Deviation of the noise on every point."),
    _axis("point_rotation", 0.0, "Degrees by which a cloud is turned at most.", 180.0),
    _axis("rotation_axis", "z", "What a cloud is turned about.", choices=("z", "y", "all")),
)

BY_KIND: dict[str, dict[str, AxisSpec]] = {IMAGES: {a.name: a for a in _IMAGES}, CLOUDS: {a.name: a for a in _CLOUDS}}

AXES: dict[str, AxisSpec] = {**BY_KIND[IMAGES], **BY_KIND[CLOUDS]}
"""All of them, by name."""

MIXING = ("mixup", "cutmix")
"""Axes that mix targets too, which then are shares of classes: for classification only."""

MOVING = ("random_crop", "horizontal_flip")
"""Axes that move what is in an image, and so the target's pixels."""


@dataclass(frozen=True)
class Setting:
    """How one member's samples are augmented; see `AXES`."""

    random_crop: int = 0
    horizontal_flip: float = 0.0
    color_jitter: float = 0.0
    random_erasing: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0
    normalize: bool = False
    point_jitter: float = 0.0
    point_rotation: float = 0.0
    rotation_axis: str = "z"

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Setting:
        """That of a row of axis values; an axis that is not there is off."""
        given = {name: row[name] for name in AXES if name in row}
        if not given.get("point_rotation"):
            given.pop("rotation_axis", None)  # settings that do the same are equal
        return cls(**given)

    @property
    def mixes(self) -> bool:
        """Whether targets become shares of classes."""
        return bool(self.mixup or self.cutmix)

    @property
    def moves(self) -> bool:
        """Whether what is in an image changes its place."""
        return bool(self.random_crop or self.horizontal_flip)
