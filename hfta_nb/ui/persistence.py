"""What of a Workbench lasts beyond its kernel: the outputs of a saved notebook, and the way back to a run."""

from __future__ import annotations

from typing import Any

from hfta_nb.study import Study
from hfta_nb.ui import static
from hfta_nb.ui.debounce import Later
from hfta_nb.ui.exports import name_of
from hfta_nb.ui.protocol import Bench
from hfta_nb.ui.reopen import latest
from hfta_nb.ui.run_phase import ENDED


class Persistence:
    """Keeps the saved outputs of a Workbench in step with its run, and offers a run that was saved before.

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

    def be_seen(self) -> None:
        """Show where a run can be watched: *Run All* leaves a reader at the last cell."""
        if self.fallback.placed:
            self._bench.bar.reveal = True
        elif static.in_notebook():
            self._bench.show()

    def begun(self, study: Study) -> None:
        """A run begins: put the way back to it into the saved outputs."""
        self.tell(str(study.directory))
        self._later.here(lambda: self.fallback.begin(study))

    def tell(self, directory: str) -> None:
        """Let the front end know where the run is saved, for when the kernel is gone."""
        self._bench.bar.directory = directory
        self._bench.bar.way_back = list(static.reattach_command(directory, self.name))

    def waited(self) -> None:
        """The cell that waited for a run is done: its outputs, and those of the cell of the Workbench, show the run."""
        if not self.fallback.here:
            static.show(self._bench.history)
        self._later.here(self.keep)

    def keep(self) -> None:
        """Put the run into the saved outputs; on the kernel's own thread."""
        if self._bench.history.run is not None:
            self.fallback.update(self._bench.history)

    def look(self) -> None:
        """Offer the latest saved run of what is defined, before the first run here."""
        found = self._bench.define.definition()
        looked = found.family, self._bench.define.data_field.value, found.options.get("directory")
        if looked != self._looked:
            self._looked = looked
            self._bench.offer.show(latest(found))
