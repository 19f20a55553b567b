"""Tables of the command: leaderboard, families, plan, CSV."""

from __future__ import annotations

import csv
import math
from pathlib import Path

from hfta_nb import events as ev
from hfta_nb.cli import terminal_tables
from hfta_nb.records.events import Event
from hfta_nb.search.grid import AxisSpec
from tests.cli.fake import console, epoch, folded, planned, started, whole_run


def leaderboard(events: list[Event], *, terminal: bool = False, width: int = 10_000) -> list[str]:
    out, file = console(terminal=terminal, width=width)
    terminal_tables.leaderboard(folded(events), out)
    return [line.rstrip() for line in file.getvalue().splitlines()]


def read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_the_leaderboard_goes_from_best_to_worst() -> None:
    head, _, *rows = leaderboard(whole_run())
    assert head.split() == ["member", "state", "best", "epoch", "val_accuracy", "train_loss", "val_loss", "lr"]
    assert [row.split()[:4] for row in rows[:3]] == [
        ["#1", "COMPLETE", "4", "0.875"],
        ["#0", "COMPLETE", "4", "0.75"],
        ["#2", "DIVERGED!", "-", "-"],
    ]


def test_a_member_that_ended_early_says_why() -> None:
    assert leaderboard(whole_run())[-1] == "#2 DIVERGED: loss is nan in epoch 1"


def test_members_with_the_same_end_share_a_line() -> None:
    stopped: list[Event] = [ev.MemberChanged(0.0, i, ev.STOPPED, "the run was stopped") for i in (0, 1, 2)]
    assert leaderboard([started(), planned((0, 1, 2)), *stopped])[-1] == "#0-2 STOPPED: the run was stopped"


def test_a_long_leaderboard_is_cut_and_says_so() -> None:
    axes = {"seed": tuple(range(100))}
    run = [started(axes, count=100), planned(range(100)), *epoch(0, 1, {i: i / 100 for i in range(100)})]
    found = leaderboard(run)
    assert len(found) == terminal_tables.MOST_ROWS + 3
    assert found[2].split()[0] == "#99"
    assert found[-1] == "... and 60 members more (--csv FILE has them all)"


def test_a_narrow_terminal_does_without_training_metrics() -> None:
    narrow = leaderboard(whole_run(), terminal=True, width=64)
    assert "train_loss" not in narrow[0]
    assert "val_loss" in narrow[0]
    assert max(map(len, narrow)) <= 64
    assert "train_loss" in leaderboard(whole_run(), terminal=True, width=200)[0]


def test_a_file_gets_lines_of_any_width() -> None:
    axes = {f"a_long_name_of_an_axis_{i}": ("a long value " * 3,) for i in range(20)}
    found = leaderboard([started(axes, count=1), planned((0,)), *epoch(0, 1, {0: 0.5})])
    assert len(found) == 3
    assert found[2].count("a long value a long value a long value") == 20


def test_names_are_text() -> None:
    axes = {"[bold]": ("[red]x\x1b[0m",)}
    found = leaderboard([started(axes, count=1), planned((0,)), *epoch(0, 1, {0: 0.5})])
    assert found[0].endswith("[bold]")
    assert found[2].endswith("[red]x\\x1b[0m")


def test_the_csv_holds_every_member_in_full(tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    values = {i: (i + 1) / 7 for i in range(100)}
    run = [started({"kind": ("a,b", '"c"')}, count=100), planned(range(100)), *epoch(0, 1, values)]
    terminal_tables.write_csv(folded([*run, ev.MemberChanged(0.0, 0, ev.DIVERGED, "nan, sadly")]), str(path))
    rows = read(path)
    assert len(rows) == 100
    assert float(rows[0]["val_accuracy"]) == 100 / 7
    assert (rows[-1]["member"], rows[-1]["state"], rows[-1]["reason"]) == ("0", "DIVERGED", "nan, sadly")
    assert {row["kind"] for row in rows} == {"a,b", '"c"'}


def test_the_csv_leaves_out_what_is_no_number(tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    terminal_tables.write_csv(folded([started(count=1), planned((0,)), *epoch(0, 1, {0: math.nan})]), str(path))
    [row] = read(path)
    assert row["val_loss"] == ""


def test_axes_say_what_they_accept() -> None:
    specs = {
        "lr": AxisSpec("lr", "float", 1e-3, low=0.0, help="Learning rate."),
        "beta": AxisSpec("beta", "float", 0.9, low=0.0, high=1.0),
        "kind": AxisSpec("kind", "str", "a", choices=("a", "[b]")),
        "n": AxisSpec("n", "int", None, high=3),
    }
    out, file = console(width=200)
    out.print(terminal_tables._axes(specs))
    rows = [line.split() for line in file.getvalue().splitlines()[2:]]
    assert rows == [
        ["lr", "float", "0.001", "from", "0", "Learning", "rate."],
        ["beta", "float", "0.9", "from", "0", "to", "1"],
        ["kind", "str", "a", "a,", "[b]"],
        ["n", "int", "none", "to", "3"],
    ]


def test_the_plan_says_what_is_not_fused_and_why() -> None:
    row = {"array": 1, "members": 3, "variants": [3, 4, 5], "differing_in": "lr", "split_because": "width: 8 and [16]"}
    out, file = console(width=200)
    row |= {"architectures": 2, "padding": 0.21}
    terminal_tables.plan([{**row, "parameters": 1442, "memory_bytes": 33_900}], {3: "#3 lr=[red]"}, out)
    shown = file.getvalue()
    assert "#1      3         3-5        lr             width: 8 and [16]" in shown
    assert "21%" in shown
    assert "1,442" in shown
    assert "33.1 KiB" in shown
    assert "#3 lr=[red]" in shown
    assert "does not fit" not in shown


def test_the_plan_says_what_does_not_fit() -> None:
    row = {"members": 1, "variants": [0], "differing_in": "-", "split_because": "-", "architectures": 1, "padding": 0.0}
    row |= {"parameters": 10**10, "memory_bytes": 5 << 40, "fixed_bytes": 0}
    out, file = console(width=300)
    terminal_tables.plan([{**row, "array": 0, "capacity": 3.0}, {**row, "array": 1, "capacity": 0.0}], {0: "#0"}, out)
    [line] = [line for line in file.getvalue().splitlines() if "fit" in line]
    assert line.startswith(
        "array #1 does not fit: one member takes about 5.0 TiB, more than the device has free; choose"
    )
