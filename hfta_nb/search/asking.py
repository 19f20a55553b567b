"""Asks Optuna for the trials of a search, one slot each."""

from __future__ import annotations

import abc
import contextlib
import copy
import itertools
import json
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hfta_nb.errors import SearchError, SearchWarning
from hfta_nb.records import events as ev
from hfta_nb.records.events import Json
from hfta_nb.search import enqueued, methods
from hfta_nb.search.enqueued import REASON
from hfta_nb.search.methods import state
from hfta_nb.search.points import points_of, untried
from hfta_nb.search.spaces import Space, checked, suggested
from hfta_nb.search.storage import Home
from hfta_nb.search.trials import Trial

if TYPE_CHECKING:
    import optuna

CONFIG, VARIANTS, VERDICTS = "config", "variants", "prune_after"
_TRIES = 100
"""Configurations that a constraint may reject, or that may be known already, one after another."""
_STATELESS = ("random", "tpe", "gp", "cmaes")
"""Samplers whose only state, beside what the trials keep, are random numbers: each trial has its own seed, so that a
search that is resumed goes on as if it had not been interrupted."""


def _unknown(variant: int, name: str) -> float:
    """A cost before anybody trains the members."""
    return math.nan


class Asking(abc.ABC):
    """The trials of a search space, by a sampler and a pruner of Optuna's: those that were asked for.

    Args:
        space: axes to what they may be (see `hfta_nb.uniform`), or a function of an Optuna trial that returns a
            configuration. An axis ``seed`` with a list of seeds is not searched: each trial trains all of them, and its
            value is their mean.
        trials: how many configurations to try.
        slots: how many of them train at the same time.
        sampler: "random", "tpe", "grid", "qmc", "cmaes", "gp", or an object of Optuna's.
        pruner: "none", "median", "percentile", "asha", "hyperband", "wilcoxon", "patient", or an object of Optuna's.
        epochs: of a trial that is not pruned.
        monitor: the metric, and whether more of it is better.
        seed: of the sampler.
        constraint: from a configuration to whether it may be tried.
        others: further objectives, likewise: metrics, taken at the best epoch of `monitor`, or `COSTS`.
        seeds_by: what the values of a trial's seeds come to, "mean" or "bound".
        home: the storage that Optuna keeps the trials in; memory by default.
        skip_duplicates: try no configuration twice.
        timeout_s: from `begin` on, seconds after which no trial is asked for; None for no limit.
        folds: of cross-validation: each trial trains all of them, as it does all seeds.

    Attributes:
        cost: from a variant and one of `COSTS` to its value; whoever trains the members sets it.

    Raises:
        SearchError: Optuna is not installed, or one of these can't be used.
    """

    def __init__(
        self,
        space: Space,
        trials: int,
        slots: int,
        sampler: Any,
        pruner: Any,
        epochs: int,
        monitor: tuple[str, bool],
        seed: int,
        constraint: Callable[[Mapping[str, Json]], bool] | None = None,
        others: Sequence[tuple[str, bool]] = (),
        seeds_by: str = "mean",
        home: Home | None = None,
        skip_duplicates: bool = False,
        timeout_s: float | None = None,
        folds: Sequence[int] = (),
    ) -> None:
        methods.optuna()
        self.seeds: Sequence[int] = ()
        self.folds = folds
        if not callable(space) and not isinstance(space.get("seed", 0), int):
            self.seeds, space = list(space["seed"]), {k: v for k, v in space.items() if k != "seed"}
        self.space, self.trials, self.slots, self.epochs = checked(space), trials, slots, epochs
        self.monitor, self.maximize = monitor
        self.sampler, self.pruner, self.seed, self.constraint = sampler, pruner, seed, constraint
        self.others, self.seeds_by = tuple(others), seeds_by
        if self.others:
            methods.check_many(sampler, pruner)
        self.home, self.skip_duplicates, self.timeout_s = home or Home(), skip_duplicates, timeout_s
        self.cost: Callable[[int, str], float] = _unknown
        self.optuna: optuna.Study = self._created()
        points = points_of(self.space) if sampler == "grid" or skip_duplicates else methods.points_of(sampler)
        self.trials = trials if points is None else min(trials, points)
        self.ended: list[int] = []  # trials of which Optuna was told, since whoever follows them took them out
        self.foreseen: list[dict[str, Json]] = []  # what the first trials' members were to train
        self._ends_s = math.inf
        self._trials: dict[int, Trial] = {}
        self._of: dict[int, Trial] = {}  # by variant
        self._touched: set[int] = set()  # trials that `changes` has not given since they changed
        self._saved: Any = None  # what it gave of the search as a whole

    def _created(self) -> optuna.Study:
        """An Optuna study: in memory and without trials, or that of the storage."""
        directions = ["maximize" if more else "minimize" for _, more in self.objectives]
        return self.home.study(self._sampler(0), methods.pruner_of(self.pruner, self.epochs), directions)

    def begin(self) -> None:
        """A run begins: its time counts from here."""
        self._ends_s = math.inf if self.timeout_s is None else time.monotonic() + self.timeout_s

    def preview(self, fault: Callable[[list[dict[str, Json]]], str] = lambda _: "") -> list[dict[str, Json]]:
        """What the first trials' members train, unless trials are enqueued; nothing is asked for.

        Args:
            fault: from what a trial's members would train to why they can't; empty where they can.
        """
        other = copy.copy(self)
        other._ends_s = math.inf
        other.home, other.sampler = Home(), copy.deepcopy(self.sampler)
        other.optuna, other._trials, other._of, other._touched = other._created(), {}, {}, set()
        other.ended, self.foreseen = [], []
        while other.free > 0:
            for trial in other.ask(other.free):
                configs = self.configurations(trial)
                if why := fault(configs):
                    other.refused(trial, why)
                else:
                    self.foreseen += configs
        return self.foreseen

    @property
    def objectives(self) -> tuple[tuple[str, bool], ...]:
        """All objectives: their names, and whether more is better."""
        return ((self.monitor, self.maximize), *self.others)

    # Asking.

    @property
    def left(self) -> int:
        """Trials that were not asked for yet; none when the time is up."""
        return 0 if time.monotonic() >= self._ends_s else self.wanted

    @property
    def wanted(self) -> int:
        """The same, whatever the time."""
        return self.trials - len(self._trials)

    @property
    def free(self) -> int:
        """Slots for trials that were not asked for yet."""
        live = sum(1 for trial in self._trials.values() if not trial.ended)  # more, where some wait for another array
        return max(0, min(self.left, self.slots - live))

    @property
    def idle(self) -> bool:
        """Whether all trials that were asked for have ended."""
        return all(trial.ended for trial in self._trials.values())

    def ask(self, count: int) -> list[Trial]:
        """The next trials; fewer where no more are left.

        Raises:
            SearchError: the constraint rejects whatever the sampler proposes, or an enqueued trial has no such axis.
        """
        found: list[Trial] = []
        while len(found) < count and self.left > 0:
            trial = self._suggested()
            if trial is not None:
                found.append(trial)
        return found

    def configurations(self, trial: Trial) -> list[dict[str, Json]]:
        """What a trial's members train: its configuration, with each seed and fold."""
        repeats = {name: values for name, values in (("seed", self.seeds), ("fold", self.folds)) if values}
        every = itertools.product(*repeats.values())
        return [trial.config | dict(zip(repeats, values, strict=True)) for values in every]

    @property
    def each(self) -> int:
        """The members of a trial."""
        return max(1, len(self.seeds)) * max(1, len(self.folds))

    def started(self, trial: Trial, variants: Sequence[int]) -> None:
        """These members train a trial."""
        trial.variants, trial.live = list(variants), set(variants)
        self._of.update(dict.fromkeys(variants, trial))
        trial.optuna_trial.set_user_attr(VARIANTS, list(variants))
        self._touched.add(trial.number)

    def refused(self, trial: Trial, why: str = "") -> None:
        """A trial can't be trained."""
        trial.states[-1] = ev.FAILED
        trial.optuna_trial.set_user_attr(REASON, why)
        self._report(trial)

    @property
    def refusals(self) -> dict[int, str]:
        """Why trials were not trained, by their number."""
        attributes = {trial.number: trial.user_attrs for trial in self._frozen()}
        return {
            n: attributes[n].get(REASON, "") for n, trial in self._trials.items() if trial.ended and not trial.variants
        }

    @contextlib.contextmanager
    def stoppable(self) -> Iterator[None]:
        """Within, `optuna.Study.stop` ends the search: no more trials are asked for."""
        loop = self.optuna._thread_local
        loop.in_optimize_loop, self.optuna._stop_flag = True, False
        try:
            yield
        finally:
            loop.in_optimize_loop = False
        if self.optuna._stop_flag:
            self.trials = len(self._trials)

    def _suggested(self) -> Trial | None:
        """The next trial; None where the space's function prunes it, or nothing new is left."""
        for _ in range(_TRIES):
            self._prepare()
            self.optuna.sampler = self._sampler(self._next())
            with methods.any_choices():
                handle = self.optuna.ask()
            self._touched.add(handle.number)
            try:
                config = suggested(handle, self.space, self.home.kept_as)
            except methods.optuna().TrialPruned as error:
                self._skipped(handle, str(error))
                return None
            except BaseException:
                self.optuna.tell(handle, state=state("FAIL"))
                raise
            text = json.dumps(config)
            known = self.skip_duplicates and text in self._known()
            if not known and self._allowed(handle, config):
                handle.set_user_attr(CONFIG, text)
                trial = self._trials[handle.number] = Trial(handle.number, config, handle)
                return trial
            self.optuna.tell(handle, state=state("FAIL"))
        if not self.skip_duplicates:
            raise SearchError(f"rejects {_TRIES} configurations one after another", where="constraint", got=config)
        self._enqueue_new()
        return None

    def _allowed(self, handle: Any, config: dict[str, Any]) -> bool:
        """Whether the constraint allows a configuration."""
        try:
            return self.constraint is None or bool(self.constraint(config))
        except Exception as error:
            self.optuna.tell(handle, state=state("FAIL"))
            what = f"raises {type(error).__name__}: {str(error) or 'no message'}"
            raise SearchError(what, where="constraint", got=config, accepted="a function of a configuration") from error

    def _next(self) -> int:
        """The number of the next trial: the first that is enqueued, else a new one."""
        trials = self._frozen()
        return next((trial.number for trial in trials if trial.state == state("WAITING")), len(trials))

    def _prepare(self) -> None:
        """See that enqueued trials suit the space: before a run one that does not is an error, later a warning."""
        with methods.any_choices():
            errors = list(enqueued.prepare(self.optuna, self.space))
        for error in errors:
            if not self._trials:
                raise error
            warnings.warn(SearchWarning(f"not trained: {error.message}"), stacklevel=2)

    def _skipped(self, handle: optuna.trial.Trial, why: str) -> None:
        """The space's function has pruned a trial, which counts as one."""
        handle.set_user_attr(CONFIG, json.dumps(handle.params))
        handle.set_user_attr(REASON, why or "pruned by the search space's function")
        trial = self._trials[handle.number] = Trial(handle.number, dict(handle.params), handle)
        trial.states[-1] = ev.PRUNED
        self.ended.append(trial.number)
        self.optuna.tell(handle, state=state("PRUNED"))

    def _known(self) -> set[str]:
        """All configurations that were tried, other processes' as well."""
        return {trial.user_attrs[CONFIG] for trial in self._frozen() if CONFIG in trial.user_attrs}

    def _enqueue_new(self) -> None:
        """Let the next trial be a configuration that was not tried; the search ends where there is none."""
        new = untried(self.space, self._known(), self.constraint, self.seed + len(self._frozen()))
        if new is None:
            self.trials = len(self._trials)
        else:
            self.optuna.enqueue_trial(new)

    def _sampler(self, number: int) -> optuna.samplers.BaseSampler:
        stateless = isinstance(self.sampler, str) and self.sampler in _STATELESS
        seed = self.seed + self.home.salt + (number if stateless else 0)
        return methods.sampler_of(self.sampler, self.space, seed % 2**32)

    @abc.abstractmethod
    def _report(self, trial: Trial) -> None:
        """Tell Optuna what a trial has come to."""

    def _frozen(self) -> list[optuna.trial.FrozenTrial]:
        """What Optuna knows of the trials; not copied."""
        with methods.any_choices():
            found: list[optuna.trial.FrozenTrial] = self.optuna.get_trials(deepcopy=False)
        return found
