"""Plan: how the variants are grouped, why they are not all together, and what the device has to hold."""

from __future__ import annotations

import os
from typing import Any

import ipywidgets

from hfta_nb.study import Study
from hfta_nb.ui.parts import words
from hfta_nb.ui.text import amount, count, escape, listing, memory, shorten, table

MOST_ROWS = 20
_HEAD = ("array", "members", "fused over", "why apart", "padding", "parameters each", "memory")


def summary(study: Study) -> str:
    """The plan in one sentence."""
    groups, variants = study.groups(), count(len(study.variants), "variant")
    if study.serial:
        return f"{variants}, one after another as plain modules, as asked"
    sizes = [len(g.variants) for g in groups]
    if len(groups) == 1:
        over = _fused_over(study)[0]
        how = f": fused over {listing(over)}" if over else ""
        return f"{variants} in 1 array" + (f" of {sizes[0]}{how}" if sizes[0] > 1 else ", trained alone")
    spread = f"of {sizes[0]}" if len(set(sizes)) == 1 else f"of {min(sizes)} to {max(sizes)}"
    over = list(dict.fromkeys(name for names in _fused_over(study) for name in names))
    apart = [n for n, values in study.grid.axes.items() if len(values) > 1 and n not in over]
    parts = [f"fused over {listing(over)}"] if over else []
    parts += [f"split by {listing(apart)}"] if apart else []
    return f"{variants} in {count(len(groups), 'array')} {spread}" + (": " + "; ".join(parts) if parts else "")


def plan_table(study: Study) -> str:
    """The plan as an HTML table of escaped text."""
    groups = study.groups()
    rows = []
    for group, over in zip(groups[:MOST_ROWS], _fused_over(study), strict=False):
        members = len(group.variants)
        rows.append(
            (
                f"#{group.index}",
                members,
                ", ".join(over) or "-",
                shorten(group.reason) or "-",
                f"{group.padding:.0%}" if group.architectures > 1 else "-",
                amount(group.parameters),
                memory(group.fixed_bytes + group.memory_bytes * members),
            )
        )
    rest = len(groups) - len(rows)
    more = f'<div class="hfta-more">and {count(rest, "more array")}</div>' if rest > 0 else ""
    return table(_HEAD, rows, "hfta-plan-table", numbers=(1, 4, 5, 6)) + more


def needs(study: Study) -> str:
    """What the largest array needs of the device, in a sentence."""
    most = max(g.fixed_bytes + g.memory_bytes * len(g.variants) for g in study.groups())
    total = device_memory_bytes(study.device)
    has = f" of {memory(total)}" if total else ""
    short = "; it may not fit" if total and most > total else ""
    turns = " Arrays train one after another." if len(study.groups()) > 1 else ""
    which = "It needs" if len(study.groups()) == 1 else "The largest array needs"
    return f"{which} about {memory(most)}{has} on {device_text(study.device)}{short}.{turns}"


def device_memory_bytes(device: Any) -> int:
    """The memory of a device; 0 where it can't be told."""
    import torch

    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0


def device_text(device: Any) -> str:
    """A device for people: ``cuda:0 NVIDIA H200, 139 GiB`` or ``cpu, 8 cores, 15 GiB``."""
    import torch

    size = device_memory_bytes(device)
    if device.type == "cuda":
        name = f"{device} {torch.cuda.get_device_name(device)}"
    else:
        name = f"cpu, {count(os.cpu_count() or 1, 'core')}"
    return f"{name}, {memory(size)}" if size else name


class PlanView(ipywidgets.VBox):  # type: ignore[misc]
    """The plan as a sentence and a table; or what keeps it from being made."""

    def __init__(self) -> None:
        self.sentence = words("hfta-plan-sentence")
        self.arrays = words("hfta-plan-arrays")
        self.needs = words("hfta-plan-needs")
        super().__init__([self.sentence, self.arrays, self.needs])

    def __repr__(self) -> str:
        return "PlanView()"

    def show(self, study: Study) -> str:
        """Show a study's plan; returns the sentence."""
        said = summary(study)
        self.sentence.value = escape(said)
        self.arrays.value = plan_table(study)
        self.needs.value = escape(needs(study))
        return said

    def show_problem(self, text: str) -> None:
        """Show why there is no plan."""
        self.sentence.value = f'<span class="hfta-error">{escape(text)}</span>'
        self.arrays.value = self.needs.value = ""


def _fused_over(study: Study) -> list[list[str]]:
    """Per array, the axes that its members differ in."""
    configs = {v.id: v.config for v in study.variants}
    found = []
    for group in study.groups():
        members = [configs[i] for i in group.variants]
        found.append([n for n in study.grid.axes if any(c[n] != members[0][n] for c in members)])
    return found
