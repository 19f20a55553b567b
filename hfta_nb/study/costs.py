"""What a variant costs: parameters, seconds, memory."""

from __future__ import annotations

from hfta_nb.study.study_state import StudyState
from hfta_nb.train.plan import Builder


def of(study: StudyState, variant: int) -> dict[str, float]:
    """By name as in `hfta_nb.search.COSTS`; NaN where it isn't known."""
    history = study.run_state.history
    member = history.members[variant]
    memory_bytes, _ = history.memory_of(member)
    return {
        "parameters": float(parameters(study, variant)),
        "time_s": member.time_s,
        "memory_bytes": memory_bytes,
    }


def parameters(study: StudyState, variant: int) -> int:
    """How many parameters a variant's module has, padding left out."""
    group, place = next((g, i) for g in study.plan_groups for i, v in enumerate(g.variants) if v.id == variant)
    if group.architectures == 1:
        return group.parameters
    builder = Builder(study.family, study.data)
    return builder.count(builder.build(group.variants[place], group.arguments[place])) or group.parameters
