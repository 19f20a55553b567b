"""A simulation on the screen: its chart, its table, and one line. Without measured rates it has no times."""

from __future__ import annotations

import base64

from hfta_nb import figures, fleet
from hfta_nb.ui.text import clock, count, escape, table

_DPI = 100
"""Pixels of the page per inch; the picture itself has twice as many, for dense screens."""

_NAMES = {"best": "best rounds", "one shared stream": "all in step"}

NO_UNIT = "time, without a unit"


def fastest_of(found: fleet.Simulation) -> str:
    """The way that takes the least time; the first of several."""
    return min(found.plans, key=lambda way: found.plans[way].makespan_s)


def label(way: str) -> str:
    """What a way is called on the screen: "best" is the best plan of rounds, which another way may beat."""
    return _NAMES.get(way, way)


def chart(found: fleet.Simulation, way: str, measured: bool) -> str:
    """The Gantt chart of one way, as markup."""
    plan = found.plans[way]
    figure = figures.gantt(plan)
    if not measured:
        axes = figure.axes[0]
        axes.set_xticks([])
        axes.set_xlabel(NO_UNIT)
    arrays = len({name for flotilla in plan.flotillas for name in flotilla.devices})
    how_long = f" in {duration(plan.makespan_s)}" if measured else ""
    alt = f"Gantt chart, {label(way)}: {count(arrays, 'array')} on {count(plan.gpus, 'device')}{how_long}"
    data = base64.b64encode(figures.png(figure, 2 * _DPI)).decode()
    width = round(figure.get_figwidth() * _DPI)
    image = f'<img src="data:image/png;base64,{data}" width="{width}" alt="{escape(alt)}">'
    return f'<div class="hfta-simulate-way">{escape(label(way))}</div>{image}'


def ways(found: fleet.Simulation, measured: bool, price: float | None) -> str:
    """The figures of all ways, as markup.

    Args:
        found: a simulation.
        measured: whether its rates were measured, so that it has times and costs.
        price: of one device for an hour; None or 0 for no costs.
    """
    alone_s, fastest = next(iter(found.plans.values())).makespan_s, fastest_of(found)
    head = ["way", "speedup", "devices compute", "devices held", "rounds"]
    if measured:
        head = [head[0], "takes", *head[1:], "device-hours", *(["cost"] if price else [])]
    rows = []
    for way, plan in found.plans.items():
        how = f" ({plan.method})" if way == "best" else ""
        name = label(way) + how + (", fastest" if way == fastest else "")
        row = [name, f"{alone_s / plan.makespan_s:.2f}x", f"{plan.utilization:.0%}", f"{plan.occupancy:.0%}"]
        row.append(str(len(plan.flotillas)))
        if measured:
            hours = plan.gpus * plan.makespan_s / 3600
            row = [row[0], duration(plan.makespan_s), *row[1:], f"{hours:.3g}"]
            row += [f"{plan.cost(price):.3g}"] if price else []
        rows.append(row)
    return table(head, rows, "hfta-simulate-table", numbers=range(1, len(head)))


def summary(found: fleet.Simulation, measured: bool) -> str:
    """The result in one line."""
    fastest = fastest_of(found)
    plan, alone = found.plans[fastest], next(iter(found.plans.values()))
    assumed = f"{label(fastest)} is fastest (rates are assumed)"
    said = f"{duration(plan.makespan_s)} ({label(fastest)})" if measured else assumed
    return f"{count(plan.gpus, 'device')}: {said}, {alone.makespan_s / plan.makespan_s:.2f}x one array per device"


def duration(seconds: float) -> str:
    """``0.37 s``, ``8.2 s``, ``0:41``, ``1:02:03``."""
    return f"{seconds:.2g} s" if seconds < 10 else clock(seconds)
