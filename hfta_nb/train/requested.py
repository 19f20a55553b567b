"""What was asked of single members, as far as it is still to be done or to be known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from hfta_nb.records.events import Clone, from_json, to_json, tuples
from hfta_nb.train.plan import Group


class Owner(Protocol):
    """What a run belongs to: it knows families, grids and files."""

    def adopt(self, request: Clone, edits: Mapping[str, Any], source: tuple[Group, int]) -> list[Group]:
        """Plan a clone, and know it from now on.

        Args:
            request: for it.
            edits: the values of its source that differ from those that it was planned with.
            source: its source's array, and the place there.

        Returns:
            The array of the clone alone.

        Raises:
            HftaError: it can't be planned. Nothing has changed then.
        """

    def unmade(self, variants: Sequence[int]) -> dict[int, Clone]:
        """Which of these variants are warm clones, by their numbers, and what asked for them."""

    def extend(self, epochs: int) -> None:
        """All train so many epochs from now on."""


@dataclass
class Requested:
    """What was asked of single members; part of every checkpoint.

    Attributes:
        paused: by variant, how far it is; None for one that had not begun.
        held: variants to be paused when their array is built.
        deleted: variants that train no more.
        edits: by variant, the values that differ from what it was planned with.
        changed: by variant, the axes whose values are to be put into its optimizer when its array is built.
        budgets: by variant, its epochs where they are not those of the run.
        clones: by the clone's number, warm clones to be made when the array of their source is built.
        answered: keys of requests that have had their effect.
    """

    paused: dict[int, Mapping[str, Any] | None] = field(default_factory=dict)
    held: set[int] = field(default_factory=set)
    deleted: set[int] = field(default_factory=set)
    edits: dict[int, dict[str, Any]] = field(default_factory=dict)
    changed: dict[int, list[str]] = field(default_factory=dict)
    budgets: dict[int, int] = field(default_factory=dict)
    clones: dict[int, Clone] = field(default_factory=dict)
    answered: list[str] = field(default_factory=list)

    def state(self) -> dict[str, Any]:
        """All of it, as a tree of tensors and plain data."""
        return {
            "paused": [{"variant": v, "run": run} for v, run in self.paused.items()],
            "held": sorted(self.held),
            "deleted": sorted(self.deleted),
            "changed": {str(v): list(names) for v, names in self.changed.items()},
            "edits": {str(v): dict(values) for v, values in self.edits.items()},
            "budgets": {str(v): epochs for v, epochs in self.budgets.items()},
            "clones": {str(v): to_json(request) for v, request in self.clones.items()},
            "answered": list(self.answered),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Take what `state` gave."""
        self.paused = {int(saved["variant"]): saved["run"] for saved in state["paused"]}
        self.held, self.deleted = set(map(int, state["held"])), set(map(int, state["deleted"]))
        self.changed = {int(v): list(names) for v, names in state["changed"].items()}
        self.edits = {int(v): {k: tuples(x) for k, x in saved.items()} for v, saved in state["edits"].items()}
        self.budgets = {int(v): int(epochs) for v, epochs in state["budgets"].items()}
        made = {int(v): from_json(saved) for v, saved in state["clones"].items()}
        self.clones = {v: request for v, request in made.items() if isinstance(request, Clone)}
        self.answered = [str(key) for key in state["answered"]]

    def change(self, variant: int, names: Iterable[str]) -> None:
        """Let the values of these axes be put into a member's optimizer when its array is built."""
        self.changed[variant] = [*self.changed.get(variant, ()), *names]

    def put_back(self, changed: Mapping[int, list[str]]) -> None:
        """Let these values be put in again: the array that was built with them does not train."""
        self.changed = dict(changed)

    def edited(self, group: Group) -> Group:
        """A planned array with the values that its members have now."""
        for variant in self.edits.keys() & set(group.ids):
            group = with_values(group, variant, self.edits[variant])
        return group


def with_values(group: Group, variant: int, values: Mapping[str, Any]) -> Group:
    """An array of which a member has other values."""
    place = group.ids.index(variant)
    rows, arguments = list(group.rows), list(group.arguments)
    rows[place] = {name: values.get(name, value) for name, value in rows[place].items()}
    arguments[place] = {name: values.get(name, value) for name, value in arguments[place].items()}
    return replace(group, rows=tuple(rows), arguments=tuple(arguments))
