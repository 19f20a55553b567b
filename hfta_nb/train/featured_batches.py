"""Lets a group that trains take batches with cached features, as long as its frozen submodules stay as they are."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from hfta_nb.data import Data
from hfta_nb.engine.array.access import is_held_once, looked_at
from hfta_nb.errors import StudyError
from hfta_nb.models.recipes.preserve_rng import preserve_rng
from hfta_nb.records import events as ev
from hfta_nb.records.events import Event
from hfta_nb.train import features
from hfta_nb.train.batches import Batches, Hosted, Resident
from hfta_nb.train.consecutive import batches_of
from hfta_nb.train.features import FeatureCache, FeaturedData, Found
from hfta_nb.train.group_progress import Progress
from hfta_nb.train.plan import Group
from hfta_nb.train.schedule import Schedule
from hfta_nb.train.step import ArrayStep, Step


@dataclass
class Attached:
    """What was decided for the step of a group.

    Attributes:
        step: for which.
        found: the prefix whose outputs batches have; None for none.
        frozen: the parameters that they depend on, and whether members hold each once.
        pass_: the pass through the data in which that was last compared.
    """

    step: Step
    found: Found | None
    frozen: Sequence[tuple[Tensor, bool]]
    pass_: int

    @property
    def holds(self) -> bool:
        """Whether nothing that batches' features depend on is known to have changed."""
        return all(not p.requires_grad and is_held_once(p) >= once for p, once in self.frozen)


def attach(run: Progress) -> Iterator[Event]:
    """Decide, for a step that has not trained yet, whether its batches have features; compute these where it is first
    to need them.

    Raises:
        StudyError: what they depend on has changed since.
    """
    known: Attached | None = run.attached
    if known is not None and known.step is run.step:
        if known.found is not None and known.pass_ != run.pass_:
            _compare(run, known)
        return
    found, data = _decided(run)
    named = dict(run.step.array.named_parameters()) if isinstance(run.step, ArrayStep) else {}
    reads = () if found is None else found.prefix.reads
    frozen = [(p, len(p) > 1 and is_held_once(p)) for p in map(named.get, reads) if p is not None]
    run.attached = Attached(run.step, found, frozen, run.pass_)
    if found is not None or (known is not None and known.found is not None):
        run.source.close()
        run.source, run._stream = _source(run, data), None
    text = "" if found is None else found.shown(data)
    if text != run.group.features:
        run.group = replace(run.group, features=text, why_no_features="")
        run.trainer.replace(run.group, [run.group])
        yield ev.PlanMade(time.time(), run.trainer.records())


def check(run: Progress) -> None:
    """See after a step that it has changed nothing that features depend on.

    Raises:
        StudyError: it has.
    """
    if run.attached is not None and not run.attached.holds:
        raise _changed(run)


def _changed(run: Progress) -> StudyError:
    what, where = "a frozen submodule has changed, whose outputs are computed once", f"array {run.group.index}"
    remedy = 'Study(..., cache_features="never") computes them in each step'
    return StudyError(what, where=where, remedy=remedy)


def _compare(run: Progress, known: Attached) -> None:
    """Once in a pass, compute the features of the first samples again."""
    assert isinstance(run.step, ArrayStep)
    assert isinstance(run.data, Data)
    assert known.found is not None
    now = features.probed(known.found.prefix, looked_at(run.step.array, 0), run.data, run.settings)
    if not all(map(features.near, now, known.found.probe)):
        raise _changed(run)
    known.pass_ = run.pass_


def _decided(run: Progress) -> tuple[Found | None, Data | Any]:
    """The prefix of the group's members, and the data with its outputs; None, and the data as it is."""
    step, cache, given = run.step, FeatureCache(run.settings, run.trainer.features), run.data
    rows = [record.row for record in run.row_records]
    if not isinstance(step, ArrayStep) or run.trainer.prepare is not None or not isinstance(given, Data):
        return None, given
    found = features.hindrance(run.settings, rows) or cache.found(step.array, given)
    data = found if isinstance(found, str) else cache.data_for(found, step.array, given)
    return (None, given) if isinstance(found, str) or isinstance(data, str) else (found, data)


def _source(run: Progress, data: Any) -> Batches:
    s = run.settings
    if isinstance(data, FeaturedData):  # features keep their dtype on the device, which may be that of autocast
        resident = data.x.features[0].device.type == s.device.type
        source: Batches = (Resident if resident else Hosted)(data, run.batch_size, s.device, s.dtype)
    else:
        source = batches_of(data, run.batch_size, s.device, s.dtype)
    source.own, source.evaluated = s.refilled, s.validation_batch_size
    return source


def planned(trainer: Schedule, group: Group) -> Group:
    """The group with what its members' frozen submodules would compute once, or why nothing. Builds two members."""
    s = trainer.settings
    why = "trained without fusing" if group.serial else features.hindrance(s, group.rows)
    if not why and group.architectures > 1:
        why = "members of several architectures"
    if why or not isinstance(trainer.data, Data):
        return replace(group, why_no_features=why)

    def members() -> Iterator[Any]:
        for place in sorted({0, len(group.variants) - 1}):
            with preserve_rng() as drawn:
                drawn.manual_seed(group.variants[place].seed)
                module = trainer.module(group, group.arguments[place])
            yield module

    found = features.common_prefix(members(), trainer.data, s)
    if isinstance(found, Found) and not features.placed_where(found.prefix, trainer.data, s):
        found = features.no_room(found.prefix, trainer.data)
    if isinstance(found, str):
        return replace(group, why_no_features=found)
    return replace(group, features=found.shown(trainer.data))
