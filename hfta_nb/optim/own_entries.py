"""Where members differ in architecture: a member's own entries of a padded tensor, and back."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from hfta_nb.engine.array import FusedArray


class OwnEntries:
    """What of an array's parameters is one member's own.

    Args:
        array: its ``owned`` says which entries are whose; without, all are.
        index: the member.
    """

    def __init__(self, array: FusedArray, index: int) -> None:
        owned: Mapping[str, Tensor] = getattr(array, "owned", None) or {}
        self.masks = {name: mask[index].cpu() for name, mask in owned.items()}
        self.shapes = {name: tuple(p.shape[1:]) for name, p in array.named_parameters()}

    def has(self, name: str) -> bool:
        """Whether the member has the parameter at all."""
        return name not in self.masks or bool(self.masks[name].any())

    def pads(self, name: str) -> bool:
        """Whether some of the parameter's entries are not the member's."""
        return name in self.masks and not bool(self.masks[name].all())

    def shape(self, name: str) -> list[int]:
        """The parameter's shape in the plain module."""
        mask = self.masks.get(name)
        return list(self.shapes[name]) if mask is None else _box(mask)

    def narrow(self, name: str, value: Tensor) -> Tensor:
        """From a tensor of the padded shape, or reduced along some of its axes, to the member's own; a copy."""
        mask = self._mask(name, value)
        return value.clone() if mask is None else value[mask.to(value.device)].view(_box(mask))

    def widen(self, name: str, value: Tensor, room: Tensor) -> None:
        """Write the member's own tensor into one of the padded shape, whose other entries become zero."""
        mask = self._mask(name, room)
        if mask is None:
            room.copy_(value)
        else:
            room.zero_()
            room[mask.to(room.device)] = value.flatten().to(room.device, room.dtype)

    def _mask(self, name: str, value: Tensor) -> Tensor | None:
        mask = self.masks.get(name)
        if mask is None or value.ndim != mask.ndim:
            return None
        for axis in range(mask.ndim):
            if value.shape[axis] == 1 < mask.shape[axis]:
                mask = mask.any(axis, keepdim=True)
        return mask


def _box(mask: Tensor) -> list[int]:
    """The sides of the box that a mask marks."""
    axes = range(mask.ndim)
    return [int(mask.any([b for b in axes if b != a]).sum() if mask.ndim > 1 else mask.sum()) for a in axes]
