"""A study whose variants come from a search: trials that are asked for while it runs, and pruned."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hfta_nb import events as ev
from hfta_nb.errors import HftaError, SearchError, StudyError
from hfta_nb.events import Control, Event
from hfta_nb.grid import Grid
from hfta_nb.search import Searcher, Trial, heard, is_space
from hfta_nb.study import adding
from hfta_nb.study.arguments import positive
from hfta_nb.study.protocol import Study
from hfta_nb.train.joining import Joiner

FILE = "optuna.log"
"""Optuna's journal of the trials, beside the run's own files."""

SLOTS = 16
"""Trials that train at the same time, where nobody says how many."""

_METHODS: dict[str, Any] = {"sampler": "tpe", "pruner": "none"}


def searcher_of(
    given: Any, asked: Mapping[str, Any], epochs: int, monitor: tuple[str, bool], seed: int
) -> Searcher | None:
    """The search that a study was asked for; None where its grid is trained as it is.

    Args:
        given: the study's grid, or search space.
        asked: its arguments trials, slots, sampler, pruner and constraint; None for those that were not given.

    Raises:
        StudyError, SearchError: they can't be used, or don't go together.
    """
    if asked["trials"] is None:
        if is_space(given):
            raise StudyError("how many configurations are tried is missing", where="trials", got=None,
                             accepted="1, 2, 3, ...", remedy="say trials=64, for example")  # fmt: skip
        extra = [name for name, value in asked.items() if value is not None]
        if extra:
            raise StudyError("belongs to a search", where=extra[0], got=asked[extra[0]],
                             remedy="say how many configurations to try: trials=64, for example")  # fmt: skip
        return None
    if not (isinstance(given, Mapping) or is_space(given)) or not given:
        accepted = "a dict of axes, or a function of an Optuna trial"
        raise SearchError("not a search space", where="grid", got=given, accepted=accepted)
    trials = positive("trials", asked["trials"])
    slots = min(trials, SLOTS) if asked["slots"] is None else positive("slots", asked["slots"])
    methods = {name: asked[name] or default for name, default in _METHODS.items()}
    return Searcher(given, trials, slots, **methods, epochs=epochs, monitor=monitor, seed=seed,
                    constraint=asked["constraint"])  # fmt: skip


def first(searcher: Searcher) -> Grid:
    """The grid of the trials that train first."""
    listed: list[Any] = []
    for trial in searcher.ask(searcher.slots):
        configs = searcher.configurations(trial)
        searcher.started(trial, range(len(listed), len(listed) + len(configs)))
        listed += configs
    return Grid.of(listed)


def begin(study: Study, resumed: bool) -> None:
    """Keep the search in the run's directory, and take up what is there.

    Raises:
        StudyError: a run that was a search is resumed without its space.
    """
    searcher = study.searcher
    if searcher is None:
        if (study.directory / FILE).exists():
            remedy = "make the study again, with the same arguments and directory=..., and run(resume=True)"
            what = "the search's space, sampler, pruner or constraint is code, which is not loaded"
            raise StudyError(what, where=str(study.directory), remedy=remedy)
        return
    searcher.keep(study.directory / FILE)
    searcher.epochs = study.epochs
    if resumed:
        for event, _ in study.store.events():
            searcher.recall(event)
        _add(study, searcher, searcher.waiting)
        if searcher.free == searcher.slots:
            _add(study, searcher, searcher.ask(searcher.slots))


def restore(study: Study) -> None:
    """Take in the search of the study on disk, unless a part of it is code."""
    asked = study.store.read_study().get("search")
    if asked is not None:
        study.searcher = heard(asked, study.epochs, (study.monitor, study.maximize))


def optuna_study(study: Study) -> Any:
    """See `Study.optuna`."""
    searcher = study.searcher
    if searcher is None:
        remedy = "say how many configurations to try: Study(..., trials=64)"
        raise StudyError("the study is no search", where=study.name, remedy=remedy)
    if not study._running and (study.directory / FILE).exists():  # by a worker, perhaps
        searcher.keep(study.directory / FILE)
    return searcher.optuna


def follow(study: Study, control: Control, event: Event) -> None:
    """Prune and ask for trials after an event."""
    searcher, trainer = study.searcher, study._trainer
    if searcher is None or trainer is None or trainer.stopped:
        return
    for request in searcher.saw(event):
        control.post(request)
    if isinstance(event, ev.SlotsFreed) and trainer.joiner is not None:
        _fill(study, searcher, trainer.joiner)
    ended = isinstance(event, ev.MemberChanged) and event.state in ev.FINAL_STATES
    if ended and not study._history.count(ev.RUNNING):
        while searcher.free and not _add(study, searcher, searcher.ask(searcher.free)):
            pass


def _fill(study: Study, searcher: Searcher, joiner: Joiner) -> None:
    """Ask for as many trials as may join the array; of those that can't, as many as there are slots may wait."""
    each = max(1, len(searcher.seeds))
    while searcher.left:
        wanted = (joiner.free - joiner.look()) // each
        count = min(wanted, searcher.left, searcher.slots - joiner.waiting // each)
        if count <= 0:
            return
        _add(study, searcher, searcher.ask(count))


def _add(study: Study, searcher: Searcher, trials: Sequence[Trial]) -> int:
    """Train these trials as well; how many can be."""
    if not trials:
        return 0
    try:
        _added(study, searcher, trials)
        return len(trials)
    except HftaError:
        pass
    count = 0
    for trial in trials:
        try:
            _added(study, searcher, [trial])
            count += 1
        except HftaError:
            searcher.refused(trial)
    return count


def _added(study: Study, searcher: Searcher, trials: Iterable[Trial]) -> None:
    configs = [(trial, config) for trial in trials for config in searcher.configurations(trial)]
    ids = adding.add(study, [config for _, config in configs])
    for trial in dict.fromkeys(trial.number for trial, _ in configs):
        members = [id for id, (one, _) in zip(ids, configs, strict=True) if one.number == trial]
        searcher.started(next(one for one, _ in configs if one.number == trial), members)
