"""What of a group's run is in its checkpoint."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hfta_nb.train.group import GroupRun


def state_of(run: GroupRun, ids: Sequence[int] | None = None) -> dict[str, Any]:
    """All that is needed to carry on: a tree of tensors and plain data; of these members alone, if given."""
    step, scores, kept = run.step, run.scores, list(run.members.ids)
    if ids is not None:
        places = [i for i, v in enumerate(kept) if v in ids]
        step, scores, kept = step.select(places), copy.deepcopy(scores), list(ids)
        scores.select(places)
    return {
        "epoch": run.epoch,
        "batch": run.batch,
        "steps": run.steps,
        "pass": run.pass_,
        "place": run.place,
        "told": run.told,
        "ending": run.ending,
        "ids": kept,
        "scores": scores.state(),
        "members": run.members.state(ids),
        "step": step.state(),
    }


def load(run: GroupRun, state: Mapping[str, Any]) -> None:
    """Carry on from what `state_of` gave, with the members that are in it."""
    keep = [i for i, v in enumerate(run.group.variants) if v.id in state["ids"]]
    run.step = run.step.select(keep)
    run.scores.select(keep)
    run.step.load_state(state["step"])
    run.members.load(state["members"], state["ids"])
    run.epoch, run.batch, run.told = int(state["epoch"]), int(state["batch"]), int(state["told"])
    run.steps, run.pass_, run.place = int(state["steps"]), int(state["pass"]), int(state["place"])
    run.ending = bool(state.get("ending", False))
    run.scores.load_state(state["scores"])
