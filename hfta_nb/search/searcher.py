"""A search: asks for trials, follows their members' events, and says which to prune."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hfta_nb import events as ev
from hfta_nb.errors import SearchError
from hfta_nb.events import Event, Json, Prune
from hfta_nb.search import methods, records
from hfta_nb.search.methods import REDUCTION
from hfta_nb.search.mirror import NAME
from hfta_nb.search.spaces import Space, asked, checked
from hfta_nb.search.trials import COSTS, Trial, aggregate

if TYPE_CHECKING:
    import optuna

_CONFIG, _VARIANTS, _VERDICTS, _REASON = "config", "variants", "prune_after", "reason"
_TRIES = 100
"""Configurations that a constraint may reject one after another."""
_STATELESS = ("random", "tpe", "gp", "cmaes")
"""Samplers whose only state, beside what the trials keep, are random numbers: each trial has its own seed, so that a
search that is resumed goes on as if it had not been interrupted."""


class Searcher:
    """Trials of a search space, by a sampler and a pruner of Optuna's.

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
        seeds_by: what the values of a trial's seeds come to, one of `AGGREGATES`.

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
    ) -> None:
        methods.optuna()
        self.seeds: Sequence[int] = ()
        if not callable(space) and not isinstance(space.get("seed", 0), int):
            self.seeds, space = list(space["seed"]), {k: v for k, v in space.items() if k != "seed"}
        self.space, self.trials, self.slots, self.epochs = checked(space), trials, slots, epochs
        self.monitor, self.maximize = monitor
        self.sampler, self.pruner, self.seed, self.constraint = sampler, pruner, seed, constraint
        self.others, self.seeds_by = tuple(others), seeds_by
        if self.others:
            methods.check_many(sampler, pruner)
        self.cost: Callable[[int, str], float] = lambda variant, name: math.nan
        self.optuna: optuna.Study = self._created()
        if sampler == "grid":
            points: list[int] = [len(axis) for axis in dict(space).values()]  # type: ignore[arg-type]
            self.trials = min(trials, math.prod(points))
        self._trials: dict[int, Trial] = {}
        self._of: dict[int, Trial] = {}  # by variant
        self._touched: set[int] = set()  # trials that `changes` has not given since they changed
        self._told: Any = None  # what it gave of the search as a whole

    def _created(self) -> optuna.Study:
        """An Optuna study in memory, without trials."""
        directions = ["maximize" if more else "minimize" for _, more in self.objectives]
        with methods.quiet():
            made: optuna.Study = methods.optuna().create_study(
                study_name=NAME,
                sampler=self._sampler(0),
                pruner=methods.pruner_of(self.pruner, self.epochs),
                directions=directions,
            )
        return made

    @property
    def objectives(self) -> tuple[tuple[str, bool], ...]:
        """All objectives: their names, and whether more is better."""
        return ((self.monitor, self.maximize), *self.others)

    # Asking.

    @property
    def left(self) -> int:
        """Trials that were not asked for yet."""
        return self.trials - len(self._trials)

    @property
    def free(self) -> int:
        """Slots for trials that were not asked for yet."""
        return min(self.left, self.slots - sum(1 for trial in self._trials.values() if not trial.ended))

    @property
    def idle(self) -> bool:
        """Whether all trials that were asked for have ended."""
        return all(trial.ended for trial in self._trials.values())

    def ask(self, count: int) -> list[Trial]:
        """The next trials.

        Raises:
            SearchError: the constraint rejects whatever the sampler proposes.
        """
        return [self._asked() for _ in range(min(count, self.left))]

    def configurations(self, trial: Trial) -> list[dict[str, Json]]:
        """What a trial's members train: its configuration, with each seed."""
        return [trial.config | {"seed": seed} for seed in self.seeds] or [trial.config]

    def started(self, trial: Trial, variants: Sequence[int]) -> None:
        """These members train a trial."""
        trial.variants, trial.live = list(variants), set(variants)
        self._of.update(dict.fromkeys(variants, trial))
        trial.asked.set_user_attr(_VARIANTS, list(variants))
        self._touched.add(trial.number)

    def refused(self, trial: Trial, why: str = "") -> None:
        """A trial can't be trained."""
        trial.states[-1] = ev.FAILED
        trial.asked.set_user_attr(_REASON, why)
        self._tell(trial)

    @property
    def refusals(self) -> dict[int, str]:
        """Why trials were not trained, by their number."""
        told = {trial.number: trial.user_attrs for trial in self._frozen()}
        return {n: told[n].get(_REASON, "") for n, trial in self._trials.items() if trial.ended and not trial.variants}

    def _asked(self) -> Trial:
        for _ in range(_TRIES):
            self.optuna.sampler = self._sampler(len(self._frozen()))
            handle = self.optuna.ask()
            self._touched.add(handle.number)
            config = asked(handle, self.space)
            if self.constraint is None or self.constraint(config):
                handle.set_user_attr(_CONFIG, json.dumps(config))
                trial = self._trials[handle.number] = Trial(handle.number, config, handle)
                return trial
            self.optuna.tell(handle, state=_state("FAIL"))
        raise SearchError(f"rejects {_TRIES} configurations one after another", where="constraint", got=config)

    def _sampler(self, number: int) -> optuna.samplers.BaseSampler:
        seed = (self.seed + number) % 2**32 if self.sampler in _STATELESS else self.seed % 2**32
        return methods.sampler_of(self.sampler, self.space, seed)

    # Following.

    def saw(self, event: Event) -> list[Prune]:
        """Take in what happened; which members to prune."""
        if isinstance(event, ev.EpochDone) and self.monitor in event.metrics:
            return list(self._judged(event.epoch, _by_variant(event)))
        if isinstance(event, ev.MemberChanged) and event.state in ev.FINAL_STATES:
            trial = self._of.get(event.variant)
            if trial is not None and event.variant in trial.live:
                trial.live.discard(event.variant)
                trial.states[event.variant] = event.state
                if event.reason and event.state in (ev.FAILED, ev.DIVERGED):
                    trial.asked.set_user_attr(_REASON, event.reason)
                    self._touched.add(trial.number)
                if not trial.live:
                    self._tell(trial)
        return []

    def _judged(self, epoch: int, found: Mapping[int, Mapping[str, float]]) -> Iterator[Prune]:
        told: dict[int, tuple[float, Trial]] = {}
        for variant, metrics in found.items():
            trial = self._of.get(variant)
            if trial is None:
                continue
            if trial.pruned_at and epoch >= trial.pruned_at:  # it trains from a checkpoint before that
                yield Prune(variant, trial.pruned_because)
            if variant not in trial.live or not math.isfinite(metrics[self.monitor]):
                continue
            reported = self._note(trial, epoch, variant, metrics)
            if trial.live <= reported.keys() and not self.others:  # Optuna has no pruner for several objectives
                told[trial.number] = aggregate(list(reported.values()), self.maximize, self.seeds_by), trial
        for value, trial in self._in_turn(list(told.values())):
            if self._given_up(trial, epoch, value):
                yield from (Prune(variant, self._because(epoch, value)) for variant in sorted(trial.live))

    def _because(self, epoch: int, value: float) -> str:
        return f"pruned after epoch {epoch}: {self.monitor} {value:.4g}"

    def _given_up(self, trial: Trial, epoch: int, value: float) -> bool:
        """The pruner's verdict; the same again after an epoch that comes again, whatever became of others meanwhile."""
        if epoch in self._frozen()[trial.number].intermediate_values:
            return epoch in trial.verdicts
        trial.asked.report(value, epoch)
        self._touched.add(trial.number)
        if epoch >= self.epochs or not trial.asked.should_prune():
            return False
        trial.verdicts.add(epoch)
        trial.asked.set_user_attr(_VERDICTS, sorted(trial.verdicts))
        return True

    def _in_turn(self, told: list[tuple[float, Trial]]) -> list[tuple[float, Trial]]:
        """The order in which a pruner judges trials that were trained side by side.

        Successive halving compares a trial with those that were judged before it, and promotes the first of all. So the
        best third goes first, the worst of them first: each is promoted; then the others, the best of them first.
        """
        ranked = sorted(told, key=lambda pair: pair[0], reverse=self.maximize)
        promoted = -(-len(ranked) // REDUCTION)
        return [*reversed(ranked[:promoted]), *ranked[promoted:]]

    def _note(self, trial: Trial, epoch: int, variant: int, metrics: Mapping[str, float]) -> dict[int, float]:
        value = metrics[self.monitor]
        trial.epochs.setdefault(epoch, {})[variant] = value
        before = trial.best.get(variant)
        if before is None or (value > before if self.maximize else value < before):
            trial.best[variant] = value
            trial.others[variant] = {name: metrics[name] for name, _ in self.others if name in metrics}
        return trial.epochs[epoch]

    def _tell(self, trial: Trial) -> None:
        states, values = set(trial.states.values()), self._values(trial)
        told: dict[str, Any] = {"state": _state("PRUNED")}
        if states & {ev.DIVERGED, ev.FAILED} or not all(map(math.isfinite, values)):
            told = {"state": _state("FAIL")}
        elif states == {ev.COMPLETE}:
            told = {"values": values}
        elif self.others:  # Optuna takes no pruned trials of several objectives: this one was stopped
            told = {"state": _state("FAIL")}
        self._touched.add(trial.number)
        try:
            self.optuna.tell(trial.asked, **told)
        except RuntimeError:
            # A grid's sampler, of which every point was tried, wants to stop a loop that is not Optuna's.
            if not self._frozen()[trial.number].state.is_finished():
                raise

    def _frozen(self) -> list[optuna.trial.FrozenTrial]:
        """What Optuna knows of the trials; not copied."""
        found: list[optuna.trial.FrozenTrial] = self.optuna.get_trials(deepcopy=False)
        return found

    def _values(self, trial: Trial) -> list[float]:
        """What a trial came to, by objective."""
        if not trial.best:
            return [math.nan]
        found = [aggregate(list(trial.best.values()), self.maximize, self.seeds_by)]
        for name, more in self.others:
            own = {v: self.cost(v, name) if name in COSTS else trial.others[v].get(name, math.nan) for v in trial.best}
            found.append(aggregate(list(own.values()), more, self.seeds_by))
        return found

    # Keeping.

    def recall(self, event: Event) -> None:
        """Take in what happened in an earlier run of the study: its trials are told of already."""
        if isinstance(event, ev.EpochDone) and self.monitor in event.metrics:
            for variant, metrics in _by_variant(event).items():
                trial = self._of.get(variant)
                if trial is not None and math.isfinite(metrics[self.monitor]):
                    self._note(trial, event.epoch, variant, metrics)

    @property
    def waiting(self) -> list[Trial]:
        """Trials that were asked for and that no member trains yet."""
        return [trial for trial in self._trials.values() if not trial.variants and not trial.states]

    @property
    def numbers(self) -> dict[int, int]:
        """By variant, the trial that it trains."""
        return {variant: trial.number for variant, trial in self._of.items()}

    def touch(self) -> None:
        """Let `changes` give all trials."""
        self._touched.update(range(len(self._frozen())))

    def changes(self) -> dict[str, dict[str, Any]]:
        """What has changed since this was last called, as plain data by its key; `take_up` takes all of it."""
        trials = self._frozen()
        found = {records.key_of(number): records.told(trials[number]) for number in sorted(self._touched)}
        self._touched.clear()
        whole = {"system": dict(self.optuna._storage.get_study_system_attrs(self.optuna._study_id))}
        if whole != self._told:
            found[records.STUDY] = self._told = json.loads(json.dumps(whole))
        return found

    def take_up(self, bodies: Mapping[str, Mapping[str, Any]]) -> None:
        """Go on with the trials that `changes` told of, in place of those that there are."""
        system = bodies.get(records.STUDY, {}).get("system", {})
        self.take_up_trials(records.in_order(bodies), system)

    def take_up_trials(
        self, trials: Sequence[optuna.trial.FrozenTrial], system: Mapping[str, Any] | None = None
    ) -> None:
        """Go on with these trials of Optuna's."""
        self.optuna = self._created()
        self.optuna.add_trials(trials)
        for name, value in (system or {}).items():
            self.optuna._storage.set_study_system_attr(self.optuna._study_id, name, value)
        self._trials.clear()
        self._of.clear()
        self._touched.clear()
        self._told = None
        for frozen in self._frozen():
            if _CONFIG in frozen.user_attrs:
                self._taken_up(frozen)

    def _taken_up(self, frozen: optuna.trial.FrozenTrial) -> None:
        config = {name: ev.tuples(value) for name, value in json.loads(frozen.user_attrs[_CONFIG]).items()}
        ended = frozen.state.is_finished()
        handle = None if ended else methods.optuna().trial.Trial(self.optuna, frozen._trial_id)
        trial = Trial(frozen.number, config, handle, list(frozen.user_attrs.get(_VARIANTS, ())))
        trial.verdicts = set(frozen.user_attrs.get(_VERDICTS, ()))
        self._trials[trial.number] = trial
        self._of.update(dict.fromkeys(trial.variants, trial))
        if ended:
            trial.states[-1] = frozen.state.name
            if frozen.state.name == "PRUNED" and frozen.intermediate_values:
                trial.pruned_at, value = max(frozen.intermediate_values.items())
                trial.pruned_because = self._because(trial.pruned_at, value)
        else:
            trial.live = set(trial.variants)


def _by_variant(event: ev.EpochDone) -> dict[int, dict[str, float]]:
    return {v: {name: values[i] for name, values in event.metrics.items()} for i, v in enumerate(event.variants)}


def _state(name: str) -> Any:
    return methods.optuna().trial.TrialState[name]
