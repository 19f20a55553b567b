"""Is a member what it would have been alone?"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from hfta_nb import events as ev
from hfta_nb.errors import StudyError
from hfta_nb.events import Control, Event
from hfta_nb.grid import Variant
from hfta_nb.history import History
from hfta_nb.plan import Group
from hfta_nb.study.arguments import positive
from hfta_nb.train import Trainer

if TYPE_CHECKING:
    from hfta_nb.study.study import Study

TOLERANCES = {"float64": 1e-8, "float32": 2e-3}
"""Largest difference of two loss curves that counts as equal.

In float32 rounding alone drives runs apart, faster behind batch norm and Adam, so only the first `COMPARED_EPOCHS` are
compared unless asked otherwise; a sharp comparison is made in float64.
"""

COMPARED_EPOCHS = 5


def check_member(study: Study, variant: Variant, epochs: int | None) -> Iterator[Event]:
    """Retrain a variant alone and compare; see `Study.check_events`."""
    member = study.history.members.get(variant.id)
    done = member.epoch if member else 0
    name = str(study.dtype).removeprefix("torch.")
    most = done if name == "float64" else min(done, COMPARED_EPOCHS)
    count = most if epochs is None else min(positive("epochs", epochs), done)
    if member is None or not count:
        raise StudyError("has no epoch to compare yet", where=variant.label, remedy="run the study first")
    place = next((g, g.variants.index(v)) for g in study.plan_groups for v in g.variants if v.id == variant.id)
    alone = _alone(*place)
    twin = History()
    twin.add(study.started(False))
    # Lengths of lr schedules are those of the whole run, so the twin is stopped after `count` epochs instead.
    for event in Trainer(study.settings(), [alone], Control()):
        twin.add(event)
        yield ev.Heartbeat(time.time())
        if isinstance(event, ev.EpochDone) and event.epoch == count:
            break
    differences = {}
    for metric in study.metrics:
        pairs = zip(member.curves[metric].values[:count], twin.members[variant.id].curves[metric].values, strict=True)
        differences[metric] = max(_apart(a, b) for a, b in pairs)
    tolerance = TOLERANCES[name]
    equal = all(d <= tolerance for m, d in differences.items() if m.endswith("_loss"))
    event = ev.MemberChecked(time.time(), variant.id, count, differences, tolerance, equal)
    yield event


def row_of(found: ev.MemberChecked) -> dict[str, Any]:
    """What was found, as a row of a table."""
    ends = {"tolerance": found.tolerance, "equal": found.equal}
    return {"member": found.variant, "epochs": found.epochs, **found.differences, **ends}


def _apart(a: float, b: float) -> float:
    # Both lost in the same way is equal; one alone is not.
    return 0.0 if a == b or (math.isnan(a) and math.isnan(b)) else abs(a - b)


def _alone(group: Group, index: int) -> Group:
    """A group of one of the group's variants, to be trained as a plain module."""
    return Group(
        0,
        (group.variants[index],),
        (group.rows[index],),
        (group.arguments[index],),
        "",
        group.parameters,
        group.memory_bytes,
        serial=True,
    )
