"""Plan: the arrays, the reasons for splits, memory, and how the study computes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import ipywidgets

from hfta_nb.records.events import GroupRecord
from hfta_nb.study import Study, executors
from hfta_nb.ui.alternatives import Alternatives, Make
from hfta_nb.ui.debounce import Later
from hfta_nb.ui.simulate import Simulate
from hfta_nb.ui.text import amount, count, escape, listing, memory, shorten, table
from hfta_nb.ui.trials import plan_words
from hfta_nb.ui.widgets import button, words

MOST_ROWS = 20
_HEAD = ("array", "members", "differing in", "split because", "padding", "parameters each", "memory")


_COMPILE = {
    "auto": "steps are compiled if that pays",
    "always": "steps are compiled before they are trained with",
    "never": "steps are not compiled",
}
_CAPACITY = {None: "as many members as fit", "auto": "as many members as are fastest (measured first)"}
_AGAIN = "activations computed again"

Configs: TypeAlias = Mapping[int, Mapping[str, Any]]
"""By variant, its values."""


def summary(study: Study, groups: Sequence[GroupRecord] | None = None, configs: Configs | None = None) -> str:
    """The plan in one sentence.

    Args:
        study: what is planned.
        groups: the groups of its run; by default the planned ones.
        configs: of the members of its run, of which clones and trials have come later than the plan.
    """
    groups = study.groups() if groups is None else groups
    variants = count(sum(len(group.variants) for group in groups), "variant")
    if study.serial:
        return f"{variants}, one after another as plain modules, as asked"
    sizes = [len(g.variants) for g in groups]
    if len(groups) == 1:
        over = _differing_in(study, groups, configs)[0]
        how = f": differing in {listing(over)}" if over else ""
        return f"{variants} in 1 array" + (f" of {sizes[0]}{how}" if sizes[0] > 1 else ", trained alone")
    spread = f"of {sizes[0]}" if len(set(sizes)) == 1 else f"of {min(sizes)} to {max(sizes)}"
    over = list(dict.fromkeys(name for names in _differing_in(study, groups, configs) for name in names))
    apart = [n for n, values in study.grid.axes.items() if len(values) > 1 and n not in over]
    parts = [f"differing in {listing(over)}"] if over else []
    parts += [f"split by {listing(apart)}"] if apart else []
    return f"{variants} in {count(len(groups), 'array')} {spread}" + (": " + "; ".join(parts) if parts else "")


def plan_table(study: Study, groups: Sequence[GroupRecord] | None = None, configs: Configs | None = None) -> str:
    """The plan as an HTML table of escaped text; see `summary`."""
    groups = study.groups() if groups is None else groups
    known = any(group.capacity for group in groups)  # not requested, or nothing measured yet
    rows = []
    for group, over in zip(groups[:MOST_ROWS], _differing_in(study, groups, configs), strict=False):
        members = len(group.variants)
        cells = (
            str(group.index),
            members,
            ", ".join(over) or "-",
            shorten(group.reason) or "-",
            f"{group.padding:.0%}" if group.architectures > 1 else "-",
            amount(group.parameters),
            memory(group.fixed_bytes + group.memory_bytes * members),
        )
        rows.append((*cells, group.capacity or "-") if known else cells)
    rest = len(groups) - len(rows)
    more = f'<div class="hfta-more">and {count(rest, "more array")}</div>' if rest > 0 else ""
    head = (*_HEAD, "members at most") if known else _HEAD
    return table(head, rows, "hfta-plan-table", numbers=(1, 4, 5, 6, 7)) + more


def needs(study: Study, groups: Sequence[GroupRecord] | None = None) -> str:
    """Memory of the largest array, in a sentence; see `summary`."""
    groups = study.groups() if groups is None else groups
    most = max(g.fixed_bytes + g.memory_bytes * len(g.variants) for g in groups)
    total = device_memory_bytes(study.device)
    has = f" of {memory(total)}" if total else ""
    one = max(g.fixed_bytes + g.memory_bytes for g in groups)
    short = "; it may not fit" if total and most > total else ""
    if total and one > total:
        short = f"; not even one member fits, which takes {memory(one)}: choose smaller sizes"
    turns = " Arrays train one after another." if len(groups) > 1 else ""
    which = "Its tensors need" if len(groups) == 1 else "The largest array's tensors need"
    process = " The process has Python and torch beside them." if study.device.type == "cpu" else ""
    return f"{which} about {memory(most)}{has} on {study.device}{short}.{process}{turns}"


def manner(study: Study, groups: Sequence[GroupRecord] | None = None) -> str:
    """Precision, size of arrays and compilation, in a sentence; see `summary`."""
    how = f"It computes in {study.precision if study.precision != 'fp32' else str(study.dtype).removeprefix('torch.')}"
    if study.serial:
        return f"{how}."
    size = (
        f"at most {count(study.capacity, 'member')}" if isinstance(study.capacity, int) else _CAPACITY[study.capacity]
    )
    again = study.checkpointing == "always" or any(_AGAIN in g.strategy for g in groups or ())
    more = " Activations are computed again in the backward." if again else ""
    return f"{how}, with {size} in an array; {_COMPILE[study.compile]}.{more}"


def device_memory_bytes(device: Any) -> int:
    """The memory of a device; 0 if unknown."""
    import torch

    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0


def device_text(device: Any) -> str:
    """A device as text: ``cuda:0 NVIDIA H200, 139 GiB`` or ``cpu, 8 cores, 15 GiB``."""
    import torch

    size = device_memory_bytes(device)
    if device.type == "cuda":
        name = f"{device} {torch.cuda.get_device_name(device)}"
    else:
        name = f"cpu, {count(os.cpu_count() or 1, 'core')}"
    return f"{name}, {memory(size)}" if size else name


class PlanView(ipywidgets.VBox):  # type: ignore[misc]
    """The plan as a sentence and a table, or the reason why there is none.

    Args:
        where: runs of this Workbench are executed.
        later: the kernel's main thread.
        choose: called with a value of `padding` that was clicked.

    Attributes:
        groups: the groups of the run that were shown last.
        tried: the results of trying each architecture's forward.
        alternatives: other plans, to click.
        simulate: what the plan would take on other devices.
    """

    def __init__(self, where: executors.Where, later: Later, choose: Callable[[float | str], None]) -> None:
        self.sentence = words("hfta-plan-sentence")
        self.search = words("hfta-plan-search")
        self.arrays = words("hfta-plan-arrays")
        self.needs = words("hfta-plan-needs")
        self.manner = words("hfta-plan-needs")
        self.tried = words("hfta-plan-tried")
        self.again = button("Try again", "Try each architecture on one batch once more", "hfta-button-try-again")
        self.again.layout.display = "none"
        self.groups: Sequence[GroupRecord] = ()
        self.alternatives = Alternatives(where.kind, later, choose)
        self.simulate = Simulate(where, later)
        parts = [
            self.search,
            self.sentence,
            self.arrays,
            self.needs,
            self.manner,
            self.alternatives,
            self.tried,
            self.again,
        ]
        super().__init__([*parts, self.simulate])

    def __repr__(self) -> str:
        return "PlanView()"

    def show(
        self,
        study: Study,
        groups: Sequence[GroupRecord] | None = None,
        configs: Configs | None = None,
        make: Make | None = None,
    ) -> str:
        """Show a study's plan, or its current groups during a run (see `summary`); returns the sentence.

        `make` makes the study with another value of `padding`.
        """
        said, self.groups = summary(study, groups, configs), groups or self.groups
        planned = plan_words(study)
        first = "The first trials: " if study.searcher is not None and groups is None else ""
        self.search.value, self.sentence.value = escape(planned), escape(first + said)
        self.arrays.value = plan_table(study, groups, configs)
        self.needs.value = escape(needs(study, groups))
        self.manner.value = escape(manner(study, groups))
        if groups is None:
            self.simulate.plan(study)
            self.alternatives.plan(study, make)
        return planned.partition(". ")[0] if study.searcher is not None else said

    def enable(self, at_rest: bool) -> None:
        """Called with whether no run is in progress; nothing is measured then."""
        self.simulate.enable(at_rest)
        if not at_rest:
            self.alternatives.plan(None, None)

    def show_tried(self, markup: str, wrong: bool) -> None:
        """Show what trying each architecture has found; it can be tried again where something is wrong."""
        self.tried.value, self.again.layout.display = markup, "" if wrong else "none"

    def show_problem(self, text: str) -> None:
        """Show why there is no plan."""
        self.sentence.value = f'<span class="hfta-error">{escape(text)}</span>'
        self.search.value = self.arrays.value = self.needs.value = self.manner.value = ""
        self.simulate.plan(None)
        self.alternatives.plan(None, None)

    def close(self) -> None:
        """Stop measuring, and close the widget."""
        self.alternatives.stop()
        self.simulate.close()
        super().close()


def _differing_in(study: Study, groups: Sequence[GroupRecord], configs: Configs | None) -> list[list[str]]:
    """Per array, the axes that its members differ in."""
    known = {v.id: v.config for v in study.variants} if configs is None else configs
    found = []
    for group in groups:
        members = [known[i] for i in group.variants if i in known]
        found.append([n for n in study.grid.axes if any(c.get(n) != members[0].get(n) for c in members)])
    return found
