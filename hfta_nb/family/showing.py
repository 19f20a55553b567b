"""A family as an HTML table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hfta_nb.grid import AxisSpec, show
from hfta_nb.html import table

if TYPE_CHECKING:
    from hfta_nb.family.recipe import Family


def shown(family: Family) -> str:
    """The axes of a family's models, each with its type, default and what it accepts."""
    more = ", ".join(name for name in family.specs if name not in family.axes)
    data = f"data: {', '.join(family.data)}" if family.data else ""
    notes = (family.help, data, f"further axes: {more}")
    rows = [(a.name, a.type, show(a.default), _accepted(a), a.help) for a in family.axes.values()]
    return table(f"Family {family.name}", ("axis", "type", "default", "accepted", "what it is"), rows, notes)


def _accepted(axis: AxisSpec) -> str:
    if axis.choices:
        return ", ".join(map(show, axis.choices))
    low = f"above {show(axis.above)}" if axis.above is not None else ""
    low = low or (f"from {show(axis.low)}" if axis.low is not None else "")
    high = f"to {show(axis.high)}" if axis.high is not None else ""
    return " ".join(filter(None, [low, high]))
