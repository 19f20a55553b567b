"""What a search will do and how far it is, in words: trials, slots, rungs; and what a population does."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hfta_nb import events as ev
from hfta_nb.records.history import History, Member
from hfta_nb.search import CENTER, PBT, Leader, Space, rounds_at, rungs_of
from hfta_nb.search.grid import show
from hfta_nb.search.spaces import choices_of
from hfta_nb.study import Study
from hfta_nb.ui.definition import axis_words
from hfta_nb.ui.text import count, listing

_COUNTED = (ev.COMPLETE, ev.PRUNED, ev.RUNNING, ev.PAUSED, ev.WAITING, ev.STOPPED, ev.DIVERGED, *sorted(ev.FAILURES))
_WORDS = {ev.COMPLETE: "done", ev.WAITING: "waiting for a slot"}
_MOST_RUNGS = 6


@dataclass(frozen=True)
class Trials:
    """The trials of a search.

    Attributes:
        total: of them, unless the search ends before.
        members: of each: its seeds and folds.
        epochs: of a trial that is not pruned.
    """

    total: int
    members: int
    epochs: int

    @classmethod
    def of(cls, study: Study | None) -> Trials | None:
        """Those of a study; None where it is no search."""
        searcher = None if study is None else study.searcher
        if study is None or searcher is None:
            return None
        return cls(searcher.trials, searcher.each, study.epochs)

    def states(self, history: History) -> list[str]:
        """The state of each trial that was asked for."""
        cloned = {edit.variant for edit in history.edits if edit.how == "cloned"}
        members = [m for m in history.members.values() if m.id not in cloned and m.state != ev.DELETED]
        firsts = range(0, len(members), self.members)  # the members of a trial follow one another
        return [_state(members[i : i + self.members]) for i in firsts]

    def counts(self, history: History) -> str:
        """Trials by state: ``6 done, 3 pruned, 4 running, 7 to come``."""
        states = self.states(history)
        paused = {ev.RUNNING: "paused"} if history.state == ev.PAUSED else {}
        found = [(states.count(s), {**_WORDS, **paused}.get(s, s.lower())) for s in _COUNTED]
        left = "to come" if history.state not in ev.FINAL_STATES else "not begun"  # a timeout leaves some as well
        found.append((self.total - len(states), left))
        return "trials: " + ", ".join(f"{n} {words}" for n, words in found if n > 0)

    def progress(self, history: History) -> str:
        """How many of them have ended; those that were cut short with the run have not."""
        cut = {ev.STOPPED, *ev.FAILURES} if history.state in (ev.STOPPED, *ev.FAILURES) else set()
        ended = sum(state in ev.FINAL_STATES - cut for state in self.states(history))
        return f"{ended} of {count(self.total, 'trial')}"

    def share(self, done: float, history: History) -> float:
        """How far the whole search is, where its members there are so far on the average; those to come count too."""
        there = len(history.members)
        return done * there / max(there, self.total * self.members)


def amount(study: Study | None) -> str:
    """How many trials a search tries: ``20 trials``; empty of a study that is none."""
    trials = Trials.of(study)
    return "" if trials is None else count(trials.total, "trial")


def plan_words(study: Study) -> str:
    """What a search or a population will do, in sentences; empty of a study that is neither."""
    if study.leader is not None:
        return _leader_words(study.leader)
    if study.rounds is not None:
        return _population_words(study)
    searcher, trials = study.searcher, Trials.of(study)
    if searcher is None or trials is None:
        return ""
    seeds = f", each with {count(trials.members, 'member')}" if trials.members > 1 else ""
    budget = trials.total * trials.members * trials.epochs
    most = f"At most {budget:,} epochs ({count(trials.total, 'trial')}{seeds}, {count(trials.epochs, 'epoch')} each)"
    what = f"{count(trials.total, 'trial')} of {_axes(searcher.space)}"
    how = f"{min(searcher.slots, trials.total)} at a time, proposed by {_name(searcher.sampler)}{_pruned_words(study)}"
    return f"{what}, {how}. {most}."


def rungs(study: Study | None) -> list[int]:
    """The epochs after which trials are pruned at rungs, or members replaced."""
    if study is None:
        return []
    if study.rounds is not None:
        return rounds_at(study.rounds.method, study.epochs)
    return [] if study.searcher is None else rungs_of(study.searcher.pruner, study.epochs)


def _population_words(study: Study) -> str:
    assert study.rounds is not None
    method, at = study.rounds.method, rungs(study)
    which = (
        f"the worst {method.exploit:.0%} become copies of the best {method.exploit:.0%}"
        if isinstance(method, PBT)
        else f"the best 1 of {method.factor} go on, and the others become copies of them"
    )
    changed = [
        f"{name} {'one of' if isinstance(how, list) else 'times'} {' or '.join(map(show, how))}"
        for name, how in method.perturb.items()
    ]
    more = f", with {listing(changed)}" if changed else ""
    when = f"After {_epochs(at)}" if at else f"No round: every {method.every} is not below the number of epochs"
    return f"{when}, in each array, {which}{more}." if at else f"{when}."


def _leader_words(method: Leader) -> str:
    when = f"After every {count(method.every, 'step')}, in each array"
    parts = "" if method.groups == 1 else f" of its group of {method.groups}"
    if method.leader == CENTER:
        return f"{when}, members and the center{parts} pull each other by {method.pull:g}."
    further = f", and by {method.global_pull:g} toward the best of all" if method.several else ""
    what = method.leader.replace("_", " ")
    return f"{when}, every member is pulled by {method.pull:g} toward the best{parts} by {what}{further}."


def _pruned_words(study: Study) -> str:
    assert study.searcher is not None
    pruner, at = study.searcher.pruner, rungs(study)
    if pruner == "none":
        return ", none is pruned"
    return f", pruned by {_name(pruner)}" + (f" after {_epochs(at)}" if at else "")


def _epochs(at: list[int]) -> str:
    shown = [str(epoch) for epoch in at[:_MOST_RUNGS]] + (["..."] if len(at) > _MOST_RUNGS else [])
    return f"epoch{'s' * (len(at) > 1)} {listing(shown)}"


def _name(method: object) -> str:
    return method if isinstance(method, str) else type(method).__name__


def _axes(space: Space) -> str:
    """What is searched; an axis with one value is not."""
    if callable(space):
        return "what a function chooses"
    lists = {name: choices_of(axis) for name, axis in space.items()}
    several = {name: axis if lists[name] is None else tuple(lists[name] or ()) for name, axis in space.items()}
    found = [axis_words(n, axis, trials=True) for n, axis in several.items() if lists[n] is None or len(axis) > 1]
    return listing(found) or "one configuration"


def _state(members: Iterable[Member]) -> str:
    """The state of a trial: as long as one of its members is on, that; else how it has ended, the worst first."""
    states = {member.state for member in members}
    order = (ev.RUNNING, ev.PAUSED, ev.WAITING, *sorted(ev.FAILURES), ev.DIVERGED, ev.PRUNED, ev.STOPPED)
    return next((state for state in order if state in states), ev.COMPLETE)
