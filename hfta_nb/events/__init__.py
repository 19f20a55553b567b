"""Frozen records of what happened in a run, the requests a person may post, and the mailbox between.

These are the only two seams of a run: events come out (an iterator of `Event`) and requests go
in (`Control`). Both are plain data with a JSON form in both directions, so that a live view, a
log file and the replay of a finished run are fed by the same code. No tensors, modules or
widgets cross them.
"""

from __future__ import annotations

from hfta_nb.events.coding import from_json, kinds, to_json
from hfta_nb.events.records import (
    COMPLETE,
    DIVERGED,
    FAILED,
    FINAL_STATES,
    PAUSED,
    PRUNED,
    RUNNING,
    STOPPED,
    WAITING,
    ArrayHalved,
    CheckpointSaved,
    DeviceSampled,
    DifferenceFound,
    EpochDone,
    Event,
    ForwardTried,
    GroupRecord,
    Heartbeat,
    Json,
    MemberChanged,
    MemberChecked,
    MemberImproved,
    MemoryMeasured,
    PhaseChanged,
    PlanMade,
    RunChanged,
    RunStarted,
    SpeedMeasured,
    StepsDone,
    VariantRecord,
    tuples,
)
from hfta_nb.events.requests import Add, Control, Pause, Request, Resume, Stop

__all__ = [
    "COMPLETE",
    "DIVERGED",
    "FAILED",
    "FINAL_STATES",
    "PAUSED",
    "PRUNED",
    "RUNNING",
    "STOPPED",
    "WAITING",
    "Add",
    "ArrayHalved",
    "CheckpointSaved",
    "Control",
    "DeviceSampled",
    "DifferenceFound",
    "EpochDone",
    "Event",
    "ForwardTried",
    "GroupRecord",
    "Heartbeat",
    "Json",
    "MemberChanged",
    "MemberChecked",
    "MemberImproved",
    "MemoryMeasured",
    "Pause",
    "PhaseChanged",
    "PlanMade",
    "Request",
    "Resume",
    "RunChanged",
    "RunStarted",
    "SpeedMeasured",
    "StepsDone",
    "Stop",
    "VariantRecord",
    "from_json",
    "kinds",
    "to_json",
    "tuples",
]
