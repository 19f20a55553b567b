"""Redraws a Workbench during its run."""

from __future__ import annotations

from collections.abc import Sequence

from ipywidgets import Widget

from hfta_nb.ui import results, watch
from hfta_nb.ui.figure_box import NONE
from hfta_nb.ui.leaderboard import table_of
from hfta_nb.ui.run_phase import AT_REST
from hfta_nb.ui.session import Session
from hfta_nb.ui.trials import Trials
from hfta_nb.ui.widgets import Section
from hfta_nb.ui.workbench_protocol import Bench

SECTIONS = ("Define", "Plan", "Train", "Watch", "Results")
AFTER_START = ("Watch", "Results")
"""Sections that a run fills."""


def sections_of(bodies: Sequence[Widget]) -> dict[str, Section]:
    """The sections by title; the first run unfolds those that it fills."""
    pairs = zip(SECTIONS, bodies, strict=True)
    return {title: Section(title, [body], title not in AFTER_START) for title, body in pairs}


def refresh(bench: Bench, session: Session) -> None:
    """Draw numbers and tables anew."""
    with session.reading():
        history = session.history
        table = table_of(history, bench.live.color_by)
        lines = {"Watch": watch.summary(history), "Results": results.summary(history)}
        lines["Train"] = bench.train_view.show(history, session.phase, Trials.of(session.study))
        groups = history.groups
        configs = {member.id: member.config for member in history.members.values()}
        bench.results.steer.show(history, bench.leaderboard.selected, session.phase not in AT_REST)
    if table != bench.leaderboard.table:
        bench.leaderboard.table = table
    bench.results.figures.color_by = bench.live.color_by
    for title, line in lines.items():
        bench.sections[title].summarise(line)
    bench.plan_view.simulate.enable(session.phase in AT_REST)
    if groups != bench.plan_view.groups and groups and session.phase not in AT_REST:
        # The run's measured plan, until a field is edited.
        bench.sections["Plan"].summarise(bench.plan_view.show(bench.study, groups, configs))
        if any(edit.how == "cloned" for edit in history.edits):  # there are more members than when the run began
            bench.phase_changed()


def clear(bench: Bench, anew: bool) -> None:
    """Make room for a run; `anew`: another one than that on the screen, whose selection and figure go."""
    if anew:
        bench.live.selected, bench.leaderboard.selected, bench.results.figures.linked.selected = [], [], []
        bench.results.figures.kind.value = NONE
    bench.plan_view.groups = ()
    bench.plan_view.simulate.enable(False)
    for title, section in bench.sections.items():
        # Saves space during a run: the folded plan has a one-line summary.
        section.head.unfolded = True if title in AFTER_START else section.head.unfolded and title != "Plan"
    bench.offer.show(None)
    bench.train_view.ask("")
    bench.train_view.fail("", "")
    bench.results.say("")
