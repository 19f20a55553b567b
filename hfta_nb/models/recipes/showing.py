"""A family as an HTML table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from hfta_nb.search.grid import AxisSpec, show


def shown(name: str, axes: Mapping[str, AxisSpec], every: Iterable[str], data: Sequence[str], help: str) -> str:
    """The axes of a family's models, each with its type, default and accepted values.

    Args:
        name, axes, data, help: see `Family`.
        every: names of all axes that a grid may have.
    """
    from hfta_nb.figures.html import table

    more = ", ".join(axis for axis in every if axis not in axes)
    suits = f"data: {', '.join(data)}" if data else ""
    notes = (help, suits, f"further axes: {more}")
    rows = [(a.name, a.type, show(a.default), _accepted(a), a.help) for a in axes.values()]
    return table(f"Family {name}", ("axis", "type", "default", "accepted", "what it is"), rows, notes)


def _accepted(axis: AxisSpec) -> str:
    if axis.choices:
        return ", ".join(map(show, axis.choices))
    low = f"above {show(axis.above)}" if axis.above is not None else ""
    low = low or (f"from {show(axis.low)}" if axis.low is not None else "")
    high = f"to {show(axis.high)}" if axis.high is not None else ""
    return " ".join(filter(None, [low, high]))
