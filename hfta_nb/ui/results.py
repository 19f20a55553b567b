"""Results: the leaderboard, its exports, and figures."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ipywidgets

from hfta_nb import events as ev
from hfta_nb.records.history import History
from hfta_nb.search.grid import Variant
from hfta_nb.study import Study
from hfta_nb.ui.exports import content, download
from hfta_nb.ui.figure_box import FigureBox
from hfta_nb.ui.leaderboard import Leaderboard
from hfta_nb.ui.text import count, escape, metric, number
from hfta_nb.ui.widgets import CodeBox, button, words

_BUTTONS = {
    "csv": ("CSV", "Download the leaderboard as a CSV file, which is written to the run's directory as well"),
    "png": ("PNG", "Download curves and utilization as a PNG file, which is written to the run's directory as well"),
    "code": ("code", "A cell that reproduces this sweep"),
    "check": (
        "check against training alone",
        "Retrain the selected members (or the best one) alone, and compare their curves",
    ),
}
VERDICTS = {
    "equal": "equal to training alone",
    "differs": "differs from training alone",
    "can't tell": "can't tell whether it equals training alone",
}


def summary(history: History) -> str:
    """The best member in one line, and how many were lost."""
    run = history.run
    best = next((m for m in history.leaderboard() if not math.isnan(m.best_value)), None)
    if run is None or best is None:
        return "no results yet"
    label = Variant(best.id, best.config, best.seed).label.strip()
    lost = history.count(ev.DIVERGED)
    diverged = f"; {lost} diverged" if lost else ""
    return f"best {label}: {metric(run.monitor)} {number(best.best_value)} at epoch {best.best_epoch}{diverged}"


class Results(ipywidgets.VBox):  # type: ignore[misc]
    """Leaderboard, exports, figures, code.

    Args:
        pressed: called with "csv", "png", "code" or "check" when that button is.
        on_request: see `Leaderboard`; also called with "select" and the selected members.
        study: gives the study of the run, for figures.
    """

    def __init__(
        self, pressed: Callable[[str], None], on_request: Callable[[str, Any], None], study: Callable[[], Study]
    ) -> None:
        self.leaderboard = Leaderboard(on_request)
        self.leaderboard.observe(lambda change: on_request("select", change["new"]), "selected")
        self.code_box = CodeBox()
        self.note = words("hfta-note")
        self.buttons = {name: button(text, hint, f"hfta-button-{name}") for name, (text, hint) in _BUTTONS.items()}
        for name, made in self.buttons.items():
            made.on_click(lambda _, name=name: pressed(name))
        tools = ipywidgets.HBox([*self.buttons.values(), self.note]).add_class("hfta-results-tools")
        self.figures = FigureBox(study)
        super().__init__([tools, self.leaderboard, self.figures, self.code_box])

    def __repr__(self) -> str:
        return "Results()"

    def enable(self, has_run: bool, at_rest: bool, planned: bool) -> None:
        """Enable the buttons that can be used."""
        reasons = {
            "csv": "" if has_run else "There is no run yet",
            "png": "" if has_run else "There is no run yet",
            "code": "" if has_run or planned else "Nothing is defined yet",
            "check": "There is no run yet"
            if not has_run
            else ""
            if at_rest
            else "Wait until the run has ended, or stop it",
        }
        self.figures.enable(has_run)
        for name, reason in reasons.items():
            self.buttons[name].disabled = bool(reason)
            self.buttons[name].tooltip = reason or _BUTTONS[name][1]

    def show_code(self, title: str, source: str) -> str:
        """Show code to copy; returns it."""
        self.code_box.title, self.code_box.code = title, source
        return source

    def offer(self, path: Path) -> Path:
        """Offer a written file as a download, and show its path; returns the path."""
        self.note.value = download(path)
        return path

    def download(self, path: Path) -> None:
        """Let the browser save a written file."""
        self.code_box.download(path.name, *content(path))

    def say(self, text: str, bad: bool = False) -> None:
        """Show a sentence beside the buttons."""
        mark = ' class="hfta-error"' if bad else ""
        self.note.value = f'<span role="status"{mark}>{escape(text)}</span>' if text else ""

    def checked(self, found: list[ev.MemberChecked] | str) -> None:
        """Show the result of a check, or why it failed."""
        if isinstance(found, str):
            self.say(f"The check failed. {found}", bad=True)
        else:
            self.show_check(found)

    def show_check(self, checks: list[ev.MemberChecked]) -> None:
        """Show the result of the comparison with serial training in a sentence."""
        parts = []
        for check in checks:
            name, worst = max(check.differences.items(), key=lambda item: item[1], default=("", math.nan))
            verdict = VERDICTS[check.verdict]
            parts.append(
                f"#{check.variant}: {verdict}; largest difference {number(worst, 2)} ({metric(name)}) over "
                f"{count(check.epochs, 'epoch')}, tolerance of losses {number(check.tolerance, 2)}"
            )
            if not check.decided:
                parts[-1] += ", more than the loss itself: check in float64"
        self.say(". ".join(parts), bad=not all(c.equal for c in checks))
