"""Embedding tables over devices: where they lie, and that several processes come to what one does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hfta_nb.errors import DistributedError
from hfta_nb.workers.distributed import ShardedTables, place_tables
from tests.fleet import table_ranks
from tests.forked import context

VECTORS = [  # rows, devices, by, entries by device
    ([6, 2, 2, 2], 2, "rows", [24, 24]),
    ([8, 1, 1], 2, "rows", [20, 20]),  # the first is halved
    ([16], 4, "rows", [16, 16, 16, 16]),
    ([16], 4, "columns", [16, 16, 16, 16]),
    ([5, 5, 5, 5], 2, "columns", [40, 40]),
    ([1], 2, "rows", [4, 0]),  # a row is not divided
]


@pytest.mark.parametrize(("rows", "devices", "by", "sizes"), VECTORS)
def test_vectors(rows: list[int], devices: int, by: str, sizes: list[int]) -> None:
    assert place_tables(rows, 4, devices, by=by).sizes() == sizes


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 200), min_size=1, max_size=9), st.integers(1, 6), st.sampled_from(["rows", "columns"]))
def test_every_entry_lies_on_one_device(rows: list[int], devices: int, by: str) -> None:
    placement = place_tables(rows, 8, devices, by=by)
    marks = [torch.zeros(count, 8) for count in rows]
    for piece in placement.pieces:
        marks[piece.table][slice(*piece.rows), slice(*piece.columns)] += 1
    assert all(bool((mark == 1).all()) for mark in marks)
    mean, least = sum(rows) * 8 / devices, 8 if by == "rows" else max(rows)
    assert max(placement.sizes()) <= max(1.05 * mean, mean + least)


def test_loads_are_balanced_where_lookups_are_not_even() -> None:
    """Simulated: by Zipf's law the first rows of a table are read most, which division by columns balances."""
    torch.manual_seed(0)
    rows = [1000, 10, 10, 10]
    share = 1 / torch.arange(1.0, 1001)
    categories = torch.stack([torch.multinomial(share[:n], 4000, replacement=True) for n in rows], 1)
    read = {by: place_tables(rows, 8, 2, by=by, load=[1.0] * 4).simulated(categories) for by in ("rows", "columns")}
    assert sum(read["rows"]) == sum(read["columns"]) == 4000 * 4 * 8
    assert read["columns"] == [4000 * 16] * 2
    halves = place_tables(rows[:1], 8, 2).simulated(categories[:, :1])
    assert max(halves) > 1.5 * min(halves)


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.long)])
def test_several_processes_come_to_what_one_does(count: int, tmp_path: Path) -> None:
    given_to = [(rank, count, str(tmp_path / "store"), str(tmp_path / f"{rank}.pt")) for rank in range(count)]
    started = [context().Process(target=table_ranks.main, args=args) for args in given_to]
    for process in started:
        process.start()
    for process in started:
        process.join(120)
    assert [process.exitcode for process in started] == [0] * count
    ranks = [torch.load(tmp_path / f"{rank}.pt") for rank in range(count)]
    for by, rowwise in table_ranks.CASES:
        losses, tables = table_ranks.alone(rowwise)
        for rank in ranks:
            theirs, weights = rank[f"{by} {rowwise}"]
            torch.testing.assert_close(torch.stack(theirs), torch.stack(losses), rtol=0, atol=1e-10)
            torch.testing.assert_close(weights, tables, rtol=0, atol=1e-10)


def test_wrong_placements_are_refused() -> None:
    wrong: list[dict[str, Any]] = [
        {"rows": []},
        {"rows": [0]},
        {"devices": 0},
        {"by": "table"},
        {"load": [1.0]},
        {"width": 1.5},
    ]
    for bad in wrong:
        arguments: dict[str, Any] = {"rows": [4, 5], "width": 2, "devices": 2, **bad}
        with pytest.raises(DistributedError):
            place_tables(**arguments)
    with pytest.raises(DistributedError, match="init_process_group"):
        ShardedTables([torch.zeros(4, 2)], place_tables([4], 2, 1))
