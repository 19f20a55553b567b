"""A study that was saved, made again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from hfta_nb.study import adding, keeping, populations, searching
from hfta_nb.study.study_state import StudyState

S = TypeVar("S", bound=StudyState)


def restored(make: Callable[..., S], options: dict[str, Any]) -> S:
    """The study of these options, with its search, its population method and what was added to it."""
    kept = options.pop("keep_checkpoints", keeping.BEST)
    study = make(**options)
    searching.restore(study)
    populations.restore(study)
    adding.restore(study)
    study.keep_checkpoints = keeping.kept_of(kept)  # now that it is known what has rungs
    return study
