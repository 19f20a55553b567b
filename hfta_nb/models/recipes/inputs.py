"""Kinds of inputs of a module, distinguished by the shape and type of a sample."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from hfta_nb.data import AnyData, leaves, names_for
from hfta_nb.data.augment.augmentable import NAMED
from hfta_nb.data.augment.augmentation_axes import CLOUDS, IMAGES

ROWS, TOKENS, FEATURES = "table rows", "tokens", "dense features and categories"

KINDS = {
    IMAGES: "images [channels, height, width]",
    CLOUDS: "point clouds [points, values of a point]",
    ROWS: "table rows [features]",
    TOKENS: "tokens, whole numbers [length]",
    FEATURES: "a tuple of dense features and categories (whole numbers)",
}
"""Kinds of inputs, with the shape of a sample."""


def kind_of(data: AnyData) -> str:
    """One of `KINDS`; "" for anything else."""
    x, _ = data.examples
    if isinstance(x, tuple):
        floats = [t.is_floating_point() for t in x]
        return FEATURES if floats == [True, False] and all(t.ndim == 2 for t in x) else ""
    if not isinstance(x, Tensor):
        return ""
    if x.ndim == 4:
        return IMAGES
    if x.is_floating_point():
        return {2: ROWS, 3: CLOUDS}.get(x.ndim, "")
    return TOKENS if x.ndim == 2 else ""


def shown(data: AnyData) -> str:
    """The inputs of a data set in words: ``table rows [13]``."""
    shapes = " and ".join(str(list(t.shape[1:])) for t in leaves(data.examples[0]))
    return f"{kind_of(data) or 'inputs'} {shapes}"


def names_with(tasks: Sequence[str], kinds: Sequence[str]) -> list[str]:
    """Data sets by name for any of these tasks that have inputs of one of these kinds."""
    looks = {IMAGES, CLOUDS} & set(kinds)
    return [n for n in names_for(tasks) if not looks or NAMED.get(n, (None,))[0] in looks]
