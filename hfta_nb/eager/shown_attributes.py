"""What an array's modules show between calls of attributes that members have set, and what the user writes there.

A model may keep values on itself (`self.hidden = h`); each member has its own. Between calls the array's modules show
the first member's values. So a write of the user (`array.rnn.hidden = None`) is noticed, and the next call gives the
written value to all members, as if it had been written to each plain module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from hfta_nb.eager.attributes import MISSING, AttributeKey, Attributes, is_ordinary
from hfta_nb.eager.fingerprint import fingerprint


class ShownAttributes:
    """The values that a module shows in place of its own attributes.

    Args:
        root: the module.
    """

    def __init__(self, root: nn.Module) -> None:
        self._root = root
        self._own: dict[AttributeKey, Any] = {}
        self._shown: dict[AttributeKey, Any] = {}
        self._depth = 0

    @contextmanager
    def hidden(self, current: Callable[[], Attributes]) -> Iterator[None]:
        """Within the context, the module has its own attributes, and the members have what the user wrote.

        Args:
            current: returns the members' attributes.
        """
        if self._depth == 0 and self._own:
            self._hide(current())
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            attributes = current()
            if self._depth == 0 and attributes.values:
                self._show(attributes)

    def _hide(self, attributes: Attributes) -> None:
        for (path, name), own in self._own.items():
            held = self._root.get_submodule(path).__dict__
            now = held.get(name, MISSING)
            if fingerprint(now) != self._shown[path, name]:
                attributes.assign((path, name), now)
            if own is MISSING:
                held.pop(name, None)
            else:
                held[name] = own
        self._own.clear()
        self._shown.clear()

    def _show(self, attributes: Attributes) -> None:
        for (path, name), values in attributes.values.items():
            if values[0] is MISSING or not is_ordinary(name):
                continue
            held = self._root.get_submodule(path).__dict__
            self._own[path, name] = held.get(name, MISSING)
            held[name] = values[0]
            self._shown[path, name] = fingerprint(values[0])
