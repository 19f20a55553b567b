"""Runs: all runs of the folder, to be opened, drawn over each other, compared, labelled and deleted."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import ipywidgets

from hfta_nb.errors import HftaError
from hfta_nb.errors.caught_warnings import caught_warnings
from hfta_nb.records.summaries import Row, row_of, stores
from hfta_nb.study import RUN, annotate, compare, delete_run, together
from hfta_nb.ui.debounce import Later
from hfta_nb.ui.live_view import LiveView
from hfta_nb.ui.reopen import folder_of
from hfta_nb.ui.run_table import RunTable, summary, table_of
from hfta_nb.ui.text import count, escape, listing, metric, number, shorten
from hfta_nb.ui.text import table as html_table
from hfta_nb.ui.text import words as error_words
from hfta_nb.ui.widgets import Section, button, words
from hfta_nb.ui.workbench_protocol import Bench

SLICE_S, REST_S = 0.03, 0.01
"""Runs are read for so long at a time, and then the kernel is free for so long."""

_DRAWN_EVERY_S = 0.5
_HINT = "Choose two or more runs to draw their curves over each other and to compare their settings."


class RunList(ipywidgets.VBox):  # type: ignore[misc]
    """The section's body.

    Args:
        bench: the Workbench.
        later: the kernel's own thread.

    Attributes:
        section: the section, which is folded at first. Nothing is read before it is unfolded or a run has ended.
        table: the `RunTable`.
        live: the curves of the chosen runs; None before the first.
    """

    def __init__(self, bench: Bench, later: Later) -> None:
        self._bench = bench
        self._later = later
        self._rows: dict[str, Row] = {}
        self._left: list[Any] = []
        self._looked = False
        self._drawn_s = 0.0
        self._drawn: list[str] = []
        self.table = RunTable(self._requested)
        self.table.observe(lambda _: self._chose(), "selected")
        self.live: LiveView | None = None
        self._plot = ipywidgets.VBox([])
        self.comparison, self.note = words("hfta-runs-comparison"), words("hfta-note")
        self._make_tools()
        super().__init__([self.table, self.tools, self.confirm_box, self._plot, self.comparison])
        self.section = Section("Runs", [self], unfolded=False)
        self.section.head.observe(lambda change: self.refresh() if change["new"] else None, "unfolded")
        self._chose()

    def __repr__(self) -> str:
        return f"RunList({len(self._rows)} runs)"

    def _make_tools(self) -> None:
        self.tags = ipywidgets.Text(description="tags", continuous_update=False, layout={"width": "auto"})
        self.text = ipywidgets.Text(description="note", continuous_update=False, layout={"width": "auto"})
        self.tags.add_class("hfta-runs-tags").observe(lambda _: self._label(), "value")
        self.text.add_class("hfta-runs-note").observe(lambda _: self._label(), "value")
        self.delete = button("Delete", "Delete the chosen runs from the disk; asks first", "hfta-button-delete-runs")
        self.delete.on_click(lambda _: self._ask())
        fields = [self.tags, self.text, self.delete, self.note]
        self.tools = ipywidgets.HBox(fields).add_class("hfta-runs-label")
        self.question = words("hfta-question")
        yes = button("Delete from disk", "This can't be undone", "hfta-button-delete-confirmed")
        no = button("Keep", "Delete nothing", "hfta-button-keep-runs")
        yes.on_click(lambda _: self._delete())
        no.on_click(lambda _: self._show_question(""))
        self.confirm_box = ipywidgets.HBox([self.question, yes, no]).add_class("hfta-confirm")
        self._filling = False
        self._show_question("")

    # Reading the folder.

    def look(self) -> None:
        """Say how many runs there are, without reading them; where they were read before, read what is new."""
        if self._looked:
            self.refresh()
            return
        found = self._stores()
        on = sum(store.running is True for store in found)
        line = f"{count(len(found), 'run')}{f', {on} in progress' if on else ''}" if found else "no runs yet"
        self.section.summarise(line)

    def refresh(self) -> None:
        """Read the folder, some runs at a time; runs that have ended and were read before are not read again."""
        self._left, self._looked = self._stores(), True
        there = {str(store.directory) for store in self._left}
        self._rows = {place: row for place, row in self._rows.items() if place in there}
        self._read(self._left)

    def _stores(self) -> list[Any]:
        try:
            return stores(folder_of(self._bench.define.definition()))
        except OSError:
            return []

    def _read(self, left: list[Any]) -> None:
        if left is not self._left:
            return  # the folder is read again meanwhile
        until = time.monotonic() + SLICE_S
        with caught_warnings():
            warnings.simplefilter("ignore")  # the state of a damaged run says it
            while left:
                store = left.pop(0)
                row = row_of(store)
                self._rows.pop(str(store.directory), None)
                if row is not None:
                    self._rows[row["directory"]] = row
                if self._later.has_loop and time.monotonic() > until:
                    break
        if not left or time.monotonic() - self._drawn_s > _DRAWN_EVERY_S:
            self._draw()
        if left:
            self._later.after(REST_S, lambda: self._read(left))

    def _draw(self) -> None:
        self._drawn_s = time.monotonic()
        kept = [place for place in self.table.selected if place in self._rows]
        if kept != self.table.selected and not self._left:
            self.table.selected = kept
        rows = list(self._rows.values())
        self.table.table = table_of(rows, self._bench.bar.directory, self._drawn, len(self._left))
        self.section.summarise(summary(rows))

    # The chosen runs.

    def _chose(self) -> None:
        """Lay out for the chosen runs: their labels, their curves, and how they differ."""
        chosen = [self._rows[place] for place in self.table.selected if place in self._rows]
        self._show_question("")
        self.say("" if len(chosen) > 1 else _HINT)
        self._filling = True
        self.tags.value = ", ".join(_common(chosen))
        self.text.value = chosen[0]["note"] if len(chosen) == 1 else ""
        self._filling = False
        self.tags.disabled = self.delete.disabled = not chosen
        self.text.disabled = len(chosen) != 1
        self.tags.placeholder = "baseline, to do" if chosen else ""
        self._compare([row["directory"] for row in chosen])

    def _compare(self, places: list[str]) -> None:
        self._drawn, self.comparison.value = [], ""
        try:
            if len(places) > 1:
                with caught_warnings():
                    warnings.simplefilter("ignore")
                    history, found = together(places), compare(places)
                self.comparison.value = _comparison(found)
                self._drawn = places
                if self.live is None:
                    self.live = LiveView(color_by=RUN, split="validation")
                    self._plot.children = [self.live]
                self.live.start(history)
        except HftaError as error:
            self.say(error_words(error), bad=True)
        self._plot.layout.display = "" if self._drawn else "none"
        if self._looked:
            self._draw()

    def _label(self) -> None:
        """Write the tags and the note that were typed."""
        chosen = [self._rows[place] for place in self.table.selected if place in self._rows]
        if self._filling or not chosen:
            return
        before, typed = _common(chosen), _split(self.tags.value)
        try:
            for row in chosen:
                own = [tag for tag in _split(row["tags"]) if tag not in before or tag in typed]
                tags = [*own, *(tag for tag in typed if tag not in own)]
                annotate(row["directory"], tags, self.text.value if len(chosen) == 1 else None)
        except HftaError as error:
            self.say(error_words(error), bad=True)
        else:
            self.say(f"written to {listing(row['run'] for row in chosen)}")
        self.refresh()

    # Opening and deleting.

    def _requested(self, what: str, place: str) -> None:
        if what == "refresh":
            self.refresh()
            return
        try:
            self._bench.restore(place)
        except (HftaError, OSError) as error:
            self.say(error_words(error), bad=True)
        self._draw()

    def _ask(self) -> None:
        names = [Path(place).name for place in self.table.selected]
        many = f"{len(names)} runs" if len(names) > 3 else listing(names)
        self._show_question(f"Delete {many}? Curves, weights and checkpoints are gone then." if names else "")

    def _show_question(self, question: str) -> None:
        self.question.value = f'<span role="alert">{escape(question)}</span>' if question else ""
        self.confirm_box.layout.display = "" if question else "none"

    def _delete(self) -> None:
        self._show_question("")
        left, wrong = list[str](), ""
        for place in self.table.selected:
            try:
                delete_run(place)
            except HftaError as error:
                left, wrong = [*left, place], error_words(error)
        done = len(self.table.selected) - len(left)
        self.table.selected = left
        self.refresh()
        self.say("; ".join(filter(None, [f"deleted {count(done, 'run')}" if done else "", wrong])), bad=bool(wrong))
        offered = self._bench.offer.run
        if offered is not None and not offered.directory.exists():
            self._bench.offer.show(None)
        self._bench.phase_changed()  # the run on the screen may be gone

    def say(self, text: str, bad: bool = False) -> None:
        """Show a sentence beside the fields."""
        mark = ' class="hfta-error"' if bad else ""
        self.note.value = f'<span role="status"{mark}>{escape(text)}</span>' if text else ""

    def close(self) -> None:
        """Close the section as well."""
        self._left = []  # what is being read is not wanted any more
        super().close()


def _split(tags: str) -> list[str]:
    return list(dict.fromkeys(tag.strip() for tag in tags.split(",") if tag.strip()))


def _common(rows: Iterable[Row]) -> list[str]:
    """The tags that all of these runs have."""
    every = [_split(row["tags"]) for row in rows]
    return [tag for tag in every[0] if all(tag in tags for tags in every)] if every else []


def _comparison(found: Any) -> str:
    """The table of `compare` as HTML."""

    def cell(value: Any) -> str:
        return number(value) if isinstance(value, float) else shorten(str(value), 60)

    said = [metric(name) if name.startswith("best ") else name for name in found.index]
    rows = [[name, *map(cell, row)] for name, row in zip(said, found.to_numpy(), strict=True)]
    return html_table(["setting", *map(str, found.columns)], rows, "hfta-runs-compare")
