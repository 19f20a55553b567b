"""Which data can be augmented, and how."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor

from hfta_nb.data import AnyData, Data
from hfta_nb.data.augment.augmentation_axes import AXES, BY_KIND, CLOUDS, IMAGES, MIXING, MOVING, Setting
from hfta_nb.errors import GridError
from hfta_nb.search.grid import AxisSpec

NAMED: dict[str, tuple[str | None, str]] = {
    **dict.fromkeys(("digits", "mnist", "fashion_mnist", "cifar10", "cifar100"), (IMAGES, "classification")),
    **dict.fromkeys(("tiny_imagenet", "image_folder"), (IMAGES, "classification")),
    "photographs": (IMAGES, "segmentation"),
    **dict.fromkeys(("photograph_patches", "digit_images", "image_files", "lsun"), (IMAGES, "generation")),
    **dict.fromkeys(("shapes", "modelnet40", "modelnet40_off", "modelnet40_hdf5"), (CLOUDS, "classification")),
    **dict.fromkeys(("shape_parts", "shapenet_part"), (CLOUDS, "segmentation")),
}
"""Kind and task of data sets by name, so that their axes are known before they are read."""


def kind_of(data: AnyData) -> str | None:
    """`IMAGES` or `CLOUDS`; None for data that can't be augmented."""
    x = data.x if isinstance(data, Data) else data.sample(1)
    if not isinstance(x, Tensor):
        return None
    if x.ndim == 4 and (x.is_floating_point() or x.element_size() == 1):
        return IMAGES
    return CLOUDS if x.ndim == 3 and x.is_floating_point() and x.shape[2] in (3, 6) else None


def axes_for(data: AnyData | str) -> dict[str, AxisSpec]:
    """The axes that suit a data set or the name of one; empty for unknown names."""
    kind, task = _kind_and_task(data)
    suits = BY_KIND[kind] if kind else {}
    return {name: axis for name, axis in suits.items() if _suits(name, task)}


def _suits(name: str, task: str) -> bool:
    if name in MIXING:
        return task == "classification"
    # Generated images are in [-1, 1], so the real images must stay in that range.
    return name != "normalize" or task != "generation"


def _kind_and_task(data: AnyData | str) -> tuple[str | None, str]:
    if isinstance(data, str):
        return NAMED.get(data.partition(":")[0], (None, ""))
    return kind_of(data), data.task


def axes_of(names: Iterable[str]) -> dict[str, AxisSpec]:
    """The axes that suit one or more of these data sets, in the order of `AXES`."""
    suits = {name for data in names for name in axes_for(data)}
    return {name: axis for name, axis in AXES.items() if name in suits}


def why_not(name: str, data: AnyData | str) -> str:
    """Why a data set has no such axis of augmentation."""
    kind, task = _kind_and_task(data)
    shown = data if isinstance(data, str) else data.name
    wanted = next(kind for kind, axes in BY_KIND.items() if name in axes)
    if kind != wanted:
        return f"{name} is for {wanted}, and {shown} has none"
    does = "mixes classes, one for each image" if name in MIXING else "moves values out of [-1, 1]"
    return f"{name} {does}, and {shown} is for {task}"


def check(settings: Sequence[Setting], data: AnyData, swept: Iterable[str] = ()) -> None:
    """Check that the values of the axes suit the data.

    Args:
        settings: of all variants.
        data: the data of the study.
        swept: the axes that have several values.

    Raises:
        GridError: a shift exceeds the image, the targets can't be moved or mixed, or an axis has no effect.
    """
    if "rotation_axis" in swept and "rotation_axis" in axes_for(data) and not any(s.point_rotation for s in settings):
        remedy = "set point_rotation to degrees above 0, or take the axis out"
        raise GridError("changes nothing with point_rotation=0", where="rotation_axis", remedy=remedy)
    if any(s.mixes for s in settings) and "num_classes" not in data.facts:
        what = f"{data.name} does not say how many classes it has"
        raise GridError(what, where=" or ".join(MIXING), remedy='give Data facts={"num_classes": ...}')
    if not any(s.moves for s in settings):
        return
    x, y = data.sample_batch(1)
    side, furthest = min(x.shape[2:]), max(s.random_crop for s in settings)
    if furthest >= side:
        what, accepted = f"moves images of {data.name} out of sight", f"0 to {side - 1} pixels"
        raise GridError(what, where="random_crop", got=furthest, accepted=accepted)
    if data.task == "segmentation" and y.shape[1:] != x.shape[2:]:
        what = f"moves the images of {data.name}, but the targets are not as large"
        raise GridError(what, where=" or ".join(MOVING), got=f"{_size(x)} and {_size(y)}", accepted="the same size")


def _size(images: Tensor) -> str:
    return " x ".join(map(str, images.shape[-2:]))
