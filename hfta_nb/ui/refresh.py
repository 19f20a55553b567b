"""Redraws a Workbench during its run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ipywidgets import Widget

from hfta_nb import events as ev
from hfta_nb.ui import results, watch
from hfta_nb.ui.figure_box import NONE
from hfta_nb.ui.leaderboard import table_of
from hfta_nb.ui.run_phase import AT_REST, ENDED, RunPhase
from hfta_nb.ui.session import Session
from hfta_nb.ui.steer import actions
from hfta_nb.ui.trials import Trials
from hfta_nb.ui.widgets import Section
from hfta_nb.ui.workbench_protocol import Bench

SECTIONS = ("Define", "Plan", "Train", "Watch", "Results")
AFTER_START = ("Watch", "Results")
"""Sections that a run fills."""
SETUP = ("Define", "Plan")
"""Sections that fold to their lines when a run begins, to leave the screen to it."""


def sections_of(bodies: Sequence[Widget], at_rest: Callable[[], bool]) -> dict[str, Section]:
    """The sections by title; the first run unfolds those that it fills.

    Args:
        bodies: of the sections.
        at_rest: whether no run is in progress. What a person opens during one stays open when the next begins.
    """
    pairs = zip(SECTIONS, bodies, strict=True)
    found = {title: Section(title, [body], title not in AFTER_START) for title, body in pairs}
    for section in (found[title] for title in SETUP):
        section.keep_open_if_opened(lambda: not at_rest())
    return found


def refresh(bench: Bench, session: Session) -> None:
    """Draw numbers and tables anew."""
    with session.reading():
        history = session.history
        table = table_of(history, bench.live.color_by) | {"actions": actions(session.phase not in AT_REST)}
        lines = {"Watch": watch.summary(history), "Results": results.summary(history)}
        lines["Train"] = bench.train_view.show(history, session.phase, Trials.of(session.study))
        groups, study = history.groups, session.study
        unmeasured = session.phase in ENDED - {RunPhase.FAILED} and history.progress is not None and not history.speeds
        configs = {member.id: member.config for member in history.members.values()}
        deleted = {member.id for member in history.members.values() if member.state == ev.DELETED}
    bench.train_view.offer_measuring(unmeasured and study is not None and not study.serial)
    if table != bench.leaderboard.table:
        bench.leaderboard.table = table
    bench.results.figures.color_by = bench.live.color_by
    if deleted.intersection(bench.leaderboard.selected):  # else what a page is just selecting would be undone
        select(bench, [i for i in bench.leaderboard.selected if i not in deleted])
    for title, line in lines.items():
        bench.sections[title].summarise(line)
    bench.plan_view.enable(session.phase in AT_REST)
    if groups != bench.plan_view.groups and groups and session.phase not in AT_REST:
        # The run's measured plan, until a field is edited.
        bench.sections["Plan"].summarise(bench.plan_view.show(bench.study, groups, configs))
        if any(edit.how == "cloned" for edit in history.edits):  # there are more members than when the run began
            bench.phase_changed()


def select(bench: Bench, members: Sequence[int]) -> None:
    """Select members, whether or not a page is open that links rows and curves."""
    bench.live.selected = bench.leaderboard.selected = bench.results.figures.linked.selected = list(members)


def clear(bench: Bench, anew: bool) -> None:
    """Make room for a run; `anew`: another one than that on the screen, whose selection and figure go."""
    if anew:
        select(bench, [])
        bench.results.figures.kind.value = NONE
    bench.plan_view.groups = ()
    bench.plan_view.enable(False)
    for title, section in bench.sections.items():
        if title in AFTER_START or (title in SETUP and not section.kept_open):
            section.head.unfolded = title in AFTER_START
    bench.offer.show(None)
    bench.train_view.ask("")
    bench.train_view.fail("", "")
    bench.results.say("")
