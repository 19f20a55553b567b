"""The protocol of a Workbench for the files of this folder, which therefore need not import it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from hfta_nb.models.recipes import Family
from hfta_nb.records.history import History
from hfta_nb.study import Study
from hfta_nb.ui.define import Define
from hfta_nb.ui.leaderboard import Leaderboard
from hfta_nb.ui.live_view import LiveView
from hfta_nb.ui.offer import Offer
from hfta_nb.ui.plan_view import PlanView
from hfta_nb.ui.results import Results
from hfta_nb.ui.train_view import TrainView
from hfta_nb.ui.widgets import Bar, Section


class Bench(Protocol):
    """See `hfta_nb.ui.workbench.Workbench`."""

    bar: Bar
    offer: Offer
    define: Define
    plan_view: PlanView
    train_view: TrainView
    live: LiveView
    leaderboard: Leaderboard
    results: Results
    sections: Mapping[str, Section]

    @property
    def state(self) -> str:
        """What the run is doing."""

    @property
    def history(self) -> History:
        """The history of the run."""

    @property
    def family(self) -> Family | None:
        """The planned family."""

    @property
    def study(self) -> Study:
        """The study of the run, or the planned one."""

    def planned(self) -> str:
        """Why the study can't be planned; empty if it can."""

    def show(self) -> None:
        """Display the Workbench in the output of this cell."""

    def say(self, text: str, level: str) -> None:
        """Show a sentence in the status line."""

    def stop(self, member: int | None = None) -> None:
        """Stop the run, or one member."""

    def steer(self, name: str, given: Mapping[str, Any]) -> str:
        """Request something for members; returns it in words."""

    def phase_changed(self) -> None:
        """Enable what can be pressed now, and tell the state of the run."""

    def refresh(self) -> None:
        """Draw numbers and tables anew."""

    def take(self, member: int) -> Any:
        """Get a member's module."""

    def refine(self, member: int) -> None:
        """Put a finer grid around a member into Define."""

    def revert(self) -> None:
        """Have Define as it was when the run began."""

    def add(self) -> list[dict[str, Any]]:
        """Train what was added in Define in the run as well."""

    def restore(self, path: str | Path) -> None:
        """Show a saved run."""

    def remake(self, study: Study) -> None:
        """Lay the Workbench out again for a study that was read from disk."""
