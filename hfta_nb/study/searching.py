"""A study whose variants come from a search: trials that are asked for while it runs, and pruned."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from hfta_nb.errors import GridError, HftaError, SearchError, StoreError, StudyError
from hfta_nb.models.study_config import ARGUMENTS, StudyConfig
from hfta_nb.records import events as ev
from hfta_nb.records.events import Control, Event, Json
from hfta_nb.search import Home, Mirror, Searcher, Trial, Uniform, enqueued, extremes, is_space, searcher_from_json
from hfta_nb.search.grid import Grid, configurations
from hfta_nb.study import adding, costs
from hfta_nb.study.study_state import Added, StudyState
from hfta_nb.train.pending_group import Joining
from hfta_nb.train.plan import Group

FILE = "optuna.log"
"""A copy of the trials in Optuna's format, beside the run's own files."""

TRIAL = "trial"
"""Facts of this kind are the trials. Each change is written before anything follows from it."""

_KEY = "trials"
"""What is added for trials has a key of this word and their numbers, so that they are added once."""

SLOTS = 16
"""Trials that train at the same time, where nobody says how many."""


def searcher_of(given: Any, config: StudyConfig, study: StudyState) -> Searcher | None:
    """The search that a study was asked for; None where its grid is trained as it is.

    Args:
        given: the study's grid, or search space.
        config: its arguments.
        study: of which epochs, objectives and seed are known.

    Raises:
        StudyError, SearchError: they can't be used, or don't go together.
    """
    if config.trials is None:
        if is_space(given):
            raise StudyError("a search space needs a number of trials", where="trials", got=None,
                             accepted="1, 2, 3, ...; for example trials=64")  # fmt: skip
        for name, known in ARGUMENTS.items():
            if not known.search or (value := getattr(config, name)) == known.default:
                continue
            remedy = "give the number of trials as well, for example trials=64"
            remedy += "; for a limit of each member give member_seconds" if name == "timeout" else ""
            raise StudyError("belongs to a search", where=name, got=value, remedy=remedy)
        return None
    if not (isinstance(given, Mapping) or is_space(given)) or not given:
        accepted = "a dict of axes, or a function of an Optuna trial"
        remedy = "a function can choose among grids: lambda t: grid_a(t) if t.suggest_categorical('grid', 'ab') == 'a' "
        remedy = f"{remedy}else grid_b(t)" if isinstance(given, list) and given else ""
        raise SearchError("not a search space", where="grid", got=given, accepted=accepted, remedy=remedy)
    trials, slots = config.trials, config.slots or min(config.trials, SLOTS)
    sampler = "tpe" if config.sampler is None else config.sampler
    pruner = "none" if config.pruner is None else config.pruner
    home = None if config.storage is None else Home(config.storage, study.name)
    found = Searcher(given, trials, slots, sampler, pruner, epochs=study.epochs, monitor=study.objectives[0],
                     seed=study.seed, constraint=config.constraint, others=study.objectives[1:], home=home,
                     seeds_by=study.seeds_by, skip_duplicates=config.skip_duplicates,
                     timeout_s=config.timeout, folds=range(len(study.data.folds)))  # fmt: skip
    axes: Any = found.space  # without the seeds
    _check_axes({**given, **axes} if isinstance(given, Mapping) else given, study)
    return found


def _check_axes(space: Any, study: StudyState) -> None:
    """See that axes take what may be drawn, as far as that is known: later a trial with a wrong value is not trained.

    Raises:
        GridError: an axis is unknown, or does not take a value of its list or an end of its interval.
    """
    found = extremes(space)
    specs = study.family.specs_for(study.data, list(found))
    for name, values in found.items():
        if name not in specs:
            raise study.family.no_axis(name, study.data)
        for value in values:
            specs[name].check_or_none(value)
        axis = space[name]
        if specs[name].type == "int" and isinstance(axis, Uniform) and (axis.step is None or axis.step % 1):
            raise GridError("not an interval of whole numbers", where=name, got=axis, accepted="whole numbers",
                            remedy=f"say hfta.integers({axis.low:g}, {axis.high:g})")  # fmt: skip


def for_trials(one: Added) -> bool:
    """Whether variants were added for trials of the search."""
    return one.key.partition(" ")[0] == _KEY


def first(study: StudyState) -> None:
    """Ask for the trials that train first, in place of those that were foreseen; enqueued trials come first.

    Raises:
        SearchError: none of them can be trained.
    """
    searcher = study.searcher
    if searcher is None or searcher.numbers:
        return
    beside = study.grid.listed[len(searcher.foreseen) :]
    found: list[dict[str, Any]] = []
    while searcher.free > 0:
        for trial in _plannable(study, searcher, searcher.ask(searcher.free)):
            configs = searcher.configurations(trial)
            searcher.started(trial, range(len(found), len(found) + len(configs)))
            found += configs
    if not found:
        why = next(iter(searcher.refusals.values()), "the time is up")
        raise SearchError(f"none of the trials can be trained: {why}", where="the search", got=searcher.trials,
                          accepted="a space of which some configurations can be trained")  # fmt: skip
    if found != searcher.foreseen:
        grid = Grid.of([*found, *beside])
        study.plan_groups, study.grid, searcher.foreseen = adding.planned(study, grid), grid, found


def _plannable(study: StudyState, searcher: Searcher, trials: Sequence[Trial]) -> list[Trial]:
    """Those of the trials that can be trained; the others are refused."""
    found = []
    for trial in trials:
        configs = searcher.configurations(trial)
        known = all(config in study.grid.listed for config in configs)
        if why := "" if known else _fault(study, configs):
            searcher.refused(trial, why)
        else:
            found.append(trial)
    return found


def _fault(study: StudyState, configs: list[dict[str, Json]]) -> str:
    """Why a trial's members can't be trained; empty where they can."""
    try:
        adding.planned(study, Grid.of(configs))
    except HftaError as error:
        return error.message
    return ""


def planned(study: StudyState) -> tuple[Grid, list[Group]]:
    """The grid and its groups; without those of a search's first trials that can't be trained, which fail alone.

    Raises:
        HftaError: none of all trials can be trained, or the study is no search.
    """
    try:
        return study.grid, adding.planned(study, study.grid)
    except HftaError:
        found = [] if study.searcher is None else study.searcher.preview(lambda configs: _fault(study, configs))
        if not found:
            raise
        grid = Grid.of(found)
        return grid, adding.planned(study, grid)


def adopt(study: StudyState) -> None:
    """Take the first trials of the run in the directory, where they were not those that are foreseen.

    They are others where some were enqueued, or where other processes search in the same storage.
    """
    searcher, kept = study.searcher, study.store.read_study()
    listed = kept.get("variants", [])
    if searcher is None or listed == json.loads(json.dumps(study.grid.listed)):
        return
    trials = study.store.notes(TRIAL).values()
    if searcher.home.shared or any(enqueued.FIXED in body.get("system", ()) for body in trials):
        study.grid = Grid.of(configurations(listed))
        study.plan_groups = adding.planned(study, study.grid)
        study.added.clear()  # it is read again, after these


def _cost(study: StudyState, variant: int, name: str) -> float:
    return costs.of(study, variant)[name]


def begin(study: StudyState, resumed: bool) -> None:
    """Keep the search in the run's directory, and take up what is there.

    Raises:
        StudyError: a run that was a search is resumed without its space.
    """
    searcher = study.searcher
    kept = study.store.notes(TRIAL)
    if searcher is None:
        if kept or (study.directory / FILE).exists():
            remedy = "make the study again, with the same arguments and directory=..., and run(resume=True)"
            what = "the search's space, sampler, pruner or constraint is code, which is not loaded"
            raise StudyError(what, where=str(study.directory), remedy=remedy)
        return
    mirror = Mirror(study.directory / FILE)
    if kept:
        searcher.take_up(kept)
    else:
        searcher.touch()
    searcher.begin()
    searcher.epochs = study.epochs
    searcher.cost = partial(_cost, study)
    study.run_state.mirror = mirror
    if resumed:
        _reclaim(study, searcher)
        for event, _ in study.store.events():
            searcher.recall(event)
        searcher.recalled()
    _keep(study, searcher)
    if not searcher.home.shared:  # a dashboard opens that storage itself
        mirror.begin(searcher.optuna)
    if resumed:
        study.run_state.running += 1  # nobody else runs it: what is added here is added by the run
        try:
            _add(study, searcher, searcher.waiting)
            while (
                searcher.idle
                and searcher.free
                and not _add(study, searcher, _requested(study, searcher, searcher.free))
            ):
                pass
        finally:
            study.run_state.running -= 1


def _reclaim(study: StudyState, searcher: Searcher) -> None:
    """Give trials their members where the process was killed between adding these and saying whose they are."""
    waiting = {trial.number: trial for trial in searcher.waiting}
    first = len(study.variants) - sum(len(one.variants) for one in study.added)
    for one in study.added:
        numbers = one.key.split()[1:]
        if for_trials(one):
            each = len(one.variants) // len(numbers)
            for place, number in enumerate(map(int, numbers)):
                if number in waiting:
                    begin = first + place * each
                    searcher.started(waiting[number], range(begin, begin + each))
        first += len(one.variants)


def _keep(study: StudyState, searcher: Searcher) -> None:
    """Write what has changed of the trials: into the database, in one go, and then into the copy."""
    changed = searcher.changes()
    if not changed:
        return
    study.store.note(TRIAL, changed, lasting=False)
    study.run_state.mirror.follow(searcher.optuna, [int(key) for key in changed if key.isdecimal()])


def end(study: StudyState) -> None:
    """Bring the copy of the trials up to date, as no more events come."""
    if study.searcher is not None:
        study.run_state.mirror.write(study.searcher.optuna)


def restore(study: StudyState) -> None:
    """Take in the search of the study on disk, unless a part of it is code."""
    saved = study.store.read_study().get("search")
    if saved is not None:
        study.searcher = searcher_from_json(saved, study.epochs, study.objectives[0], study.objectives[1:])
        study.seeds_by = study.searcher.seeds_by
        look(study)
        study.searcher.foreseen = study.searcher.preview()
        if study.store.has_events:  # whose trials were lost, unless there are numbers
            first(study)


def look(study: StudyState) -> None:
    """Read the trials of a search that another process runs, or has run."""
    searcher = study.searcher
    if searcher is None or study.run_state.running or not study.store.exists:
        return
    kept = study.store.notes(TRIAL)
    if kept:
        searcher.take_up(kept)


def _report(study: StudyState, searcher: Searcher) -> None:
    """Call the callbacks of trials with those that have ended since the last time.

    `optuna.Study.stop` works in them: no more trials are asked for.
    """
    ended, searcher.ended = searcher.ended, []
    for number in ended if study.run_state.on_trial else ():
        with searcher.stoppable():
            for callback in study.run_state.on_trial:
                callback(searcher.optuna, searcher.optuna.trials[number])


def infeasible(study: StudyState) -> set[int]:
    """The variants of trials that violate a constraint which was set by `optuna.trial.Trial.set_constraint`."""
    look(study)
    return set() if study.searcher is None else study.searcher.infeasible


def more(study: StudyState) -> bool:
    """Whether more trials are asked for now than were tried."""
    look(study)
    return study.searcher is not None and study.searcher.wanted > 0


def optuna_study(study: StudyState) -> Any:
    """See `Study.optuna`."""
    searcher = study.searcher
    if searcher is None:
        remedy = "say how many configurations to try: Study(..., trials=64)"
        raise StudyError("the study is no search", where=study.name, remedy=remedy)
    look(study)
    return searcher.optuna


def follow(study: StudyState, control: Control, event: Event) -> None:
    """Prune and ask for trials after an event."""
    searcher, trainer = study.searcher, study.run_state.trainer
    if searcher is None or trainer is None or trainer.stopped:
        return
    requests = searcher.saw(event)
    _keep(study, searcher)
    _report(study, searcher)
    for request in requests:
        control.post(request)
    if isinstance(event, ev.SlotsFreed) and trainer.joiner is not None:
        _fill(study, searcher, trainer.joiner)
    ended = isinstance(event, ev.MemberChanged) and event.state in ev.FINAL_STATES
    if ended and not study.run_state.history.count(ev.RUNNING):
        while searcher.free and not _add(study, searcher, _requested(study, searcher, searcher.free)):
            pass


def _fill(study: StudyState, searcher: Searcher, joiner: Joining) -> None:
    """Ask for as many trials as may join the array; of those that can't, as many as there are slots may wait."""
    each = searcher.each
    while searcher.left:
        wanted = (joiner.free - joiner.look()) // each
        count = min(wanted, searcher.left, searcher.slots - joiner.waiting // each)
        if count <= 0:
            return
        _add(study, searcher, _requested(study, searcher, count))


def _requested(study: StudyState, searcher: Searcher, count: int) -> list[Trial]:
    """The next trials, which are on the disk before anything is done with them."""
    found = searcher.ask(count)
    _keep(study, searcher)
    return found


def _add(study: StudyState, searcher: Searcher, trials: Sequence[Trial]) -> int:
    """Train these trials as well; how many can be."""
    if not trials:
        return 0
    count = len(trials)
    try:
        _added(study, searcher, trials)
    except StoreError:
        raise
    except HftaError:
        count = 0
        for trial in trials:
            try:
                _added(study, searcher, [trial])
                count += 1
            except StoreError:
                raise
            except HftaError as error:
                searcher.refused(trial, error.message)
    _keep(study, searcher)
    return count


def _added(study: StudyState, searcher: Searcher, trials: Iterable[Trial]) -> None:
    configs = [(trial, config) for trial in trials for config in searcher.configurations(trial)]
    key = " ".join([_KEY, *dict.fromkeys(str(trial.number) for trial, _ in configs)])
    ids = adding.add(study, [config for _, config in configs], key)
    for trial in dict.fromkeys(trial.number for trial, _ in configs):
        members = [id for id, (one, _) in zip(ids, configs, strict=True) if one.number == trial]
        searcher.started(next(one for one, _ in configs if one.number == trial), members)
