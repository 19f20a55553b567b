"""The axes of augmentation, by kind of data. All are off by default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hfta_nb.records.events import Json
from hfta_nb.search.grid import AxisSpec

IMAGES, CLOUDS = "images", "point clouds"
"""Kinds of data that can be augmented: ``[N, channels, H, W]``, and ``[N, P, 3]`` or, with normals, ``[N, P, 6]``."""


GROUP = "augmentation"
"""The mark of these axes in a list."""


def _axis(name: str, off: Json, help: str, high: float | None = None, choices: tuple[Json, ...] = ()) -> AxisSpec:
    kind = type(off).__name__
    low = 0.0 if kind in ("int", "float") else None
    return AxisSpec(name, kind, off, choices, low, high, help, group=GROUP)


_IMAGES = (
    _axis("random_crop", 0, "Largest shift of an image, in pixels."),
    _axis("horizontal_flip", 0.0, "Probability that an image is mirrored.", 1.0),
    _axis("color_jitter", 0.0, "Largest relative change of brightness, contrast and saturation.", 1.0),
    _axis("random_erasing", 0.0, "Probability that a box of an image is erased.", 1.0),
    _axis("mixup", 0.0, "Alpha of mixup, which blends two images."),
    _axis("cutmix", 0.0, "Alpha of cutmix, which pastes a box of one image into another."),
    _axis("normalize", False, "Mean 0, deviation 1 per channel, over the training data."),
)
_CLOUDS = (
    _axis("point_jitter", 0.0, "Standard deviation of the noise on every point."),
    _axis("point_rotation", 0.0, "Largest rotation of a cloud, in degrees.", 180.0),
    _axis("rotation_axis", "z", "Axis of the rotation.", choices=("z", "y", "all")),
)

BY_KIND: dict[str, dict[str, AxisSpec]] = {IMAGES: {a.name: a for a in _IMAGES}, CLOUDS: {a.name: a for a in _CLOUDS}}

AXES: dict[str, AxisSpec] = {**BY_KIND[IMAGES], **BY_KIND[CLOUDS]}
"""All of them, by name."""

MIXING = ("mixup", "cutmix")
"""Axes that also mix targets, which become class probabilities; for classification only."""

MOVING = ("random_crop", "horizontal_flip")
"""Axes that move the contents of an image, and so the target's pixels."""


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
        """The setting of a row of axis values; a missing axis is off."""
        given = {name: row[name] for name in AXES if name in row}
        if not given.get("point_rotation"):
            given.pop("rotation_axis", None)  # settings with the same effect are equal
        return cls(**given)

    @property
    def mixes(self) -> bool:
        """Whether targets become class probabilities."""
        return bool(self.mixup or self.cutmix)

    @property
    def moves(self) -> bool:
        """Whether the contents of an image are moved."""
        return bool(self.random_crop or self.horizontal_flip)
