"""What a study would take on devices that one does not have yet."""

from __future__ import annotations

import math

from hfta_nb.data import Data
from hfta_nb.errors import StudyError
from hfta_nb.study.planning import array_name
from hfta_nb.study.study_state import StudyState
from hfta_nb.train.plan import Group
from hfta_nb.workers.fleet import Profile, Simulation, simulate
from hfta_nb.workers.fleet.rates import assumed


def simulated(study: StudyState, gpus: int, profile: Profile | None, price_per_device_h: float) -> Simulation:
    """See `Study.simulate`."""
    groups = {array_name(group.index): group for group in study.plan_groups}
    rates = {name: _rates(name, group, profile) for name, group in groups.items()}
    rounds = _rounds(study)
    samples = {name: study.epochs * rounds * _epoch_samples(study, group) for name, group in groups.items()}
    longest_first = sorted(groups, key=lambda name: -samples[name] / rates[name][0])
    in_order = {name: rates[name] for name in longest_first}
    # Arrays on devices of their own need not be of similar rate, as in `hfta_nb.pools.Terms`.
    return simulate(in_order, gpus, samples, delta=math.inf, price_per_device_h=price_per_device_h)


def _rounds(study: StudyState) -> float:
    """How often the members that are planned are trained at most: a search takes others in their places."""
    searcher = study.searcher
    if searcher is None or not searcher.foreseen:
        return 1.0
    return max(1.0, searcher.trials * searcher.each / len(searcher.foreseen))


def _rates(name: str, group: Group, profile: Profile | None) -> tuple[float, ...]:
    """Samples of the data a second, for all members of an array."""
    if profile is None:
        return (assumed(group.parameters, len(group.variants)),)
    found = profile.groups.get(name)
    if found is None:
        raise StudyError("the array was not measured", where="profile", got=name, accepted=", ".join(profile.groups),
                         remedy="measure this study: study.profile()")  # fmt: skip
    share = min(1.0, found.members / len(group.variants))  # members that don't fit have a turn of their own
    return tuple(rate * share for rate in found.rates)


def _epoch_samples(study: StudyState, group: Group) -> float:
    batch_size = int(group.rows[0]["batch_size"])
    if isinstance(study.data, Data) and not study.steps_per_epoch:
        fold = group.rows[0].get("fold")
        return len(study.data if fold is None else study.data.folds[fold].training)
    batches = study.steps_per_epoch or study.data.batches(batch_size)
    if not batches:
        raise StudyError("how many batches an epoch has is not known", where="steps_per_epoch",
                         got=study.steps_per_epoch, accepted="1, 2, 3, ...")  # fmt: skip
    return float(batches * batch_size)
