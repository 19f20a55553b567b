"""What a step knows of the other devices that train its array."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Protocol

from torch import Tensor

from hfta_nb.engine.array import FusedArray


class SeveralDevices(Protocol):
    """Computes for an array on several devices what it would compute on one; see `hfta_nb.distributed`."""

    def backward(
        self,
        loss_fn: Callable[..., Any],
        x: Any,
        y: Any = None,
        *,
        has_aux: bool = False,
        scale: Tensor | None = None,
        only: Collection[str] | None = None,
    ) -> Any:
        """See `FusedArray.backward`."""

    def evaluate(self, function: Callable[..., Any], x: Any, y: Any = None) -> Any:
        """See `FusedArray.evaluate`."""

    def of(self, array: FusedArray) -> SeveralDevices:
        """The same devices for an array of some of the members."""
