"""Tables for a terminal or a file."""

from __future__ import annotations

import contextlib
import csv
import io
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from hfta_nb import events as ev
from hfta_nb.cli import text as show
from hfta_nb.errors import StoreError
from hfta_nb.errors.plain_text import cell
from hfta_nb.records import regular_files
from hfta_nb.records.history import History, Member
from hfta_nb.search.grid import show as show_value

if TYPE_CHECKING:
    from hfta_nb import Family
    from hfta_nb.search.grid import AxisSpec
    from hfta_nb.study import Part

MOST_ROWS = 40
"""With more members than this, the rest is only counted; the CSV has all."""

MOST_REASONS = 8
"""With more reasons for early ends than this, the rest is only counted."""

STYLES = {
    ev.COMPLETE: "green",
    ev.RUNNING: "cyan",
    ev.DIVERGED: "bold red",
    ev.FAILED: "bold red",
    ev.STOPPED: "yellow",
    ev.INTERRUPTED: "yellow",
}
MARKS = {ev.DIVERGED: "!", ev.FAILED: "!"}
"""States that are marked in output without colour."""

FILE_WIDTH = 10_000
"""Width of lines in a file or a pipe, which are not wrapped."""


def console(plain: bool = False) -> Console:
    """The output: a terminal, or plain text of any width."""
    made = Console(highlight=False, markup=False, emoji=False)
    if plain or not made.is_terminal or made.is_dumb_terminal:
        return Console(
            highlight=False, markup=False, emoji=False, color_system=None, width=FILE_WIDTH, force_terminal=False
        )
    return made


@contextlib.contextmanager
def printing() -> Iterator[None]:
    """Make a failure to write to standard output, such as a full disk, a typed error; a reader who is gone is none.

    Raises:
        StoreError: it can't be written.
    """
    try:
        yield
    except (BrokenPipeError, StoreError):
        raise
    except OSError as error:
        raise StoreError(f"can't be written ({error.strerror})", where="standard output") from error


def leaderboard(history: History, out: Console) -> None:
    """The members from best to worst: state, best epoch, metrics there, the values of the axes."""
    members = history.leaderboard()
    shown = members[:MOST_ROWS]
    table = _leaderboard(history, shown, history.metrics)
    width = Measurement.get(out, out.options.update(width=FILE_WIDTH, max_width=FILE_WIDTH), table).maximum
    if out.is_terminal and width > out.width:
        table = _leaderboard(history, shown, [m for m in history.metrics if not m.startswith("train_")])
    out.print(table)
    reasons: dict[tuple[str, str], list[int]] = {}
    for member in members:
        if member.reason:
            reasons.setdefault((member.state, member.reason), []).append(member.id)
    for (state, reason), ids in list(reasons.items())[:MOST_REASONS]:
        out.print(Text(show.clean(f"#{show.ids(ids)} {state}: {reason}"), STYLES.get(state, "")), soft_wrap=True)
    if len(reasons) > MOST_REASONS:
        out.print(f"... and {show.several(len(reasons) - MOST_REASONS, 'reason')} more")
    if len(members) > len(shown):
        out.print(f"... and {show.several(len(members) - len(shown), 'member')} more (--csv FILE has them all)")


@printing()
def runs(rows: Sequence[Mapping[str, Any]], out: Console) -> None:
    """The runs of a folder, as `hfta_nb.runs` has them."""
    table = _table("run", "state", "members", "epochs", "monitor", "best", "started", "took", "of", "tags", "note")
    for row in rows:
        best = show.NOTHING if row["best"] is None else show.metric(row["best"])
        of = f"{row['family']} on {row['data']}" + (f" ({row['axes']})" if row["axes"] else "")
        label = show.clean(row["tags"]), show.clean(row["note"])
        run, members, epochs, monitor = (show.clean(str(row[name])) for name in ("run", "members", "epochs", "monitor"))
        rest = members, epochs, monitor, best, f"{row['started']}", show.duration(row["took_s"]), show.clean(of), *label
        table.add_row(run, Text(row["state"], STYLES.get(row["state"], "")), *rest)
    out.print(table if rows else "no runs")


def _leaderboard(history: History, members: Sequence[Member], metrics: Sequence[str]) -> Table:
    monitor = history.run.monitor if history.run else ""
    names = sorted(metrics, key=lambda name: name != monitor)
    axes = list(history.run.axes) if history.run else []
    table = _table("member", "state", "best epoch", *names, *axes)
    for column in table.columns:
        column.justify, column.no_wrap = ("left" if column.header in ("state", *axes) else "right"), True
    for member in members:
        mark = MARKS.get(member.state, "")
        cells: list[str | Text] = [f"#{member.id}", Text(member.state + mark, STYLES.get(member.state, ""))]
        cells += [str(member.best_epoch or show.NOTHING), *(show.metric(member.at_best(n)) for n in names)]
        cells += [show.clean(show_value(member.config.get(axis))) for axis in axes]
        table.add_row(*cells)
    return table


@printing()
def families(
    known: Sequence[Family],
    training: Mapping[str, AxisSpec],
    augmentation: Mapping[str, Mapping[str, AxisSpec]],
    out: Console,
) -> None:
    """Each family with its own axes, then the axes of all families, and those of a kind of data."""
    for family in known:
        out.print(Text(show.clean(family.name), "bold"), end="")
        out.print(f"  {show.clean(family.help)}")
        default = " (the first is the default)" if len(family.data) > 1 else ""
        out.print(f"data: {show.clean(', '.join(family.data))}{default}")
        out.print(_axes(family.axes))
        own = {name: spec for name, spec in family.training.items() if spec != training.get(name)}
        if own:
            out.print("training axes of its own, or with its own defaults")
            out.print(_axes(own))
        out.print()
    out.print(Text("all families", "bold"), end="")
    out.print("  also have the axes of training")
    out.print(_axes(training))
    for kind, axes in augmentation.items():
        out.print()
        out.print(Text(f"families on {kind}", "bold"), end="")
        out.print("  also have augmentation, off by default")
        out.print("families: " + show.clean(", ".join(f.name for f in known if kind in f.augmentation)))
        out.print(_axes(axes))


def _axes(specs: Mapping[str, AxisSpec]) -> Table:
    table = _table("axis", "type", "default", "accepts", "")
    for name, spec in specs.items():
        cells = [name, spec.type, show_value(spec.default), _accepts(spec), spec.help]
        table.add_row(*map(show.clean, cells))
    return table


def _accepts(spec: AxisSpec) -> str:
    if spec.choices:
        return ", ".join(map(show_value, spec.choices))
    low = "" if spec.low is None else f"from {spec.low:g}"
    above = "" if spec.above is None else f"above {spec.above:g}"
    high = "" if spec.high is None else f"to {spec.high:,g}" if spec.high < 1000 else f"to {spec.high:,.0f}"
    return " ".join(filter(None, [low, above, high]))


@printing()
def plan(rows: Sequence[Mapping[str, Any]], variants: Mapping[int, str], out: Console) -> None:
    """The groups: which variants train together, what they differ in, and the reasons for splits.

    Args:
        rows: rows of `Study.plan()`.
        variants: a label per variant.
        out: the output.
    """
    names = ("differing in", "split because", "padding", "parameters", "memory", "at most")
    table = _table("array", "members", "variants", *names)
    for row in rows:
        cells = [f"#{row['array']}", str(row["members"]), show.ids(row["variants"]), row["differing_in"]]
        padding = f"{row['padding']:.0%}" if row["architectures"] > 1 else "-"
        cells += [row["split_because"], padding, show.count(row["parameters"]), show.memory(row["memory_bytes"])]
        most = row.get("capacity")
        cells.append(show.NOTHING if most is None or most != most else show.count(most))
        table.add_row(*map(show.clean, cells))
    out.print(table)
    out.print("parameters and memory are those of one member; an array has at most so many members")
    for row in rows:
        if row.get("capacity") == 0:
            needed = show.memory(row["fixed_bytes"] + row["memory_bytes"])
            what = f"array #{row['array']} does not fit: one member takes about {needed}, more than the device has free"
            out.print(Text(f"{what}; choose smaller sizes, a smaller batch_size or another device"), soft_wrap=True)
    out.print()
    for label in list(variants.values())[:MOST_ROWS]:
        out.print(show.clean(label))
    if len(variants) > MOST_ROWS:
        out.print(f"... and {show.several(len(variants) - MOST_ROWS, 'variant')} more")


@printing()
def parts(found: Sequence[Part], out: Console) -> None:
    """The parts of a machine: what there is, and of what is missing what that costs and what to do."""
    words = {True: "yes", False: "no", None: show.NOTHING}
    for part in found:
        style = "yellow" if part.found is False else ""
        out.print(Text(f"{words[part.found]:4}{part.part}: {show.clean(part.has)}", style), soft_wrap=True)
        for name, text in (("costs", part.costs), ("remedy", part.remedy)):
            if text:
                out.print(Text(f"    {name}: {show.clean(text)}"), soft_wrap=True)


def write_csv(history: History, path: str) -> None:
    """Write the whole leaderboard, with numbers in full and empty cells for missing ones.

    Raises:
        OSError: the file can't be written; what was there stays where the disk is full.
    """
    rows = history.rows()
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(map(cell, rows[0] if rows else ()))
    writer.writerows(map(_cell, row.values()) for row in rows)
    regular_files.rewrite(path, text.getvalue().encode(errors="backslashreplace"))


def _cell(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return ""
    return cell(show_value(value) if isinstance(value, bool | tuple) or value is None else value)


def _table(*headers: str) -> Table:
    ascii_only = not (sys.stdout.encoding or "").lower().startswith("utf")
    table = Table(
        box=box.ASCII if ascii_only else box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold"
    )
    for header in headers:
        table.add_column(show.clean(header), overflow="fold")
    return table
