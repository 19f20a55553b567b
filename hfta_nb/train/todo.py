"""An array that is to be trained, and one that trains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from hfta_nb.train.plan import Group
from hfta_nb.train.settings import End, WeightsOf


@dataclass(frozen=True)
class Todo:
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


class Training(Protocol):
    """An array that trains, as the schedule sees it; see `Progress`."""

    group: Group

    def work(self) -> list[tuple[Group, int, int]]:
        """The group, members that still train, and their steps so far."""

    def kept(self) -> tuple[Mapping[str, Any] | None, Mapping[WeightsOf, Any]]:
        """How far it is, and the best weights that were not saved yet; they count as saved from then on."""
