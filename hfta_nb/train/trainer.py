"""Groups trained one after another, or in turns where they read the same stream."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator

from hfta_nb.errors import MemberError, out_of_memory
from hfta_nb.models.recipes.preserve_rng import apart as set_apart
from hfta_nb.records.events import Event, PlanMade, Stop
from hfta_nb.train import failures, requests
from hfta_nb.train.capacity import fit
from hfta_nb.train.group_run import GroupRun
from hfta_nb.train.joining import gathered
from hfta_nb.train.plan import Group
from hfta_nb.train.schedule import Schedule
from hfta_nb.train.split_on_oom import split
from hfta_nb.train.todo import Todo
from hfta_nb.train.turns import Turns, mates


class Trainer(Schedule):
    """Trains groups one after another, or in turns where they read the same stream; iterate it.

    See `Schedule` for the arguments.
    """

    def __iter__(self) -> Iterator[Event]:
        self.clock.skip()
        while True:
            stop = yield from self._asked_to_stop()
            if not self.waiting and self.requested.paused and not stop:
                yield from requests.wait_for_paused(self)
                if not self.stopped:
                    continue
            if not self.waiting and not self.requested.paused:
                yield from requests.orphaned(self)
                return
            if stop or self.stopped:
                yield from self._stop()
                return
            if not (self.waiting[0].begun or self._wanted(self.waiting[0].group)):
                self.waiting.popleft()
                continue
            todo = self.opened(gathered(self, self.waiting.popleft()))
            if todo.run is None and not todo.group.fitted:
                found = yield from self._fitted(todo.group)
                self.waiting.extendleft(map(Todo, reversed(found)))
                self.clock.skip()
                continue
            others = yield from mates(self, todo, self._fitted)
            yield from Turns(self, [todo, *others]).events() if others else self._train(todo)
            if self.stopped:
                return

    def _wanted(self, group: Group) -> bool:
        """Whether one of an array's members is still to begin: none of the others is built for nothing."""
        return not set(group.ids) <= self.early_stops | self.requested.deleted

    def _asked_to_stop(self) -> Generator[Event, None, bool]:
        """Whether the run is to stop before another array is built, which answers most other requests."""
        asked = self.control.poll()
        for request in asked:
            if request != Stop():
                yield from requests.answer_between(self, request)
        return Stop() in asked

    def _stop(self) -> Iterator[Event]:
        self.stop()
        yield from self.save_after(self.waiting[0].group if self.waiting else self.arrays[0], {})

    def _train(self, todo: Todo) -> Iterator[Event]:
        run = GroupRun(self, todo.group, todo.run)
        try:
            yield from set_apart(run.events(), self.settings.repeats)
            return
        except Exception as error:
            failure = (
                failures.unbuilt(self, todo.group, error) if run.stage == "building" and todo.run is None else None
            )
            if failure is None and not (out_of_memory(error) and run.whole):
                raise
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        # Here the error is gone, and the tensors of its frames with it.
        if failure is None:
            yield from split(self, run, reason)
        else:
            yield from failures.build_without(self, run.group, failure)

    def _fitted(self, group: Group) -> Generator[Event, None, list[Group]]:
        """The arrays to train in a group's place, first of all; without a member that can't be tried."""
        try:
            return (yield from self.fitted(group))
        except MemberError as error:
            failure = failures.unbuilt(self, group, error)
            if failure is None:
                raise
        yield from failures.build_without(self, group, failure)
        return []

    # The arrays.

    def fitted(self, group: Group, measure: bool = False) -> Generator[Event, None, list[Group]]:
        """Find out how many members train together, and put the arrays that this makes in the group's place.

        Args:
            group: of `arrays`.
            measure: measure also where it is plain that all members fit.

        Returns:
            The arrays.
        """
        found: list[Group] = yield from set_apart(fit(self, group, measure))
        before = self.records()
        self.replace(group, found)
        if self.records() != before:
            yield PlanMade(time.time(), self.records())
        return found
