"""Which weights of members a study keeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hfta_nb import search
from hfta_nb.errors import StudyError
from hfta_nb.study.study_state import StudyState

BEST, LAST, RUNGS = "best", "last", "rungs"
KINDS = (BEST, LAST, RUNGS)


def kept_of(given: Any) -> tuple[str, ...]:
    """The kinds of weights that are kept, in one order.

    Raises:
        StudyError: one is not known, or the best are not among them.
    """
    listed = [given] if isinstance(given, str) else given
    accepted = ", ".join(map(repr, KINDS))
    if not isinstance(listed, Sequence) or not all(isinstance(kind, str) and kind in KINDS for kind in listed):
        raise StudyError("not known", where="keep_checkpoints", got=given, accepted=f"a list of {accepted}")
    if BEST not in listed:
        remedy = f"say keep_checkpoints={[BEST, *listed]!r}"
        raise StudyError("the best weights are always kept", where="keep_checkpoints", got=given, remedy=remedy)
    return tuple(kind for kind in KINDS if kind in listed)


def checked(study: StudyState, given: Any) -> tuple[str, ...]:
    """As `kept_of`, for a study whose search and population are known.

    Raises:
        StudyError: as there; or weights are to be kept at rungs, and nothing of the study has any.
    """
    found = kept_of(given)
    if RUNGS in found and study.rounds is None:
        pruner = None if study.searcher is None else study.searcher.pruner
        if pruner is None or not search.has_rungs(pruner, study.epochs):
            accepted = 'pruner="asha" or "hyperband", or a population'
            own = (
                'give the pruner numbers for min_resource and max_resource: with "auto" its rungs are not known before'
            )
            remedy = "" if pruner is None or isinstance(pruner, str) else own
            raise StudyError("nothing decides at rungs", where="keep_checkpoints", got=RUNGS, accepted=accepted,
                             remedy=remedy)  # fmt: skip
    return found


def rungs(study: StudyState) -> frozenset[int]:
    """Epochs after which a member's weights are kept: the first with a validation at or after each rung."""
    if RUNGS not in study.keep_checkpoints:
        return frozenset()
    found: list[int] = []
    if study.searcher is not None:
        found += search.rungs_of(study.searcher.pruner, study.epochs)
    if study.rounds is not None:
        found += search.rounds_at(study.rounds.method, study.epochs)
    every = study.validate_every
    return frozenset(epoch for rung in found if (epoch := -(-rung // every) * every) < study.epochs)
