"""The population method of a study."""

from __future__ import annotations

from typing import Any

from hfta_nb.errors import StudyError
from hfta_nb.search import CENTER, PBT, Halving, Leader, Rounds, population_from_json
from hfta_nb.study import arguments
from hfta_nb.study.study_state import StudyState
from hfta_nb.train.settings import Pulling
from hfta_nb.train.step import editing

METHODS = "hfta.PBT(...), hfta.Halving(...) or hfta.Leader(...)"


def taken(study: StudyState, given: Any) -> tuple[Rounds | None, Leader | None]:
    """The population method that a study was asked for: one that replaces members, or one that pulls them.

    Raises:
        StudyError, GridError: it can't be used.
    """
    if given is None:
        return None, None
    if not isinstance(given, PBT | Halving | Leader):
        raise StudyError("not a population method", where="population", got=given, accepted=METHODS)
    if study.searcher is not None:
        raise StudyError("a search has none", where="population", got=given,
                         remedy="leave out trials=..., and give the first members' values as a grid")  # fmt: skip
    if study.data.folds:
        raise StudyError("members of other folds have trained on what a member holds out", where="population",
                         got=given, remedy="leave out folds=..., or population=...")  # fmt: skip
    if isinstance(given, Leader):
        _check_leader(study, given)
        return None, given
    return _rounds(study, given), None


def _rounds(study: StudyState, given: PBT | Halving) -> Rounds:
    """With all that it needs to decide."""
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
        study.rounds, study.leader = taken(study, population_from_json(saved))


# Members that are pulled toward a leader.


def pulling_of(study: StudyState) -> Pulling | None:
    """How members are pulled; None where they are not."""
    given = study.leader
    if given is None:
        return None
    metric = None if given.leader == CENTER else given.leader
    together = given.global_pull if given.several else 0.0
    maximize = metric is not None and arguments.way_of(metric, _leads_by(study)[metric])
    return Pulling(given.pull, together, given.every, given.groups, metric, maximize)


def _leads_by(study: StudyState) -> dict[str, bool | None]:
    """The metrics by which a member may lead, and which way is better: of training, those with a value in each step."""
    metrics = study.family.metrics_for(study.data)
    found: dict[str, bool | None] = {"train_loss": False, "val_loss": False}
    found |= {f"train_{n}": m.maximizes for n, m in metrics.items() if m.finish is None and m.accumulator is None}
    if study.family.phases:  # in their training there are losses alone
        found = {"train_loss": False, "val_loss": False}
    return found | {f"val_{n}": m.maximizes for n, m in metrics.items()}


def _check_leader(study: StudyState, given: Leader) -> None:
    """See that members can be pulled, and that it is known who leads.

    Raises:
        StudyError: they can't.
    """
    if study.serial:
        raise StudyError("members that train one after another can't look at each other", where="population",
                         got=given, remedy="leave out serial=True")  # fmt: skip
    if study.devices > 1:
        raise StudyError("each of several devices would have leaders of its own", where="population, devices",
                         got=study.devices, accepted="1")  # fmt: skip
    if study.padding != "never":
        raise StudyError("members of one array must share an architecture", where="population, padding",
                         got=study.padding, remedy='leave out padding=..., or say padding="never"')  # fmt: skip
    if given.leader == CENTER:
        return
    known = _leads_by(study)
    if given.leader not in known:
        raise StudyError("nobody can lead by it", where="population, leader", got=given.leader,
                         accepted=", ".join([*known, CENTER]))  # fmt: skip
    arguments.way_of(given.leader, known[given.leader])
