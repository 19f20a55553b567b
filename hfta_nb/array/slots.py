"""The places in a module where its tensors sit, so that one member's can be put there and taken out again.

Does what `torch.func.functional_call` does, at a small part of its cost: the places are found once, not
at every call, and plain lists that hold parameters too (as an LSTM does) are places as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn


class Slots:
    """All places of the parameters and buffers of a module.

    Args:
        module: its parameters and buffers at this time are the ones whose places are found.

    Attributes:
        parameters, buffers: names, each once: a tied tensor has one name and several places.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.parameters = [name for name, _ in module.named_parameters()]
        self.buffers = [name for name, _ in module.named_buffers()]
        names = {id(t): name for name, t in [*module.named_parameters(), *module.named_buffers()]}
        self._places: list[tuple[Any, Any, str]] = []
        for child in module.modules():
            holders: list[Any] = [child._parameters, child._buffers, *_lists(child)]
            for holder in holders:
                for key in holder if isinstance(holder, dict) else range(len(holder)):
                    name = names.get(id(holder[key]))
                    if name is not None:
                        self._places.append((holder, key, name))

    @contextmanager
    def filled(self, tensors: Mapping[str, Tensor]) -> Iterator[None]:
        """Within, the module holds these tensors (by name) in place of its own."""
        own = [holder[key] for holder, key, _ in self._places]
        for holder, key, name in self._places:
            holder[key] = tensors[name]
        try:
            yield
        finally:
            for (holder, key, _), tensor in zip(self._places, own, strict=True):
                holder[key] = tensor

    def call(self, tensors: Mapping[str, Tensor], function: Callable[[], Any]) -> tuple[Any, dict[str, Tensor]]:
        """Call with these tensors in place.

        Returns:
            What it returned, and the buffers that the module replaced (rather than changed in place), by name.
        """
        with self.filled(tensors):
            result = function()
            replaced = {
                name: holder[key]
                for holder, key, name in self._places
                if holder[key] is not tensors[name] and isinstance(holder, dict)
            }
        return result, replaced

    def replace(self, tensors: Mapping[str, Tensor]) -> None:
        """Put these tensors there for good."""
        for holder, key, name in self._places:
            holder[key] = tensors[name]


def _lists(module: nn.Module) -> Iterator[list[Any]]:
    for value in module.__dict__.values():
        if isinstance(value, list) and any(isinstance(v, Tensor) for v in value):
            yield value
