"""`hfta-nb run`: trains a grid, shows its progress, and prints the results."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from hfta_nb import events as ev
from hfta_nb.cli import fail, json_lines, studies, terminal_tables
from hfta_nb.cli import text as show
from hfta_nb.cli.displays import Display, Lines, LiveDisplay, Silent
from hfta_nb.cli.progress import RunProgress
from hfta_nb.errors import HftaError, StudyError
from hfta_nb.records import speeds
from hfta_nb.records.events import Control
from hfta_nb.records.history import History

if TYPE_CHECKING:
    from hfta_nb import Study

VERDICTS = {"equal": "equals", "differs": "DIFFERS from", "can't tell": "CAN'T BE TOLD from"}

FAILED = 1
STOPPED = 130


def main(given: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    studies.check_writable(given.csv, given.resume)
    studies.set_threads(given.threads)
    study = studies.saved(given.resume, given.trust) if given.resume else studies.new(given)
    _check_members(study, given.check)
    out = terminal_tables.console(given.plain or given.quiet)
    where = studies.where(given)
    epochs = given.epochs if given.resume else None
    if epochs is not None and epochs < study.epochs:
        raise StudyError("fewer epochs than before", where="--epochs", got=epochs, accepted=f"{study.epochs} or more")
    display = display_of(given, study, out)
    code = train(study, display, out, resume=given.resume is not None, epochs=epochs, where=where)
    if given.json:
        return _report_json(study, given, code)
    if code in (0, STOPPED):
        written = report(study.history, study.directory, out, given.csv)
        if code == 0 and given.check is not None:
            code = check(study, given.check, out)
        code = code or written
    return code


def train(
    study: Study,
    display: Display,
    out: Console,
    *,
    resume: bool = False,
    epochs: int | None = None,
    where: Mapping[str, Any] = {},
) -> int:
    """Iterate the study to its end, or to an interrupt.

    Args:
        resume, epochs: as of `Study.run`.
        where: its arrays train, as arguments of `Study.run`.

    Returns:
        0; 1 where the run failed; 130 where it was interrupted.
    """
    control, began = Control(), False
    try:
        with display, Interrupts(control, display.note) as interrupts:
            more = where if epochs is None else {**where, "epochs": epochs}
            for event in study.run(control, resume=resume, **more):
                began = True
                display.add(event)
    except HftaError as error:
        if not began:  # the request can't be carried out
            raise
        from hfta_nb.study import rescued  # it imports torch

        return _failed(study, f"{rescued(study, error)}")
    except BrokenPipeError:  # who reads the events is gone; the run was stopped, and everything is kept
        raise
    except Exception as error:
        traceback.print_exc()
        return _failed(study, f"{type(error).__name__}: {error}")
    if study.history.state == ev.FAILED:
        return _failed(study, study.history.reason)
    if interrupts.signal is not None or study.history.state == ev.STOPPED:
        return STOPPED
    return 0


def _report_json(study: Study, given: argparse.Namespace, code: int) -> int:
    """Print checks and then the results as JSON; returns the exit code."""
    if code == 0 and given.check is not None:
        found = [e for e in study.check_events(given.check or None) if isinstance(e, ev.MemberChecked)]
        for event in found:
            json_lines.write("event", ev.to_json(event))
        code = 0 if all(event.equal for event in found) else FAILED
    return report_json(study.history, study.directory, given.csv, code)


def report_json(history: History, directory: Path, csv: str | None, code: int, **more: Any) -> int:
    """Print the results as JSON, and write the leaderboard; returns the exit code."""
    error = "" if csv is None else _write_csv(history, directory, csv)
    code = code or (FAILED if error else 0)
    json_lines.results(history, directory, csv=None if error else csv, **more, exit_code=code)
    return fail(error, code) if error else code


@terminal_tables.printing()
def report(history: History, directory: Path, out: Console, csv: str | None, again: str = "") -> int:
    """Print the leaderboard and the location of the results; `again` is the command that resumes the run.

    Returns:
        0; 1 where the CSV was written to another file than the one asked for, or to none.
    """
    place = shown_path(directory)
    error = "" if csv is None else _write_csv(history, directory, csv)  # whatever becomes of the rest
    out.print()
    terminal_tables.leaderboard(history, out)
    out.print()
    last = history.progress
    took = f" in {show.duration(last.elapsed_s)}" if last else ""
    progress = RunProgress(lambda: history)
    out.print(Text(f"{history.state}{took}: {progress.states()}"))
    gain = speeds.words(history)
    if gain:
        out.print(Text(f"speed: {gain}"), soft_wrap=True)
    best = progress.best()
    if best:
        out.print(Text(f"best: {best}"), soft_wrap=True)
    out.print(Text(f"results: {place} (again: hfta-nb results {place})"), soft_wrap=True)
    if csv is not None and not error:
        out.print(Text(f"leaderboard: {show.clean(csv)}"), soft_wrap=True)
    if history.state in (ev.STOPPED, ev.INTERRUPTED):
        out.print(
            Text(f"{history.state.lower()}; to resume: {again or f'hfta-nb run --resume {place}'}"), soft_wrap=True
        )
    if error:
        sys.stdout.flush()
        return fail(error, FAILED)
    return 0


def _write_csv(history: History, directory: Path, csv: str) -> str:
    """Write the leaderboard to a file; where that fails, to the run's directory or that of temporary files.

    Returns:
        What is to be said of a failure; empty if there was none.
    """
    failed = ""
    name = f"{directory.name}.leaderboard.csv"  # of one that is full, temporary files may have another disk
    for path in (Path(csv), directory / "leaderboard.csv", Path(tempfile.gettempdir()) / name):
        try:
            terminal_tables.write_csv(history, str(path))
        except OSError as error:
            failed = failed or f"{csv}: can't be written ({error.strerror})"
        else:
            return f"{failed}; the leaderboard is in {path}" if failed else ""
    later = f"hfta-nb results {shown_path(directory)} --csv FILE"
    return f"{failed}, nor is there another place; once there is room: {later}"


def check(study: Study, members: tuple[int, ...], out: Console) -> int:
    """Retrain members alone and print the differences from the run.

    Returns:
        0 if all are equal, else 1 (also if one check is undecided).
    """
    equal = True
    for event in study.check_events(members or None):
        if isinstance(event, ev.MemberChecked):
            equal &= event.equal
            losses = {name: d for name, d in event.differences.items() if name.endswith("_loss")}
            name, worst = max(losses.items(), key=lambda item: item[1])
            verdict = VERDICTS[event.verdict]
            over = show.several(event.epochs, "epoch")
            line = f"check: #{event.variant} {verdict} the same variant trained alone: over {over} "
            line += f"the largest difference is {worst:.2g} ({show.clean(name)}), {event.tolerance:.0e} is allowed"
            if not event.decided:
                line += ", which rounding alone may make and is more than the loss itself; check with --dtype float64"
            out.print(Text(line), soft_wrap=True)
    return 0 if equal else FAILED


def shown_path(path: Path) -> str:
    """A path as typed in a shell."""
    relative = os.path.relpath(path)
    return show.clean(shlex.quote(str(path) if relative.startswith("..") else relative))


class Interrupts:
    """Ctrl-C or SIGTERM stops the run between two steps; a second signal ends the program.

    Args:
        control: where the request to stop is posted.
        note: shows a message.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self, control: Control, note: Callable[[str], None]) -> None:
        self._control, self._note = control, note
        self._before: dict[int, Any] = {}
        self.signal: int | None = None

    def __enter__(self) -> Interrupts:
        for number in self.SIGNALS:
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None:
            raise KeyboardInterrupt
        self.signal = number
        self._control.stop()
        self._note("stopping after this step, everything is kept (Ctrl-C again to exit at once)")


def display_of(given: argparse.Namespace, study: Study, out: Console) -> Display:
    """The display that the options ask for."""
    if given.json:
        return json_lines.JsonLines(given.quiet)
    if given.quiet:
        return Silent(out)
    return (LiveDisplay if out.is_terminal else Lines)(out, lambda: study.history)


def _check_members(study: Study, members: tuple[int, ...] | None) -> None:
    known = {v.id for v in study.variants}
    for member in members or ():
        if member not in known:
            raise StudyError("no such member", where="--check", got=member, accepted=f"0 to {max(known)}")


def _failed(study: Study, reason: str) -> int:
    where = shown_path(study.directory)
    sys.stdout.flush()
    hint = f"; to resume from the last checkpoint: hfta-nb run --resume {where}" if study.history.checkpoint else ""
    return fail(f"the run failed: {reason}; what was recorded is in {where}{hint}", FAILED)
