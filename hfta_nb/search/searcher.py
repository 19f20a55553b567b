"""A search: asks for trials, follows their members' events, and says which to prune."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hfta_nb import events as ev
from hfta_nb.errors import SearchError
from hfta_nb.events import Event, Json, Prune
from hfta_nb.search import methods
from hfta_nb.search.methods import REDUCTION
from hfta_nb.search.spaces import Space, asked, checked

if TYPE_CHECKING:
    import optuna

_NAME = "study"
_CONFIG, _VARIANTS = "config", "variants"
_TRIES = 100
"""Configurations that a constraint may reject one after another."""
_STATELESS = ("random", "tpe", "gp", "cmaes")
"""Samplers whose only state, beside what the trials keep, are random numbers: each trial has its own seed, so that a
search that is resumed goes on as if it had not been interrupted."""


@dataclass
class Trial:
    """A configuration that is tried, by one member or by one for each seed.

    Attributes:
        number: Optuna's.
        config: values by axis, without the seeds.
        variants: the members that train it; empty before they are planned.
        live: those of them that have not ended.
        epochs: values of the monitored metric by epoch, by variant.
        best: the best of them, by variant.
        states: how each member that has ended did.
        pruned_at: the epoch after which it was pruned in an earlier run of the study; 0 where it was not.
    """

    number: int
    config: dict[str, Json]
    handle: optuna.trial.Trial
    variants: list[int] = field(default_factory=list)
    live: set[int] = field(default_factory=set)
    epochs: dict[int, dict[int, float]] = field(default_factory=dict)
    best: dict[int, float] = field(default_factory=dict)
    states: dict[int, str] = field(default_factory=dict)
    pruned_at: int = 0


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
    ) -> None:
        optuna = methods.optuna()
        self.seeds: Sequence[int] = ()
        if not callable(space) and not isinstance(space.get("seed", 0), int):
            self.seeds, space = list(space["seed"]), {k: v for k, v in space.items() if k != "seed"}
        self.space, self.trials, self.slots, self.epochs = checked(space), trials, slots, epochs
        self.monitor, self.maximize = monitor
        self.sampler, self.pruner, self.seed, self.constraint = sampler, pruner, seed, constraint
        with methods.quiet():
            self.optuna: optuna.Study = optuna.create_study(
                study_name=_NAME,
                sampler=self._sampler(0),
                pruner=methods.pruner_of(pruner, epochs),
                direction="maximize" if self.maximize else "minimize",
            )
        if sampler == "grid":
            points: list[int] = [len(axis) for axis in dict(space).values()]  # type: ignore[arg-type]
            self.trials = min(trials, math.prod(points))
        self._trials: dict[int, Trial] = {}
        self._of: dict[int, Trial] = {}  # by variant

    # Asking.

    @property
    def left(self) -> int:
        """Trials that were not asked for yet."""
        return self.trials - len(self._trials)

    @property
    def free(self) -> int:
        """Slots for trials that were not asked for yet."""
        return min(self.left, self.slots - sum(1 for trial in self._trials.values() if not self._ended(trial)))

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
        trial.handle.set_user_attr(_VARIANTS, list(variants))

    def refused(self, trial: Trial) -> None:
        """A trial can't be trained."""
        trial.states[-1] = ev.FAILED
        self._tell(trial)

    def _asked(self) -> Trial:
        for _ in range(_TRIES):
            self.optuna.sampler = self._sampler(len(self._frozen()))
            handle = self.optuna.ask()
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
            values = zip(event.variants, event.metrics[self.monitor], strict=True)
            return list(self._judged(event.epoch, dict(values)))
        if isinstance(event, ev.MemberChanged) and event.state in ev.FINAL_STATES:
            trial = self._of.get(event.variant)
            if trial is not None and event.variant in trial.live:
                trial.live.discard(event.variant)
                trial.states[event.variant] = event.state
                if not trial.live:
                    self._tell(trial)
        return []

    def _judged(self, epoch: int, values: Mapping[int, float]) -> Iterator[Prune]:
        told: dict[int, tuple[float, Trial]] = {}
        for variant, value in values.items():
            trial = self._of.get(variant)
            if trial is None:
                continue
            if trial.pruned_at and epoch >= trial.pruned_at:  # it trains from a checkpoint before that
                yield Prune(variant, f"pruned after epoch {trial.pruned_at}")
            if variant not in trial.live or not math.isfinite(value):
                continue
            reported = self._note(trial, epoch, variant, value)
            if trial.live <= reported.keys():
                told[trial.number] = sum(reported.values()) / len(reported), trial
        for value, trial in self._in_turn(list(told.values())):
            if epoch not in self._frozen()[trial.number].intermediate_values:
                trial.handle.report(value, epoch)
            if epoch < self.epochs and trial.handle.should_prune():
                reason = f"pruned after epoch {epoch}: {self.monitor} {value:.4g}"
                yield from (Prune(variant, reason) for variant in sorted(trial.live))

    def _in_turn(self, told: list[tuple[float, Trial]]) -> list[tuple[float, Trial]]:
        """The order in which a pruner judges trials that were trained side by side.

        Successive halving compares a trial with those that were judged before it, and promotes the first of all. So the
        best third goes first, the worst of them first: each is promoted; then the others, the best of them first.
        """
        ranked = sorted(told, key=lambda pair: pair[0], reverse=self.maximize)
        promoted = -(-len(ranked) // REDUCTION)
        return [*reversed(ranked[:promoted]), *ranked[promoted:]]

    def _note(self, trial: Trial, epoch: int, variant: int, value: float) -> dict[int, float]:
        trial.epochs.setdefault(epoch, {})[variant] = value
        better = max if self.maximize else min
        trial.best[variant] = better(value, trial.best.get(variant, value))
        return trial.epochs[epoch]

    def _tell(self, trial: Trial) -> None:
        states = set(trial.states.values())
        if states & {ev.DIVERGED, ev.FAILED} or not trial.best:
            told: dict[str, Any] = {"state": _state("FAIL")}
        elif states == {ev.COMPLETE}:
            told = {"values": sum(trial.best.values()) / len(trial.best)}
        else:
            told = {"state": _state("PRUNED")}
        try:
            self.optuna.tell(trial.handle, **told)
        except RuntimeError:
            # A grid's sampler, of which every point was tried, wants to stop a loop that is not Optuna's.
            if not self._frozen()[trial.number].state.is_finished():
                raise

    def _frozen(self) -> list[optuna.trial.FrozenTrial]:
        """What Optuna knows of the trials; not copied."""
        found: list[optuna.trial.FrozenTrial] = self.optuna.get_trials(deepcopy=False)
        return found

    @staticmethod
    def _ended(trial: Trial) -> bool:
        return bool(trial.states) and not trial.live

    # Keeping.

    def recall(self, event: Event) -> None:
        """Take in what happened in an earlier run of the study: its trials are told of already."""
        if isinstance(event, ev.EpochDone) and self.monitor in event.metrics:
            for variant, value in zip(event.variants, event.metrics[self.monitor], strict=True):
                trial = self._of.get(variant)
                if trial is not None and math.isfinite(value):
                    self._note(trial, event.epoch, variant, value)

    @property
    def waiting(self) -> list[Trial]:
        """Trials that were asked for and that no member trains yet."""
        return [trial for trial in self._trials.values() if not trial.variants and not trial.states]

    def keep(self, path: Path) -> None:
        """Go on in a file, which optuna-dashboard and other processes can read; take up what is in it."""
        optuna = methods.optuna()
        storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(path)))
        if not path.exists() or not any(s.study_name == _NAME for s in optuna.get_all_study_summaries(storage)):
            with methods.quiet():
                optuna.copy_study(from_study_name=_NAME, from_storage=self.optuna._storage, to_storage=storage)
        self.optuna = optuna.load_study(
            study_name=_NAME, storage=storage, sampler=self._sampler(0), pruner=self.optuna.pruner
        )
        self._trials.clear()
        self._of.clear()
        for frozen in self._frozen():
            if _CONFIG in frozen.user_attrs:
                self._taken_up(frozen)

    def _taken_up(self, frozen: optuna.trial.FrozenTrial) -> None:
        optuna = methods.optuna()
        config = {name: ev.tuples(value) for name, value in json.loads(frozen.user_attrs[_CONFIG]).items()}
        trial = Trial(frozen.number, config, optuna.trial.Trial(self.optuna, frozen._trial_id))
        trial.variants = list(frozen.user_attrs.get(_VARIANTS, ()))
        self._trials[trial.number] = trial
        self._of.update(dict.fromkeys(trial.variants, trial))
        if frozen.state.is_finished():
            trial.states[-1] = frozen.state.name
            trial.pruned_at = max(frozen.intermediate_values, default=0) if frozen.state.name == "PRUNED" else 0
        else:
            trial.live = set(trial.variants)


def _state(name: str) -> Any:
    return methods.optuna().trial.TrialState[name]
