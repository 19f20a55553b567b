"""What an optimizer shows as ``state``, by parameter as torch's does, and takes over where the user writes there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor

from hfta_nb.engine.array import FusedArray
from hfta_nb.errors import OptimError
from hfta_nb.optim.own_entries import OwnEntries

Entry = dict[str, Any]


class Shows(Protocol):
    """An optimizer whose state is shown; see `Surgery`."""

    array: FusedArray

    @property
    def title(self) -> str: ...

    def _by_parameter(self) -> dict[str, Entry]: ...

    def _member_state(self, index: int) -> dict[str, Entry]: ...

    def _load_members(self, states: Mapping[int, Mapping[str, Mapping[str, Any]]]) -> None: ...


class ShownState:
    """A dict that stays the same object, as the state of torch's optimizers does.

    Args:
        optimizer: whose state it is.
    """

    def __init__(self, optimizer: Shows) -> None:
        self._optimizer = optimizer
        self.state: dict[Any, Entry] = defaultdict(dict)
        self._known: dict[Tensor, tuple[Entry, Entry, dict[str, int]]] = {}  # the entry, its values, and versions

    def show(self) -> dict[Any, Entry]:
        """The state as it is now."""
        self.take_written()
        return self._filled()

    def _filled(self) -> dict[Any, Entry]:
        first, again = (self._optimizer._by_parameter() for _ in range(2))
        for name, p in self._parameters().items():
            self._known.pop(p, None)
            if name not in first:
                self.state.pop(p, None)
                continue
            entry = self.state[p] = first[name]
            copies = [k for k, v in entry.items() if isinstance(v, Tensor) and not _same_memory(v, again[name][k])]
            self._known[p] = entry, dict(entry), {k: entry[k]._version for k in copies}
        return self.state

    def take_written(self) -> None:
        """Give the members what was written since `show`: other tensors or numbers, entries that were removed.

        Raises:
            OptimError: it can't be their state, and is dropped.
        """
        parameters = self._parameters()
        written = {name: found for name, p in parameters.items() if (found := self._written(p)) is not None}
        if not written:
            return
        try:
            self._optimizer._load_members(self._members(written))
        except OptimError:
            self._filled()
            raise
        self._known = {p: known for p, known in self._known.items() if p in self.state}
        for name in written:
            entry = self.state.get(parameters[name], {})
            versions = {k: v._version for k, v in entry.items() if isinstance(v, Tensor)}
            self._known[parameters[name]] = entry, dict(entry), versions

    def _members(self, written: dict[str, tuple[Entry, set[str]]]) -> dict[int, dict[str, Entry]]:
        """The state of each member, with what was written."""
        optimizer, states = self._optimizer, dict[int, dict[str, Entry]]()
        for index in range(len(optimizer.array)):
            own, state = OwnEntries(optimizer.array, index), optimizer._member_state(index)
            for name, (changed, removed) in written.items():
                if not own.has(name):
                    continue
                values = {k: v for k, v in state.get(name, {}).items() if k not in removed}
                values |= {k: self._row(name, k, v, index, own) for k, v in changed.items()}
                state[name] = values
                if all(v is None for k, v in values.items() if k != "step"):
                    del state[name]
            states[index] = state
        return states

    def _parameters(self) -> dict[str, Tensor]:
        return dict(self._optimizer.array.named_parameters())

    def _written(self, p: Tensor) -> tuple[Entry, set[str]] | None:
        """The values of a parameter that were written, and those that were removed; None where there are none."""
        entry = self.state.get(p, {})
        _, values, versions = self._known.get(p, ({}, {}, {}))
        removed = {k for k in values if k not in entry}
        changed = {
            k: v
            for k, v in entry.items()
            if k not in values or v is not values[k] or (k in versions and v._version != versions[k])
        }
        return (changed, removed) if changed or removed else None

    def _row(self, name: str, key: str, value: Any, index: int, own: OwnEntries) -> Any:
        """A member's value of one that was written."""
        members = len(self._optimizer.array)
        if not isinstance(value, Tensor):  # a list where members' tensors have several shapes
            return value[index] if isinstance(value, list) and len(value) == members else value
        if not value.ndim or len(value) != members:
            raise OptimError(
                "no state of all members",
                where=f"{self._optimizer.title}.state, {name}, {key}",
                got=list(value.shape),
                accepted=f"[{members}, ...], one row per member; or a number for all",
            )
        return own.narrow(name, value[index])


def _same_memory(a: Tensor, b: Any) -> bool:
    return isinstance(b, Tensor) and a.numel() > 0 and a.data_ptr() == b.data_ptr()
