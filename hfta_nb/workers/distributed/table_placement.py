"""Where the embedding tables of a large model lie: pieces of tables by device, with balanced load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from hfta_nb.errors import DistributedError

BY = ("rows", "columns")
"""Along which axis a table is divided."""

_TOLERANCE = 0.05
"""Pieces are halved until no device has a load so much above the mean."""


@dataclass(frozen=True)
class Piece:
    """A part of a table on a device.

    Attributes:
        table: number of the table.
        device: number of the device.
        rows, columns: from where to where the piece goes.
    """

    table: int
    device: int
    rows: tuple[int, int]
    columns: tuple[int, int]

    @property
    def size(self) -> int:
        """The number of its entries."""
        return (self.rows[1] - self.rows[0]) * (self.columns[1] - self.columns[0])


@dataclass(frozen=True)
class Placement:
    """Where tables lie.

    Attributes:
        rows: of each table.
        width: columns of all tables.
        devices: how many.
        pieces: in the order of tables; together they are every entry of every table once.
    """

    rows: tuple[int, ...]
    width: int
    devices: int
    pieces: tuple[Piece, ...]

    def of_device(self, device: int) -> list[Piece]:
        """The pieces of a device."""
        return [piece for piece in self.pieces if piece.device == device]

    def sizes(self) -> list[int]:
        """Entries by device."""
        return [sum(piece.size for piece in self.of_device(device)) for device in range(self.devices)]

    def simulated(self, categories: Int[Tensor, "N tables"]) -> list[int]:
        """Entries that each device reads for a mini-batch.

        Args:
            categories: one per sample and table; a negative one is none.
        """
        found = [0] * self.devices
        for piece in self.pieces:
            own = categories[:, piece.table]
            read = int(((own >= piece.rows[0]) & (own < piece.rows[1])).sum())
            found[piece.device] += read * (piece.columns[1] - piece.columns[0])
        return found


def place_tables(
    rows: Sequence[int], width: int, devices: int, *, by: str = "rows", load: Sequence[float] | None = None
) -> Placement:
    """Distribute embedding tables over devices so that their loads are balanced.

    The largest piece goes to the device with the least load, and so on. While a device's load is more than 5% above the
    mean, its largest piece is halved.

    Args:
        rows: of each table.
        width: columns of all tables.
        devices: how many devices.
        by: "rows" or "columns", along which tables are divided.
        load: of each table, such as lookups per sample; by default its number of rows.

    Raises:
        DistributedError: a number is not positive, or there is not one load per table.

    Example:
        >>> place_tables([6, 2, 2, 2], 4, devices=2).sizes()
        [24, 24]
    """
    loads = list(map(float, rows if load is None else load))
    for name, values in (("rows", rows), ("width", [width]), ("devices", [devices])):
        if not values or any(isinstance(v, bool) or not isinstance(v, int) or v < 1 for v in values):
            raise DistributedError("not whole numbers from 1", where=name, got=values, accepted="at least 1 each")
    if len(loads) != len(rows) or any(not 0 <= v < float("inf") for v in loads):
        raise DistributedError("not one load per table", where="load", got=load, accepted=f"{len(rows)} numbers")
    if by not in BY:
        raise DistributedError("unknown choice", where="by", got=by, accepted=", ".join(BY))
    axis = by == "columns"
    boxes = [((0, count), (0, width)) for count in rows]
    whole = [box[axis][1] for box in boxes]
    parts = [(table, 0, whole[table]) for table in range(len(rows))]

    def load_of(part: tuple[int, int, int]) -> float:
        table, start, stop = part
        return loads[table] * (stop - start) / whole[table]

    mean = sum(loads) / devices
    while True:
        placed = _greedy([load_of(part) for part in parts], devices)
        totals = [sum(load_of(parts[i]) for i in own) for own in placed]
        heaviest = totals.index(max(totals))
        divisible = [i for i in placed[heaviest] if parts[i][2] - parts[i][1] > 1]
        if totals[heaviest] <= (1 + _TOLERANCE) * mean or not divisible:
            break
        largest = max(divisible, key=lambda i: load_of(parts[i]))
        table, start, stop = parts[largest]
        parts[largest : largest + 1] = [(table, start, (start + stop) // 2), (table, (start + stop) // 2, stop)]
    owner = {i: device for device, own in enumerate(placed) for i in own}
    pieces = []
    for i, (table, start, stop) in enumerate(parts):
        box = [*boxes[table]]
        box[axis] = (start, stop)
        pieces.append(Piece(table, owner[i], *box))
    return Placement(tuple(rows), width, devices, tuple(pieces))


def _greedy(loads: Sequence[float], devices: int) -> list[list[int]]:
    """Items by device: the heaviest first, each to the device with the least load.

    Source: Graham, 1969, longest processing time first.
    """
    found: list[list[int]] = [[] for _ in range(devices)]
    totals = [0.0] * devices
    for item in sorted(range(len(loads)), key=lambda i: -loads[i]):
        device = totals.index(min(totals))
        found[device].append(item)
        totals[device] += loads[item]
    return found


def part_of(table: Tensor, piece: Piece) -> Tensor:
    """The piece of a table ``[..., rows, width]``; a view."""
    return table[..., slice(*piece.rows), slice(*piece.columns)]


def tables_of(weight: Tensor, rows: Sequence[int]) -> list[Tensor]:
    """The tables that lie one after another in ``[..., sum of rows, width]``; views."""
    return list(torch.split(weight, list(rows), dim=-2))
