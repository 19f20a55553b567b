"""`hfta-nb tune`: runs the study of a TOML file, or goes on with it, and prints the results."""

from __future__ import annotations

import argparse
import shlex
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from hfta_nb.cli import studies, terminal_tables
from hfta_nb.cli import text as show
from hfta_nb.cli.run import STOPPED, display_of, report, report_json, shown_path, train
from hfta_nb.cli.study_file import StudyFile
from hfta_nb.errors import StudyError

if TYPE_CHECKING:
    from hfta_nb import Study


def main(given: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    studies.set_threads(given.threads)
    file = StudyFile(given.file)
    study = file.study()
    studies.check_writable(given.csv, given.file, study.directory)
    out = terminal_tables.console(given.plain or given.quiet)
    code = 0
    if not study.store.has_events:
        code = _train(study, given, out)
    else:
        done, epochs = _kept(study, file)
        if not done:
            code = _train(study, given, out, resume=True, epochs=epochs)
    refusals = study.searcher.refusals if study.searcher else {}
    if given.json:
        return report_json(study.history, study.directory, given.csv, code, refused_trials=refusals)
    if code in (0, STOPPED):
        again = f"hfta-nb tune {show.clean(shlex.quote(given.file))}"
        written = report(study.history, study.directory, out, given.csv, again=again)
        code = code or written
        for number, why in refusals.items():
            out.print(Text(f"trial {number} was not trained: {show.clean(why)}", "red"), soft_wrap=True)
    return code


def _train(
    study: Study, given: argparse.Namespace, out: Console, resume: bool = False, epochs: int | None = None
) -> int:
    if not given.quiet and not given.json:
        place = shown_path(study.directory)
        out.print(Text(f"in {place}; from a notebook: Workbench.reattach({place!r})"), soft_wrap=True)
    return train(study, display_of(given, study, out), out, resume=resume, epochs=epochs)


def _kept(study: Study, file: StudyFile) -> tuple[bool, int | None]:
    """Whether the run in the directory has no more to do, and to how many epochs it is to go on if to more than before.

    Raises:
        StudyError: it is the run of another study, or the file has changed since in what can't change.
    """
    from hfta_nb.study import kept

    found = kept(study)
    for change in found.changes:
        keys = change.argument.split(".")
        place = file.place(*(["fixed", *keys] if keys[0] in file.given.get("fixed", {}) else keys))
        remedy = f"undo the change, or choose another directory than {study.directory.name}"
        raise StudyError("was otherwise when the study began", where=place, got=change.now,
                         accepted=repr(change.before), remedy=remedy)  # fmt: skip
    if found.wanted < found.epochs:
        raise StudyError("fewer epochs than before", where=file.place("epochs"), got=found.wanted,
                         accepted=f"{found.epochs} or more")  # fmt: skip
    study.epochs = found.epochs
    return found.done, found.wanted if found.wanted > found.epochs else None
