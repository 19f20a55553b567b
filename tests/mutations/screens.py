"""Faults in widgets, figures and the command line."""

from __future__ import annotations

from tests.mutations.fault import Fault

FAULTS = (
    Fault(
        "stop-member",
        "hfta_nb/ui/session.py",
        "self.handle.control.stop(member)",
        "self.handle.control.stop()",
        "the button that stops a member stops the run",
        ("tests/ui/test_workbench.py",),
    ),
    Fault(
        "check-selected",
        "hfta_nb/ui/workbench.py",
        "chosen = list(members or self.leaderboard.selected or [self.study.best().variant.id])",
        "chosen = list(members or [self.study.best().variant.id])",
        "the check is of the best member, whatever is selected",
        ("tests/ui/test_runs.py",),
    ),
    Fault(
        "thinned-extremes",
        "hfta_nb/ui/live_state.py",
        "sorted({min(finite, key=curve.values.__getitem__), max(finite, key=curve.values.__getitem__)})",
        "sorted({finite[0], finite[-1]})",
        "peaks of long curves are lost on the screen",
        ("tests/ui/test_live_thinning.py",),
    ),
    Fault(
        "figure-start",
        "hfta_nb/figures/drawing.py",
        "start_s = history.begin_s if history.run else",
        "start_s = history.run.time_s if history.run else",
        "times of a run that was resumed count from the resumption",
        ("tests/test_figures.py",),
    ),
    Fault(
        "figure-pause",
        "hfta_nb/figures/drawing.py",
        "to_s = high if end is None else",
        "to_s = from_s if end is None else",
        "a pause that lasts is not shaded",
        ("tests/test_figures.py",),
    ),
    Fault(
        "cli-seed",
        "hfta_nb/cli/studies.py",
        "for name in FLAGS if name not in SHORTCUTS}",
        'for name in FLAGS if name not in (*SHORTCUTS, "seed")}',
        "--seed is accepted and ignored",
        ("tests/cli/test_run.py",),
    ),
    Fault(
        "cli-remaining",
        "hfta_nb/cli/progress.py",
        "/ (self.done - done)",
        "/ self.done",
        "the time left of a run that was resumed is told as far too short",
        ("tests/cli/test_progress.py",),
    ),
    Fault(
        "cli-check",
        "hfta_nb/cli/run.py",
        "equal &= event.equal",
        "equal = event.equal",
        "the exit code of --check is that of the last member",
        ("tests/cli/test_run.py",),
    ),
)
