"""What remains of a Workbench after its kernel ends: outputs of a saved notebook, and reattaching to a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hfta_nb.study import Study
from hfta_nb.ui import static
from hfta_nb.ui.debounce import Later
from hfta_nb.ui.exports import name_of
from hfta_nb.ui.reopen import latest
from hfta_nb.ui.run_phase import ENDED
from hfta_nb.ui.saved_run import columns_of, keep_columns
from hfta_nb.ui.workbench_protocol import Bench


class Persistence:
    """Keeps the saved outputs of a Workbench up to date, and offers an earlier saved run.

    Args:
        bench: the Workbench.
        later: the kernel's own thread.

    Attributes:
        fallback: the saved outputs.
    """

    def __init__(self, bench: Bench, later: Later) -> None:
        self._bench, self._later = bench, later
        self.fallback = static.Fallback(lambda: repr(bench), lambda: self.name)
        self._looked: Any = None

    @property
    def name(self) -> str:
        """The variable that holds the Workbench."""
        return name_of(self._bench, "workbench")

    def displayed(self) -> None:
        """The Workbench stands in the output of the cell that is running."""
        bench = self._bench
        over = bench.state in ENDED and bench.history.run is not None
        self.fallback.place(bench.history if over else None)

    def be_seen(self, show: bool) -> None:
        """Scroll to the run, since *Run All* ends at the last cell and Define has folded; `show`: if need be, here."""
        if self.fallback.placed:
            self._bench.bar.reveal = True
        elif show and static.in_notebook():
            self._bench.show()

    def begun(self, study: Study) -> None:
        """Called when a run begins: add the way to reattach to the saved outputs."""
        self.announce(str(study.directory))
        self._later.here(lambda: self.fallback.begin(study))

    def arranged(self) -> None:
        """Keep the arrangement of the leaderboard's columns with the run that it shows."""
        if self._bench.bar.directory:
            keep_columns(Path(self._bench.bar.directory), self._bench.leaderboard.arranged)

    def announce(self, directory: str) -> None:
        """Tell the front end where the run is saved, in case the kernel ends."""
        self._bench.bar.directory = directory
        self._bench.bar.way_back = list(static.reattach_command(directory, self.name))

    def waited(self) -> None:
        """Called after a cell waited for a run: show the run in its outputs and in those of the Workbench's cell."""
        if not self.fallback.here:
            static.show(self._bench.history)
        self._later.here(self.keep)

    def keep(self) -> None:
        """Write the run to the saved outputs, on the kernel's main thread."""
        if self._bench.history.run is not None:
            self.fallback.update(self._bench.history)

    def look(self) -> None:
        """Before the first run, offer the latest saved run of this definition."""
        found = self._bench.define.definition()
        looked = found.family, self._bench.define.data_field.value, found.options.get("directory")
        if looked != self._looked:
            self._looked = looked
            earlier = latest(found)
            self._bench.offer.show(earlier)
            if earlier is not None:
                self._bench.leaderboard.arranged = columns_of(earlier.directory)
