"""What is asked of single members of a study while it runs: checked, planned, and told as their lineage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn

from hfta_nb.errors import StudyError
from hfta_nb.records import events as ev
from hfta_nb.records.events import Clone, Extend, Request, Set
from hfta_nb.records.history import History
from hfta_nb.search.grid import show
from hfta_nb.study import adding, definition_files
from hfta_nb.study.study_state import Added, StudyState
from hfta_nb.train.plan import Group
from hfta_nb.train.plan.building import Builder
from hfta_nb.train.status import anew
from hfta_nb.train.step import editing

if TYPE_CHECKING:
    import pandas

COLUMNS = ("member", "how", "parent", "start", "epoch", "step", "changes", "reason")


@dataclass(frozen=True)
class Owner:
    """A study as its run knows it; see `train.requested.Owner`."""

    study: StudyState

    def adopt(self, request: Clone, edits: Mapping[str, Any], source: tuple[Group, int]) -> list[Group]:
        study, [group, place] = self.study, source
        config = {**group.variants[place].config, **edits, **_checked(study, request)}
        one = Added(({**config},), request.key, request.variant, request.warm)
        planned = adding.planned_apart(study, one, study.plan_groups)
        if request.warm:
            mine, own = group.arguments[place], planned[0].arguments[0]
            why = None if mine == own else _unlike(study, group, place, planned[0])
            if why:
                remedy = "clone it cold: control.clone(..., warm=False)"
                raise StudyError(f"weights of another shape: {why}", where=f"clone #{request.variant}",
                                 got=dict(request.changes), remedy=remedy)  # fmt: skip
        study._take_clone(one)
        if study.store.exists:
            study.store.write_study(definition_files.describe(study))
        return planned

    def unmade(self, variants: Sequence[int]) -> dict[int, Clone]:
        found, number = {}, len(self.study.grid)
        for one in self.study.added:
            if one.parent is not None and one.warm and number in variants:
                changes = {k: v for k, v in one.variants[0].items() if self._config(one.parent).get(k) != v}
                found[number] = Clone(one.parent, changes, True, one.key)
            number += len(one.variants)
        return found

    def extend(self, epochs: int) -> None:
        self.study._extend(epochs)
        if self.study.store.exists:
            self.study.store.write_study(definition_files.describe(self.study))

    def _config(self, variant: int) -> Mapping[str, Any]:
        return next(v.config for v in self.study.variants if v.id == variant)


def _unlike(study: StudyState, group: Group, place: int, planned: Group) -> str:
    """What parameter or buffer of a clone has another shape than its source's, in words; empty where none has."""
    builder = Builder(study.family, study.data, shaped=True)
    mine = _shapes(builder.build(group.variants[place], group.arguments[place]))
    own = _shapes(builder.build(planned.variants[0], planned.arguments[0]))
    for name in [*mine, *(n for n in own if n not in mine)]:
        if mine.get(name) != own.get(name):
            return (
                f"{name} is {mine.get(name, 'not there')} in the source and {own.get(name, 'not there')} in the clone"
            )
    return ""


def _shapes(module: nn.Module) -> dict[str, list[int]]:
    return {name: list(t.shape) for name, t in [*module.named_parameters(), *module.named_buffers()]}


def _checked(study: StudyState, request: Clone | Set) -> dict[str, Any]:
    """The values of a request, each in its axis's type.

    Raises:
        GridError: an axis is unknown, or does not take its value.
    """
    family, data = study.family, study.data
    specs = family.specs_for(data, list(request.changes))
    for name in request.changes:
        if name not in specs:
            raise family.no_axis(name, data)
    if "fold" in request.changes and getattr(request, "warm", True):
        raise StudyError("its weights have seen what another fold holds out", where="fold", got=request.changes["fold"],
                         remedy="clone it cold: control.clone(..., warm=False)")  # fmt: skip
    return {name: specs[name].check_or_none(value) for name, value in request.changes.items()}


def check(study: StudyState, request: Request, history: History) -> None:
    """See that a request can be answered, as far as that is known before it is read.

    Args:
        study: that is run.
        request: for its run.
        history: of the run.

    Raises:
        StudyError: its variant is not there or has ended, or it can't be changed in this way.
        GridError: an axis is unknown, or does not take its value.
    """
    variant = getattr(request, "variant", None)
    if isinstance(request, ev.Prune) or (variant is None and not isinstance(request, Extend)):
        return
    what = f"{type(request).__name__.lower()} #{variant}"
    if variant is not None:
        known = list(history.members) or [v.id for v in study.variants]
        if variant not in known:
            raise StudyError("no such variant", where=what, got=variant, accepted=f"0 to {max(known)}")
        member = history.members.get(variant)
        ended = "" if member is None or member.state not in ev.FINAL_STATES else member.state
        cold = isinstance(request, Clone) and not request.warm
        if ended and not cold and not isinstance(request, ev.Stop | ev.Delete | ev.Pin):
            remedy = anew(type(request).__name__.lower(), ended)
            raise StudyError(f"has ended ({ended})", where=what, remedy=remedy)
    if isinstance(request, Clone | Set):
        _checked(study, request)
    if isinstance(request, Set):
        allowed = editing.changeable(study.family.phases)
        wrong = next((name for name in request.changes if name not in allowed), None)
        if wrong is not None:
            remedy = f"clone the member: control.clone({variant}, {wrong}=...)"
            raise StudyError("can't be changed while it trains", where=f"{what}, {wrong}", got=request.changes[wrong],
                             accepted=", ".join(allowed), remedy=remedy)  # fmt: skip


def lineage(study: StudyState) -> pandas.DataFrame:
    """See `Study.lineage`."""
    import pandas

    rows = [_row(event) for event in study.history.edits]
    found = pandas.DataFrame(rows, columns=list(COLUMNS))
    found["parent"] = found["parent"].astype("Int64")
    return found


def _row(event: ev.MemberEdited) -> dict[str, Any]:
    changes = ", ".join(f"{name}={show(value)}" for name, value in event.changes.items())
    start = "" if event.parent is None else "warm" if event.warm else "cold"
    place = {"epoch": event.epoch, "step": event.step}
    row = {"member": event.variant, "how": event.how, "parent": event.parent, "start": start}
    return row | place | {"changes": changes, "reason": event.reason}
