"""Augmentation and preprocessing of batches on the device, with settings per member; `axes` lists them."""

from hfta_nb.data.augment.augmentable import axes_for, axes_of, check, kind_of, why_not
from hfta_nb.data.augment.augmentation_axes import AXES, BY_KIND, Setting
from hfta_nb.data.augment.prepare import Augmenting

__all__ = [
    "AXES",
    "BY_KIND",
    "Augmenting",
    "Setting",
    "axes_for",
    "axes_of",
    "check",
    "kind_of",
    "why_not",
]
