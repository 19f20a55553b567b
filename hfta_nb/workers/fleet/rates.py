"""Training rates as functions of the number of devices: measured, extrapolated, and searched."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hfta_nb.errors import FleetError

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


def extrapolate(rates: Sequence[float], n: int) -> list[float]:
    """Training rates on 1 to `n` devices, from measured ones.

    Measured rates are continued by Eq. 5 of FLEET, and the whole curve is clamped to its running maximum: a group that
    gets slower with one more device leaves it idle. A gain per device above linear is continued as linear, and a single
    measured rate as constant.

    Args:
        rates: measured, in samples/s; ``rates[m - 1]`` on m devices.
        n: number of devices, from 1.

    Returns:
        `n` rates in samples/s that never fall.

    Raises:
        FleetError: there are no rates, one is not a positive finite number, or `n` is less than 1.

    Example:
        >>> [round(rate, 2) for rate in extrapolate([40, 75, 105, 120], 8)]
        [40.0, 75.0, 105.0, 120.0, 128.57, 132.24, 132.24, 132.24]

    Source:
        Guan et al., "FLEET: Flexible Efficient Ensemble Training for Heterogeneous Deep Neural Networks", MLSys 2020.
        Clamping, the linear bound and the constant continuation are this project's.
    """
    measured = np.array([checked("rates", rates)], dtype=np.float64)
    found: list[float] = _extended(measured, positive(n, "n"))[0].tolist()
    return found


def assumed(parameters: int, members: int) -> float:
    """The rate of an array that was not measured, without a unit: a step takes as long as the array has parameters.

    Args:
        parameters: of a member.
        members: of the array.
    """
    return 1e9 / max(1, parameters * members)


def positive(value: Any, where: str) -> int:
    """The value, if it is a whole number from 1.

    Raises:
        FleetError: it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise FleetError("not a number of devices", where=where, got=value, accepted="a whole number, 1 or more")
    return int(value)


def within(value: Any, where: str, low: float, high: float) -> float:
    """The value, if it is a number in a closed range.

    Raises:
        FleetError: it is not.
    """
    number = not isinstance(value, bool) and isinstance(value, int | float | np.number)
    if not number or not low <= value <= high:
        accepted = f"a number from {low:g} to {high:g}" if math.isfinite(high) else f"a number, {low:g} or more"
        raise FleetError("out of range", where=where, got=value, accepted=accepted)
    return float(value)


def above_zero(value: Any, where: str) -> float:
    """The value, if it is a positive finite number.

    Raises:
        FleetError: it is not.
    """
    if not within(value, where, 0.0, float("inf")) or math.isinf(value):
        raise FleetError("out of range", where=where, got=value, accepted="a positive finite number")
    return float(value)


class Curves:
    """The rates of groups on 1 to `gpus` devices.

    Args:
        rates: measured rates by the name of a group, in samples/s; ``rates[name][m - 1]`` on m devices.
        gpus: number of devices.

    Attributes:
        names: of the groups, in the order given.
        gpus: number of devices.
        table: ``table[i, m - 1]`` is the rate of group i on m devices; rows never fall.

    Raises:
        FleetError: there are no groups, a group has no rates, or one that is not a positive finite number.
    """

    def __init__(self, rates: Mapping[str, Sequence[float]], gpus: int) -> None:
        if not isinstance(rates, Mapping) or not rates:
            accepted = "a mapping from a name to rates in samples/s, of one group at least"
            raise FleetError("no groups to plan for", where="rates", got=rates, accepted=accepted)
        self.names = list(rates)
        self.gpus = positive(gpus, "gpus")
        measured = [checked(f"rates[{name!r}]", found) for name, found in rates.items()]
        self.table: Floats = np.empty((len(measured), self.gpus))
        by_length: dict[int, list[int]] = {}
        for i, found in enumerate(measured):
            by_length.setdefault(len(found), []).append(i)
        for places in by_length.values():
            self.table[places] = _extended(np.array([measured[i] for i in places], dtype=np.float64), self.gpus)

    def __len__(self) -> int:
        return len(self.names)

    def fewest(self, groups: Integers, target: float | Floats, most: int) -> Integers:
        """The fewest devices with which each group reaches a rate; ``most + 1`` where `most` are not enough.

        Args:
            groups: indices.
            target: samples/s, for all groups or one for each.
            most: devices, at most.
        """
        starts, flat = groups * self.gpus, self.table.ravel()
        low, high = np.zeros(len(groups), dtype=np.int64), np.full(len(groups), most, dtype=np.int64)
        for _ in range(int(most).bit_length()):
            middle = (low + high) // 2
            reached = flat.take(starts + np.minimum(middle, most - 1)) >= target
            high = np.where(reached & (middle < high), middle, high)
            low = np.where(~reached & (middle < high), middle + 1, low)
        return high + 1

    def nearest(self, groups: Integers, target: float, most: int) -> tuple[Floats, Integers]:
        """How close each group's rate comes to a target on 1 to `most` devices, and the fewest devices that do it.

        Args:
            groups: indices.
            target: samples/s.
            most: devices, at most, from 1.
        """
        above = self.fewest(groups, target, most)
        last = np.maximum(above - 1, 1)
        value = self.table[groups, last - 1]
        error_below = np.abs(value - target)
        error_above = np.abs(self.table[groups, np.minimum(above, most) - 1] - target)
        error_above[above > most] = np.inf
        error_below[above == 1] = np.inf
        count = np.where(error_above < error_below, above, last)
        level = (count == last) & (last > 1) & (self.table[groups, last - 2] == value)
        if level.any():  # below the target the first count of equal rates does as well as the last
            count[level] = self.fewest(groups[level], value[level], most)
        return np.minimum(error_above, error_below), count


def checked(where: str, rates: Any) -> list[float]:
    accepted = "a sequence of positive numbers: samples/s on 1, 2, ... devices"
    try:
        found = [float(rate) for rate in rates]
    except (TypeError, ValueError) as error:
        raise FleetError("no training rates", where=where, got=rates, accepted=accepted) from error
    if not found or isinstance(rates, str | Mapping):
        raise FleetError("no training rates", where=where, got=rates, accepted=accepted)
    for place, rate in enumerate(found):
        if not math.isfinite(rate) or rate <= 0:
            raise FleetError("not a training rate", where=f"{where}[{place}]", got=rate, accepted=accepted)
    return found


def _extended(measured: Floats, n: int) -> Floats:
    """Rows of rates continued to `n` devices."""
    length = measured.shape[1]
    if n > length:
        more = np.arange(length + 1, n + 1, dtype=np.float64)
        if length == 1:
            tail = np.repeat(measured, n - 1, axis=1)
        else:
            last, before = measured[:, -1:], measured[:, -2:-1]
            kept = np.minimum(last / before * ((length - 1) / length), 1.0)
            tail = more * (last / length) * kept ** (more - length)
        measured = np.concatenate([measured, tail], axis=1)
    result: Floats = np.maximum.accumulate(measured[:, :n], axis=1)
    return result
