"""Displays of a run in progress: a live picture in a terminal, plain lines elsewhere, or nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from hfta_nb import events as ev
from hfta_nb.cli import text as show
from hfta_nb.cli.progress import ACTIVE, DONE, RunProgress
from hfta_nb.cli.terminal_tables import printing
from hfta_nb.records.events import Event
from hfta_nb.records.history import History, Member
from hfta_nb.records.pace import Pace

REDRAWS_PER_S = 5
MOST_GROUPS = 8
MOST_LINES = 200
"""Of arrays, where a plan is told."""

BAR_WIDTH = 30
_INTERVAL_S = 1.0
"""An epoch that ends sooner than this after the last line gets no line, except the last epoch."""


class Display(Protocol):
    """Shows a run; a context manager that receives its events."""

    def __enter__(self) -> Display: ...
    def __exit__(self, *error: object) -> None: ...
    def add(self, event: Event) -> None:
        """Show an event that the history already has."""

    def note(self, text: str) -> None:
        """Show a message at once."""


def headline(run: ev.RunStarted, under_way: bool = False) -> str:
    """``cnn on digits: 6 variants, 5 epochs, float32, cpu (AMD EPYC, 1 thread)``; of a run under way, what may have
    changed: ``now 8 variants, 5 epochs``."""
    if under_way:
        return f"now {show.several(len(run.variants), 'variant')}, {show.several(run.epochs, 'epoch')}"
    details = [run.device_name] if run.device_name else []
    if run.device.startswith("cpu"):
        details.append(show.several(run.threads, "thread"))
    device = run.device + (f" ({', '.join(details)})" if details else "")
    how = run.dtype if run.precision == "fp32" else f"{run.dtype} in {run.precision}"
    parts = [show.several(len(run.variants), "variant"), show.several(run.epochs, "epoch"), how, device]
    resumed = "resumed: " if run.resumed else ""
    return show.clean(f"{resumed}{run.family} on {run.data}: {', '.join(parts)}")


def ending(member: Member) -> str:
    """Why a member ended early; empty if it did not."""
    if member.state not in ev.FINAL_STATES or (member.state == ev.COMPLETE and not member.reason):
        return ""
    return f"#{member.id} {member.state}" + (f": {show.clean(member.reason)}" if member.reason else "")


def halving(event: ev.ArrayHalved) -> str:
    """``array 0: out of memory while training: 8 members continue as 4 and then 4 (...)``."""
    first, second = event.into
    memory = f"they need {show.memory(event.needed_bytes)}, {show.memory(event.free_bytes)} are free"
    members = show.several(event.members, "member")
    what = f"array {event.group}: out of memory while {show.clean(event.phase)}"
    return f"{what}: {members} continue as {first} and then {second} ({memory})"


def difference(event: ev.DifferenceFound) -> str:
    """``array 0: `encoder` runs member by member, as member 3 comes to another loss than alone (...)``."""
    part = f"`{event.submodule}`" if event.submodule else "the model"
    return show.clean(f"array {event.group}: {part} runs member by member, as {event.reason}")


class Silent:
    """Shows messages only."""

    def __init__(self, out: Console) -> None:
        self._out = out

    def __enter__(self) -> Silent:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def add(self, event: Event) -> None:
        return None

    def note(self, text: str) -> None:
        self._out.print(Text(text))


class Lines:
    """One line per notable event, as for a log.

    Args:
        out: output of the lines.
        history: returns the history of the run (see `RunProgress`).
        clock: seconds; for tests.
    """

    def __init__(
        self,
        out: Console,
        history: Callable[[], History],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._out = out
        self._progress = RunProgress(history)
        self._pace = Pace(_INTERVAL_S, clock)
        self._epoch: ev.EpochDone | None = None
        self._printed: dict[int, tuple[tuple[int, ...], str]] = {}  # arrays by number, as printed
        self._begun = False

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *error: object) -> None:
        self._end_epoch()

    def note(self, text: str) -> None:
        self._print(text)

    def add(self, event: Event) -> None:
        if not isinstance(event, ev.MemberImproved):
            self._end_epoch()
        self._progress.add(event)
        if isinstance(event, ev.RunStarted):
            self._print(headline(event, self._begun))
            self._begun, self._printed = True, {}
        elif isinstance(event, ev.PlanMade):
            for place, group in enumerate(event.groups):
                shown = group.variants, group.reason
                if self._printed.get(group.index) == shown:  # only its measurements are new
                    continue
                if place == MOST_LINES:
                    self._print(f"... and {show.several(len(event.groups) - place, 'array')} more")
                    break
                self._printed[group.index] = shown
                because = f"; {show.clean(group.reason)}" if group.reason else ""
                members = show.several(len(group.variants), "member")
                parameters = f"{show.count(group.parameters)} parameters each"
                self._print(f"array {group.index}: {members} (#{show.ids(group.variants)}), {parameters}{because}")
        elif isinstance(event, ev.SpeedMeasured):
            self._print(f"array {event.group}: {self._progress.speed(event.group)}: {show.clean(event.strategy)}")
        elif isinstance(event, ev.ArrayHalved):
            self._print(halving(event))
        elif isinstance(event, ev.DifferenceFound):
            self._print(difference(event))
        elif isinstance(event, ev.ArrayPlaced) and event.slots:
            self._print(f"array {event.group}: on {show.clean(event.worker)}")
        elif isinstance(event, ev.PhaseChanged) and event.phase.startswith("measuring"):
            self._print(f"array {event.group}: {show.clean(event.phase)}: {show.clean(event.detail)}")
        elif isinstance(event, ev.MemberChanged):
            line = ending(self._progress.history.members[event.variant])
            line = "" if event.state == ev.COMPLETE else self._progress.bounded(line)
            if line:
                self._print(line)
        elif isinstance(event, ev.EpochDone):
            self._epoch = event
        elif isinstance(event, ev.RunChanged) and event.state == ev.PAUSED:
            self._print("paused")

    def _end_epoch(self) -> None:
        """Print the line of an epoch; events of improved members follow the epoch's event."""
        event, self._epoch = self._epoch, None
        epochs = self._progress.history.run.epochs if self._progress.history.run else 0
        last_one = event is not None and event.epoch >= epochs and len(self._progress.groups) <= MOST_LINES
        if event is None or not (self._pace.due or last_one):
            return
        with self._pace.drawing():
            self._print_epoch(event, epochs)

    def _print_epoch(self, event: ev.EpochDone, epochs: int) -> None:
        last = self._progress.history.progress
        clock = f"{show.duration(last.elapsed_s)}, {show.left(last.remaining_s)}" if last else ""
        parts = [clock, self._progress.rate(), self._progress.states()]
        best = self._progress.best()
        parts.append(f"best {best}" if best else "")
        self._print(f"array {event.group}: epoch {event.epoch}/{epochs}; " + "; ".join(filter(None, parts)))

    @printing()
    def _print(self, line: str) -> None:
        self._out.print(Text(line), soft_wrap=True)
        self._out.file.flush()


class LiveDisplay:
    """A live picture of the run, redrawn in place and removed at the end.

    Redrawn on events only and at most `REDRAWS_PER_S` times a second, without a thread.
    """

    def __init__(
        self, out: Console, history: Callable[[], History], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._progress = RunProgress(history)
        self._live = Live(console=out, auto_refresh=False, transient=True, vertical_overflow="crop")
        self._pace, self._begun = Pace(1 / REDRAWS_PER_S, clock), False

    def __enter__(self) -> LiveDisplay:
        self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()

    def note(self, text: str) -> None:
        self._live.console.print(Text(text))

    def add(self, event: Event) -> None:
        self._progress.add(event)
        if isinstance(event, ev.RunStarted):
            self.note(headline(event, self._begun))
            self._begun = True
        elif isinstance(event, ev.MemberChanged):
            line = ending(self._progress.history.members[event.variant])
            line = self._progress.bounded(line) if event.state in (ev.DIVERGED, *ev.FAILURES) else ""
            if line:
                self._live.console.print(Text(line, "red"))
        elif isinstance(event, ev.ArrayHalved):
            self._live.console.print(Text(halving(event), "yellow"))
        elif isinstance(event, ev.DifferenceFound):
            self._live.console.print(Text(difference(event), "yellow"))
        if self._pace.due or isinstance(event, ev.PhaseChanged | ev.RunChanged):
            with self._pace.drawing():
                self._live.update(self.picture(), refresh=True)

    def picture(self) -> Group:
        """The current picture."""
        progress, history = self._progress, self._progress.history
        speed = "; ".join(
            filter(None, (progress.speed(g.index) for g in progress.groups.values() if g.state == ACTIVE))
        )
        state = history.state.lower() if history.state == ev.PAUSED else show.clean(history.phase) or "starting"
        facts = {
            "now": ", ".join(filter(None, [state, progress.rate(), speed])),
            "members": progress.states(),
            "best": progress.best(),
            "device": progress.device(),
        }
        words = Table.grid(padding=(0, 2))
        words.add_column(style="dim", no_wrap=True)
        words.add_column(overflow="ellipsis", no_wrap=True)
        for name, text in facts.items():
            if text:
                words.add_row(name, Text(text))
        return Group(self._bars(), words)

    def _bars(self) -> Table:
        table = Table.grid(padding=(0, 2))
        for _ in range(5):
            table.add_column(no_wrap=True)
        groups = list(self._progress.groups.values())
        shown = groups
        if len(groups) > MOST_GROUPS:
            over = sum(g.state == DONE for g in groups)
            first = max(0, min(over - 1, len(groups) - MOST_GROUPS))
            shown = groups[first : first + MOST_GROUPS]
            table.add_row(Text(f"{over} of {len(groups)} arrays done"))
        for group in shown:
            done = float(group.epochs) if group.state == DONE else group.done
            clock = show.duration(group.elapsed_s) if group.elapsed_s else ""
            if group.state == ACTIVE:
                clock += f", {show.left(group.remaining_s)}"
            table.add_row(
                Text(f"array {group.index}"),
                Text(show.several(group.members, "member")),
                ProgressBar(group.epochs or 1, done, width=BAR_WIDTH),
                Text(f"epoch {group.done:.1f}/{group.epochs}" if group.state == ACTIVE else group.state),
                Text(clock.removeprefix(", ")),
            )
        last = self._progress.history.progress
        if last is not None and len(groups) > 1:
            left = f"{show.duration(last.elapsed_s)}, {show.left(last.remaining_s)}"
            table.add_row(Text("all"), Text(""), Text(""), Text(""), Text(left))
        return table
