"""Small HTML tables for notebooks. All values are escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

_LEFT = ' style="text-align: left"'


def pairs(title: str, rows: Iterable[tuple[str, object]]) -> str:
    """A table of names and values under a title; rows whose value is empty are left out."""
    shown = (
        f"<tr><th{_LEFT}>{escape(name)}</th>{_cell(value)}</tr>" for name, value in rows if value not in ("", None)
    )
    return f"{_titled(title)}<table><tbody>{''.join(shown)}</tbody></table>"


def table(title: str, header: Sequence[str], rows: Iterable[Sequence[object]], notes: Iterable[str] = ()) -> str:
    """A table with a header, under a title and notes; columns without a value are left out."""
    every = list(rows)
    kept = [i for i in range(len(header)) if any(row[i] not in ("", None) for row in every)]
    head = "".join(f"<th{_LEFT}>{escape(header[i])}</th>" for i in kept)
    body = "".join(f"<tr>{''.join(_cell(row[i]) for i in kept)}</tr>" for row in every)
    lines = "".join(f"<div>{escape(note)}</div>" for note in notes if note)
    return f"{_titled(title)}{lines}<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _titled(title: str) -> str:
    return f"<div><b>{escape(title)}</b></div>"


def _cell(value: object) -> str:
    return f"<td{_LEFT}>{escape(str(value))}</td>"
