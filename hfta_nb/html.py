"""Small HTML tables, by which a notebook shows objects. All values are shown as text, whatever markup they hold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

_LEFT = ' style="text-align: left"'


def pairs(title: str, rows: Iterable[tuple[str, object]]) -> str:
    """A table of names and values under a title; rows whose value is empty are left out."""
    shown = (
        f"<tr><th{_LEFT}>{escape(name)}</th>{_cell(value)}</tr>" for name, value in rows if value not in ("", None)
    )
    return f"<table><caption{_LEFT}><b>{escape(title)}</b></caption><tbody>{''.join(shown)}</tbody></table>"


def table(title: str, header: Sequence[str], rows: Iterable[Sequence[object]], note: str = "") -> str:
    """A table with a header; the note stands between it and its title."""
    head = "".join(f"<th{_LEFT}>{escape(name)}</th>" for name in header)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    caption = f"<b>{escape(title)}</b>" + (f"<br>{escape(note)}" if note else "")
    return f"<table><caption{_LEFT}>{caption}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: object) -> str:
    return f"<td{_LEFT}>{escape(str(value))}</td>"
