"""Tensors that the caller puts in place of an array's: ``p.data = ...``, ``array.norm.running_mean = ...``.

An array computes with the memory of its arenas, which such an assignment leaves as it was. The values are not copied
there: the caller may still hold the former tensors, to put them back later.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hfta_nb.engine.eager.state import ArrayState
from hfta_nb.errors import FusionError


class Placement:
    """Where an array's tensors are; created whenever they have been moved by the array itself."""

    def __init__(self, state: ArrayState) -> None:
        self._names, self._parameters = [], []
        for name, p in state.tensors.named_parameters():
            self._names.append(name)
            self._parameters.append(p)
        self._rooms = {span.name: arena.view(span.name) for arena in state.parameter_arenas for span in arena.spans}
        self._once = [p for name, p in state.tensors.named_parameters() if name in state.held_once]
        self._addresses = self._now()
        self._buffers: list[tuple[dict[str, Any], str, str, Tensor]] = [
            (module._buffers, key, f"{path}.{key}" if path else key, buffer)
            for path, module in state.skeleton.named_modules()
            for key, buffer in module._buffers.items()
            if buffer is not None
        ]
        self._versions = self._written()

    def _written(self) -> list[int]:
        return [t._version for t in (*self._parameters, *(buffer for *_, buffer in self._buffers))]

    def written(self) -> bool:
        """True if an array's tensors were written to in place since the last time."""
        before, self._versions = self._versions, self._written()
        return before != self._versions

    def _now(self) -> list[int]:
        return list(map(Tensor.data_ptr, self._parameters))

    def moved(self) -> bool:
        """True if the caller has put other tensors in place of the array's, or trains one that is held once."""
        if self._now() != self._addresses or (self._once and any(p.requires_grad for p in self._once)):
            return True
        for held, key, _, buffer in self._buffers:  # noqa: SIM110  (a generator costs as much as all of this)
            if held.get(key) is not buffer:
                return True
        return False

    def check(self) -> list[Tensor | None]:
        """Check that the caller's tensors can replace the array's.

        Returns:
            The caller's buffers; None for each that is the array's.

        Raises:
            FusionError: one has another shape, dtype or device.
        """
        for name, p in zip(self._names, self._parameters, strict=True):
            _check(name, p.data, self._rooms[name])
        for held, key, name, own in self._buffers:
            _check(name, held.get(key), own)
        return [None if held[key] is own else held[key] for held, key, _, own in self._buffers]

    def copy_to(self, given: Sequence[Tensor | None]) -> None:
        """Copy the array's buffers to those of the caller that `check` has returned."""
        with torch.no_grad():
            for (_, _, _, own), tensor in zip(self._buffers, given, strict=True):
                if tensor is not None:
                    tensor.copy_(own)


def _check(name: str, given: Any, own: Tensor) -> None:
    if isinstance(given, Tensor) and (given.shape, given.dtype, given.device) == (own.shape, own.dtype, own.device):
        return
    described = f"{list(own.shape)}, {own.dtype}, on {own.device}"
    got = f"{list(given.shape)}, {given.dtype}, on {given.device}" if isinstance(given, Tensor) else given
    remedy = "fuse modules that have the new tensor, or use array.to(...) for another dtype or device"
    raise FusionError("a tensor was put in place of an array's", where=name, got=got, accepted=described, remedy=remedy)
