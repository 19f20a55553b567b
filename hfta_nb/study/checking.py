"""Comparing members with plain modules, and trying one batch before anything trains."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from hfta_nb.data import Data
from hfta_nb.errors import StudyError
from hfta_nb.errors.border import ITEMS, WHOLE, takes
from hfta_nb.records import events as ev
from hfta_nb.records.events import Event
from hfta_nb.study import planning, result_tables, running
from hfta_nb.study.check import check_member, row_of
from hfta_nb.study.planning import settings_of
from hfta_nb.study.study_state import StudyState, variant_of
from hfta_nb.train.dry_run import tried

if TYPE_CHECKING:
    import pandas


class Checking(StudyState):
    """The comparison of a study's members with training alone."""

    @takes(StudyError, members=ITEMS.or_none, epochs=WHOLE.or_none)
    def check_events(self, members: Sequence[int] | None = None, epochs: int | None = None) -> Iterator[Event]:
        """Retrain members alone, as plain modules with torch's own optimizers, and compare with what the run recorded.

        Args:
            members: variants; by default the best one.
            epochs: how many epochs to compare; by default all in float64, else the first 5.

        Yields:
            `MemberChecked` per member, and `Heartbeat` in between. The tolerance allows for rounding: 1e-8 in float64,
            1e-5 in float32, 1e-3 in tf32, bf16 and fp16, or the difference that changing last bits alone makes in the
            member's curves. If that difference exceeds the loss itself, the check is undecided (`decided` is False).

        Raises:
            StudyError: a member is unknown, or has no epoch to compare yet.
        """
        chosen = [result_tables.best(self).variant] if members is None else [variant_of(self, id) for id in members]
        for variant in chosen:
            for event in check_member(self, variant, epochs):
                running.keep(self, event)
                yield event

    def speed_events(self) -> Iterator[ev.SpeedMeasured]:
        """Measure how fast each array's steps are beside plain modules; a run does so itself unless it is too short.

        Yields:
            `SpeedMeasured` per array, which is kept with the run for `speedup`; what is learnt is thrown away.
        """
        for event in planning.speed_events(self):
            running.keep(self, event)
            yield event

    def forward_events(self) -> Iterator[ev.ForwardTried]:
        """Call the forward and the loss of one member of each architecture on one batch; nothing is trained or kept.

        Yields:
            `ForwardTried` per architecture, for at most 32 of them.
        """
        yield from tried(settings_of(self), self.plan_groups)

    def excerpt(self) -> Self:
        """A copy with one batch of the data, to be sent to a process that calls `forward_events`."""
        made = object.__new__(type(self))
        made.__dict__.update(
            self.__dict__, run_state=replace(self.run_state, running=0, trainer=None)
        )  # of it nothing runs
        if isinstance(self.data, Data):
            made.data = self.data.head(max(int(row["batch_size"]) for group in self.plan_groups for row in group.rows))
        return made

    @takes(StudyError, members=ITEMS.or_none, epochs=WHOLE.or_none)
    def check(self, members: Sequence[int] | None = None, epochs: int | None = None) -> pandas.DataFrame:
        """Run `check_events` and return its results as a table.

        Returns:
            One row per member: ``epochs`` compared, the largest difference of each curve, ``tolerance``, ``equal`` and
            ``verdict``: "equal", "differs", or "can't tell" (``equal`` is False) if rounding alone makes a difference
            larger than the loss. In that case check in float64.
        """
        import pandas

        found = [e for e in self.check_events(members, epochs) if isinstance(e, ev.MemberChecked)]
        if not found:
            raise StudyError("no variant to check", where="members", got=members, accepted="one or several, or None")
        return pandas.DataFrame([row_of(e) for e in found]).set_index("member")
