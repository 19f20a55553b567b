"""Populations: members that train side by side, of which the worst become copies of the best, with other values."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from hfta_nb.errors import SearchError
from hfta_nb.errors.border import plain
from hfta_nb.records.events import Json
from hfta_nb.search.grid import AxisSpec
from hfta_nb.search.leaders import Leader

Explored: TypeAlias = "tuple[float, ...] | list[Json]"
"""How a copy's value of an axis differs from the original's: one of these factors (a tuple), or one of these values
instead (a list)."""


@dataclass(frozen=True)
class PBT:
    """Population based training, with truncation selection.

    After every `every` epochs, each member of the worst share `exploit` of an array becomes a copy of a member of the
    best share, chosen at random: weights, buffers, optimizer, lr schedule, loss scale and all hyperparameters. It keeps
    its random streams and the order of its data. Then the values of the axes in `perturb` are changed. Members are
    compared with those of the same array only.

    Args:
        every: epochs from one round to the next; there is none after the last epoch.
        exploit: the share of members that is replaced, above 0 and at most 0.5; the number is rounded down.
        perturb: by axis, the factors by one of which its value is multiplied (a tuple), or the values of which it takes
            one (a list). Axes of the optimizer and of the lr schedule can be given.

    Raises:
        SearchError: a value can't be used.

    Example:
        >>> PBT(every=2, exploit=0.25, perturb={"lr": (0.8, 1.25)})
        PBT(every=2, exploit=0.25, perturb={'lr': (0.8, 1.25)})

    Source: Jaderberg et al., Population Based Training of Neural Networks, 2017.
    """

    every: int = 1
    exploit: float = 0.2
    perturb: Mapping[str, Explored] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_every(self.every)
        share = plain(self.exploit)
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 0.5:
            raise SearchError("not a share", where="PBT, exploit", got=share, accepted="above 0, at most 0.5")
        _check_explored(self.perturb)

    def pairs(self, ranked: Sequence[int], chance: Mapping[int, random.Random]) -> list[tuple[int, int]]:
        """Who is replaced by whom.

        Args:
            ranked: variants, the best first.
            chance: of each of them.
        """
        count = int(len(ranked) * self.exploit)
        best = ranked[:count]
        return [(target, chance[target].choice(best)) for target in ranked[len(ranked) - count :]]


@dataclass(frozen=True)
class Halving:
    """Successive halving by copies: all places of an array stay taken.

    After every `every` epochs the best of each `factor` members go on, and each of the others becomes a copy of one of
    them, the best of the others of the best. What a copy takes and keeps is as for `PBT`.

    Args:
        every: epochs from one round to the next; there is none after the last epoch.
        factor: one of so many members goes on.
        perturb: how the values of copies differ; see `PBT`. Without, copies differ in their random streams alone.

    Raises:
        SearchError: a value can't be used.

    Example:
        >>> Halving(every=3, perturb={"lr": (0.5, 2.0)})
        Halving(every=3, factor=2, perturb={'lr': (0.5, 2.0)})
    """

    every: int = 1
    factor: int = 2
    perturb: Mapping[str, Explored] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_every(self.every)
        if isinstance(self.factor, bool) or not isinstance(self.factor, int) or self.factor < 2:
            raise SearchError("not a number of members", where="Halving, factor", got=self.factor, accepted="2, 3, ...")
        _check_explored(self.perturb)

    def pairs(self, ranked: Sequence[int], chance: Mapping[int, random.Random]) -> list[tuple[int, int]]:
        """Who is replaced by whom; see `PBT.pairs`."""
        kept = -(-len(ranked) // self.factor)
        return [(target, ranked[place % kept]) for place, target in enumerate(ranked[kept:])]


@dataclass(frozen=True)
class Rounds:
    """A population method in a study. What it decides follows from the epoch and the members alone, so that a run that
    is resumed decides the same.

    Attributes:
        method: which.
        specs: of the axes that it changes.
        seed: of its choices.
    """

    method: PBT | Halving
    specs: Mapping[str, AxisSpec]
    seed: int

    def decide(
        self, epoch: int, values: Mapping[int, float], rows: Mapping[int, Mapping[str, Any]], maximize: bool
    ) -> list[tuple[int, int, dict[str, Any]]]:
        """Which members are replaced after an epoch, each with its original and the values that it then changes."""
        if epoch % self.method.every:
            return []
        worst = -math.inf if maximize else math.inf
        finite = {v: value if math.isfinite(value) else worst for v, value in values.items()}
        ranked = sorted(finite, key=lambda v: (-finite[v] if maximize else finite[v], v))
        chance = {v: random.Random(f"{self.seed}/{epoch}/{v}") for v in ranked}
        pairs = self.method.pairs(ranked, chance)
        return [(t, s, self._explored(rows[s], chance[t])) for t, s in pairs if math.isfinite(values[s])]

    def _explored(self, row: Mapping[str, Any], chance: random.Random) -> dict[str, Any]:
        found = {}
        for name, how in self.method.perturb.items():
            if isinstance(how, list):
                found[name] = chance.choice(how)
                continue
            factor = chance.choice(how)
            if row[name] is not None:  # clipping that is off stays off
                found[name] = self._within(name, row[name] * factor)
        return found

    def _within(self, name: str, value: float) -> float | int:
        spec = self.specs[name]
        if spec.low is not None:
            value = max(value, spec.low)
        if spec.high is not None:
            value = min(value, spec.high)
        return round(value) if spec.type == "int" else value


def _check_every(every: Any) -> None:
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        raise SearchError("not a number of epochs", where="every", got=every, accepted="1, 2, 3, ...")


def _check_explored(perturb: Any) -> None:
    accepted = 'a dict such as {"lr": (0.8, 1.25)}, by which it is multiplied, or {"lr": [1e-3, 1e-2]}, instead of it'
    if not isinstance(perturb, Mapping):
        raise SearchError("not axes", where="perturb", got=perturb, accepted=accepted)
    for name, how in perturb.items():
        factors = isinstance(how, tuple) and all(
            isinstance(v, int | float) and not isinstance(v, bool) and v > 0 and math.isfinite(v) for v in how
        )
        if not how or not (factors or isinstance(how, list)):
            raise SearchError("not factors, nor values", where=f"perturb, {name}", got=how, accepted=accepted)


# In a file.


def population_to_json(method: PBT | Halving | Leader) -> dict[str, Any]:
    """A population method as plain data."""
    if isinstance(method, Leader):
        return {"method": "Leader", **vars(method)}
    saved = {k: v for k, v in vars(method).items() if k != "perturb"}
    how = {n: {"values" if isinstance(v, list) else "factors": list(v)} for n, v in method.perturb.items()}
    return {"method": type(method).__name__, **saved, "perturb": how}


def population_from_json(saved: Mapping[str, Any]) -> PBT | Halving | Leader:
    """What `population_to_json` gave.

    Raises:
        SearchError, KeyError, TypeError: it is not.
    """
    if saved["method"] == "Leader":
        return Leader(**{name: value for name, value in saved.items() if name != "method"})
    kinds: dict[str, type[PBT] | type[Halving]] = {"PBT": PBT, "Halving": Halving}
    perturb = {
        n: list(how["values"]) if "values" in how else tuple(how["factors"]) for n, how in saved["perturb"].items()
    }
    given = {k: v for k, v in saved.items() if k not in ("method", "perturb")}
    return kinds[saved["method"]](**given, perturb=perturb)
