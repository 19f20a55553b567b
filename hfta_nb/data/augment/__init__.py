"""Augmentation and preprocessing of batches on the device, with settings per member; `axes` lists them."""

from hfta_nb.data.augment.augmentable import axes_for, axes_of, check, kind_of, why_not
from hfta_nb.data.augment.augmentation_axes import AXES, BY_KIND, MIXING, Setting
from hfta_nb.data.augment.prepare import Augmenting, Prepared

__all__ = [
    "AXES",
    "BY_KIND",
    "MIXING",
    "Augmenting",
    "Prepared",
    "Setting",
    "axes_for",
    "axes_of",
    "check",
    "kind_of",
    "why_not",
]
