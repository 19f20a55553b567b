"""A search: asks for trials, follows their members' events, and says which to prune."""

from __future__ import annotations

import json
import math
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hfta_nb.records import events as ev
from hfta_nb.records.events import Event, Prune
from hfta_nb.search import methods, trial_records
from hfta_nb.search.asking import CONFIG, VARIANTS, VERDICTS, Asking
from hfta_nb.search.enqueued import REASON
from hfta_nb.search.methods import state
from hfta_nb.search.trials import COSTS, Trial, aggregate, in_turn, violated

if TYPE_CHECKING:
    import optuna


class Searcher(Asking):
    """A search; see `Asking`. It follows the events of its trials' members, and can be kept and taken up."""

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
                    trial.optuna_trial.set_user_attr(REASON, event.reason)
                    self._touched.add(trial.number)
                if not trial.live:
                    self._report(trial)
        return []

    def _judged(self, epoch: int, found: Mapping[int, Mapping[str, float]]) -> Iterator[Prune]:
        values_of: dict[int, tuple[float, Trial]] = {}
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
                values_of[trial.number] = aggregate(list(reported.values()), self.maximize, self.seeds_by), trial
        for value, trial in in_turn(list(values_of.values()), self.maximize):
            if self._given_up(trial, epoch, value):
                yield from (Prune(variant, self._because(epoch, value)) for variant in sorted(trial.live))

    def _because(self, epoch: int, value: float) -> str:
        return f"pruned after epoch {epoch}: {self.monitor} {value:.4g}"

    def _given_up(self, trial: Trial, epoch: int, value: float) -> bool:
        """The pruner's verdict; the same again after an epoch that comes again, whatever became of others meanwhile."""
        if epoch in self._frozen()[trial.number].intermediate_values:
            return epoch in trial.verdicts
        trial.optuna_trial.report(value, epoch)
        self._touched.add(trial.number)
        if epoch >= self.epochs or not trial.optuna_trial.should_prune():
            return False
        trial.verdicts.add(epoch)
        trial.optuna_trial.set_user_attr(VERDICTS, sorted(trial.verdicts))
        return True

    def _note(self, trial: Trial, epoch: int, variant: int, metrics: Mapping[str, float]) -> dict[int, float]:
        value = metrics[self.monitor]
        trial.epochs.setdefault(epoch, {})[variant] = value
        before = trial.best.get(variant)
        if before is None or (value > before if self.maximize else value < before):
            trial.best[variant] = value
            trial.others[variant] = {name: metrics[name] for name, _ in self.others if name in metrics}
        return trial.epochs[epoch]

    def _report(self, trial: Trial) -> None:
        states, values = set(trial.states.values()), self._values(trial)
        outcome: dict[str, Any] = {"state": state("PRUNED")}
        if states & {ev.DIVERGED, ev.FAILED} or not all(map(math.isfinite, values)):
            outcome = {"state": state("FAIL")}
        elif states == {ev.COMPLETE}:
            outcome = {"values": values}
        elif self.others:  # Optuna takes no pruned trials of several objectives: this one was stopped
            outcome = {"state": state("FAIL")}
        self._touched.add(trial.number)
        self.ended.append(trial.number)
        with methods.any_choices(), self.stoppable():  # a sampler stops where all that there is was tried
            self.optuna.tell(trial.optuna_trial, **outcome)

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
        """Take in what happened in an earlier run of the study: its trials are reported already."""
        if isinstance(event, ev.EpochDone) and self.monitor in event.metrics:
            for variant, metrics in _by_variant(event).items():
                trial = self._of.get(variant)
                if trial is not None and math.isfinite(metrics[self.monitor]):
                    self._note(trial, event.epoch, variant, metrics)
        elif isinstance(event, ev.MemberChanged) and (trial := self._of.get(event.variant)) is not None:
            if -1 in trial.states:  # it had ended
                return
            if event.state in ev.FINAL_STATES and event.reason != ev.WITH_RUN:
                trial.live.discard(event.variant)
                trial.states[event.variant] = event.state
            else:
                trial.live.add(event.variant)
                trial.states.pop(event.variant, None)

    def recalled(self) -> None:
        """All of it is taken in: trials whose members had all ended are reported."""
        for trial in self._trials.values():
            if trial.ended and -1 not in trial.states:
                self._report(trial)

    @property
    def waiting(self) -> list[Trial]:
        """Trials that were asked for and that no member trains yet."""
        return [trial for trial in self._trials.values() if not trial.variants and not trial.states]

    @property
    def numbers(self) -> dict[int, int]:
        """By variant, the trial that it trains."""
        return {variant: trial.number for variant, trial in self._of.items()}

    @property
    def infeasible(self) -> set[int]:
        """The variants of trials that violate one of their constraints."""
        trials = self._frozen()
        return {v for t in self._trials.values() if violated(trials[t.number]) for v in t.variants}

    def touch(self) -> None:
        """Let `changes` give all trials of this search."""
        self._touched.update(self._trials if self.home.shared else range(len(self._frozen())))

    def changes(self) -> dict[str, dict[str, Any]]:
        """What has changed since this was last called, as plain data by its key; `take_up` takes all of it."""
        trials = self._frozen()
        found = {
            trial_records.key_of(number): trial_records.to_json(trials[number]) for number in sorted(self._touched)
        }
        self._touched.clear()
        user = {k: v for k, v in self.optuna.user_attrs.items() if _is_plain(v)}
        whole = {"system": {}, "user": {}} if self.home.shared else {"system": self._system(), "user": user}
        if whole != self._saved:
            found[trial_records.STUDY] = self._saved = json.loads(json.dumps(whole))
        return found

    def take_up(self, bodies: Mapping[str, Mapping[str, Any]]) -> None:
        """Go on with the trials that `changes` gave, in place of those that there are."""
        if self.home.shared:
            self._take_up({int(key) for key in bodies if key.isdecimal()})
            return
        whole = bodies.get(trial_records.STUDY, {})
        self.take_up_trials(trial_records.in_order(bodies), whole.get("system"), whole.get("user"))

    def take_up_trials(
        self,
        trials: Sequence[optuna.trial.FrozenTrial],
        system: Mapping[str, Any] | None = None,
        user: Mapping[str, Any] | None = None,
    ) -> None:
        """Go on with these trials of Optuna's."""
        self.optuna = self._created()
        self.optuna.add_trials(trials)
        for name, value in (system or {}).items():
            self.optuna._storage.set_study_system_attr(self.optuna._study_id, name, value)
        for name, value in (user or {}).items():
            self.optuna.set_user_attr(name, value)
        self._take_up(range(len(trials)))

    def _system(self) -> dict[str, Any]:
        return dict(self.optuna._storage.get_study_system_attrs(self.optuna._study_id))

    def _take_up(self, numbers: Container[int]) -> None:
        """Go on with those of Optuna's trials that have these numbers."""
        self._trials.clear()
        self._of.clear()
        self._touched.clear()
        self._saved = None
        for frozen in self._frozen():
            if CONFIG in frozen.user_attrs and frozen.number in numbers:
                self._taken_up(frozen)

    def _taken_up(self, frozen: optuna.trial.FrozenTrial) -> None:
        config = {name: ev.tuples(value) for name, value in json.loads(frozen.user_attrs[CONFIG]).items()}
        ended = frozen.state.is_finished()
        handle = None if ended else methods.optuna().trial.Trial(self.optuna, frozen._trial_id)
        trial = Trial(frozen.number, config, handle, list(frozen.user_attrs.get(VARIANTS, ())))
        trial.verdicts = set(frozen.user_attrs.get(VERDICTS, ()))
        self._trials[trial.number] = trial
        self._of.update(dict.fromkeys(trial.variants, trial))
        if ended:
            trial.states[-1] = frozen.state.name
            if frozen.state.name == "PRUNED" and frozen.intermediate_values:
                trial.pruned_at, value = max(frozen.intermediate_values.items())
                trial.pruned_because = self._because(trial.pruned_at, value)
        else:
            trial.live = set(trial.variants)


def _is_plain(value: Any) -> bool:
    """Whether a value can be kept as JSON."""
    try:
        return bool(json.loads(json.dumps(value)) == value)
    except (TypeError, ValueError):
        return False


def _by_variant(event: ev.EpochDone) -> dict[int, dict[str, float]]:
    return {v: {name: values[i] for name, values in event.metrics.items()} for i, v in enumerate(event.variants)}
