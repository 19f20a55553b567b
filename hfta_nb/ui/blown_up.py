"""Members whose loss is finite and hopeless."""

from __future__ import annotations

import math
import statistics

from hfta_nb import events as ev
from hfta_nb.records.history import Curve, History, Member

_TIMES = 10.0


def blown_up(history: History) -> dict[int, str]:
    """Why members count as blown up, by id: their last training loss is beyond ten times the one that members begin at.

    The state of such a member stays what it is (a loss may fall again); DIVERGED is one whose loss is not finite.
    """
    losses = {m.id: ends for m in history.members.values() if (ends := _ends(m))}
    begin = statistics.median(first for first, _ in losses.values()) if losses else 0.0
    most = begin + (_TIMES - 1) * abs(begin)
    return {
        i: f"blown up: its training loss is {last:.3g}, members begin at {begin:.3g}"
        for i, (_, last) in losses.items()
        if last > most and begin and history.members[i].state != ev.DIVERGED
    }


def _ends(member: Member) -> tuple[float, float] | None:
    """The first and the last finite training loss; None where there is none."""
    values = member.curves.get("train_loss", Curve()).values
    first = next(filter(math.isfinite, values), None)
    last = next(filter(math.isfinite, reversed(values)), None)
    return None if first is None or last is None else (first, last)
