"""An array that is to be trained, one that trains, and what is kept of either."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from torch import Tensor

from hfta_nb.train.plan import Group

WeightsOf: TypeAlias = "int | str"
"""Whose weights: a variant's best ones by its number, others by what `weights_at` gives."""

Save = Callable[[dict[str, Any], Mapping[WeightsOf, Mapping[str, Tensor]]], str]
"""Keeps a checkpoint and the weights of some variants; returns where."""

LAST = "last"


def weights_at(variant: int, at: int | str) -> str:
    """The name of a member's weights after an epoch, or at its end (`LAST`)."""
    return f"{variant}@{at}"


@dataclass(frozen=True)
class End:
    """What is kept of an array that is done.

    Attributes:
        file: its state, as `Ends` knows it.
        epochs: how many it has trained.
        members: variants that have trained so many.
        steps: that each of them has made; 0 where it was kept by an earlier version.
    """

    array: int
    file: str
    epochs: int
    members: list[int]
    steps: int = 0


class Ends(Protocol):
    """Keeps the states of arrays that are done."""

    def write_end(self, array: int, state: Mapping[str, Any]) -> str:
        """Keep one; returns what `read_end` takes."""

    def read_end(self, name: str) -> Any:
        """What `write_end` was given."""


@dataclass(frozen=True)
class PendingGroup:
    """An array that is to be trained.

    Attributes:
        run: how far it is; None where it has not begun.
        end: where it trains on after its end.
    """

    group: Group
    run: Mapping[str, Any] | None = None
    end: End | None = None

    @property
    def begun(self) -> bool:
        """Whether its members have trained."""
        return self.run is not None or self.end is not None

    @property
    def between_epochs(self) -> bool:
        """Whether it has begun and is between two epochs."""
        if self.run is None:
            return self.end is not None
        return not (int(self.run["batch"]) or self.run.get("ending", False))

    @property
    def ids(self) -> list[int]:
        """The members that are still to train."""
        if self.run is not None:
            return list(self.run["ids"])
        return list(self.group.ids) if self.end is None else list(self.end.members)


class Joining(Protocol):
    """Finds what may join the array that trains; see `Joiner`."""

    free: int

    def look(self) -> int:
        """Take in what has come to wait; how many may join."""

    @property
    def waiting(self) -> int:
        """Variants that wait for another array."""


class Refused:
    """Arrays that can't join one that trains, as was found: to look at them again takes a while."""

    def __init__(self) -> None:
        self._tried: set[int] = set()
        self._unlike: dict[int, tuple[tuple[int, ...], ...]] = {}

    def has(self, array: int, members: Sequence[int], coming: Sequence[int]) -> bool:
        """Whether nothing has changed since; see `unlike`."""
        return array in self._tried or self._unlike.get(array) == (tuple(members), tuple(coming))

    def tried(self, array: int) -> None:
        """Both were built as one array: that is done once, whatever came of it."""
        self._tried.add(array)

    def unlike(self, array: int, members: Sequence[int], coming: Sequence[int]) -> None:
        """They do not fuse, with these members of the one that trains and these of the other."""
        self._unlike[array] = tuple(members), tuple(coming)


class Training(Protocol):
    """An array that trains, as the schedule and requests see it; see `Progress`."""

    group: Group

    def trains(self, variant: int) -> bool:
        """Whether a variant is one of its members that still train."""

    def reached(self, variant: int) -> tuple[int, int]:
        """Epochs and steps that one of these members has done."""

    def change(self, group: Group, variant: int, values: Mapping[str, Any]) -> None:
        """A variant has other values from now on, with which its array is `group`."""

    def work(self) -> list[tuple[Group, int, int]]:
        """The group, members that still train, and their steps so far."""

    def kept(self) -> tuple[Mapping[str, Any] | None, Mapping[WeightsOf, Any]]:
        """How far it is, and the best weights that were not saved yet; they count as saved from then on."""
