"""The axes of augmentation: which there are, for what kind of data, and what each accepts. All off by default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hfta_nb.grid import AxisSpec

IMAGES, CLOUDS = "images", "point clouds"
"""Kinds of data that can be augmented: ``[N, channels, H, W]``, and ``[N, P, 3]`` or, with normals, ``[N, P, 6]``."""


def _number(name: str, high: float | None, help: str, type: str = "float") -> AxisSpec:
    off = 0 if type == "int" else 0.0
    return AxisSpec(name, type, off, low=0.0, high=high, help=help, fusible=True)


_IMAGES = (
    _number("random_crop", None, "Pixels by which an image is moved at most, each way.", "int"),
    _number("horizontal_flip", 1.0, "Probability that an image is mirrored."),
    _number("color_jitter", 1.0, "By how much brightness, contrast and saturation change at most."),
    _number("random_erasing", 1.0, "Probability that a box of an image is erased."),
    _number("mixup", None, "Alpha of mixup: two images laid over each other."),
    _number("cutmix", None, "Alpha of cutmix: a box of one image in another."),
    AxisSpec("normalize", "bool", False, help="Mean 0, deviation 1 per channel, over training data.", fusible=True),
)
_CLOUDS = (
    _number("point_jitter", None, "Deviation of the noise on every point."),
    _number("point_rotation", 180.0, "Degrees by which a cloud is turned at most."),
    AxisSpec("rotation_axis", "str", "z", ("z", "y", "all"), help="What a cloud is turned about.", fusible=True),
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
