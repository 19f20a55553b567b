"""The population method of a study."""

from __future__ import annotations

from typing import Any

from hfta_nb.errors import StudyError
from hfta_nb.search import PBT, Halving, Rounds, population_from_json
from hfta_nb.study.study_state import StudyState
from hfta_nb.train.step import editing


def rounds_of(study: StudyState, given: Any) -> Rounds | None:
    """The population method that a study was asked for, with all that it needs to decide; None for none.

    Raises:
        StudyError, GridError: it can't be used.
    """
    if given is None:
        return None
    if not isinstance(given, PBT | Halving):
        raise StudyError("not a population method", where="population", got=given,
                         accepted="hfta.PBT(...) or hfta.Halving(...)")  # fmt: skip
    if study.searcher is not None:
        raise StudyError("a search has none", where="population", got=given,
                         remedy="leave out trials=..., and give the first members' values as a grid")  # fmt: skip
    if given.every % study.validate_every:
        raise StudyError("a round needs the values of a validation", where="population, every", got=given.every,
                         accepted=f"a multiple of validate_every, {study.validate_every}")  # fmt: skip
    allowed = editing.changeable(study.family.phases)
    specs = study.family.specs_for(study.data, list(given.perturb))
    for name, how in given.perturb.items():
        if name not in specs:
            raise study.family.no_axis(name, study.data)
        if name not in allowed:
            raise StudyError("can't be changed while a member trains", where="population, perturb", got=name,
                             accepted=", ".join(allowed))  # fmt: skip
        if isinstance(how, tuple) and specs[name].type not in ("float", "int"):
            raise StudyError("can't be multiplied", where=f"population, perturb, {name}", got=how,
                             remedy="give values to choose from, as a list")  # fmt: skip
        for value in how if isinstance(how, list) else ():
            specs[name].check_or_none(value)
    return Rounds(given, {name: specs[name] for name in given.perturb}, study.seed)


def restore(study: StudyState) -> None:
    """Take in the population method of the study on disk."""
    saved = study.store.read_study().get("population")
    if saved is not None:
        study.rounds = rounds_of(study, population_from_json(saved))
