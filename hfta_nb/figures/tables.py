"""Tables of which a notebook and ``print`` show the most important columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Any

import pandas

from hfta_nb.errors.plain_text import visible_lines


class Table(pandas.DataFrame):
    """A `pandas.DataFrame` that displays only some of its columns.

    Results of its methods (a slice, a sorted copy) are plain `DataFrame` objects.

    Args:
        rows: of the table.
        index: the column that names the rows.
        first: the columns that are shown, in this order.
        shown: makes the values of a column shorter, by its name.
    """

    _metadata = ["_first", "_known", "_shown"]  # noqa: RUF012 - as pandas asks of a subclass

    def __init__(
        self,
        rows: Sequence[dict[str, Any]],
        index: str,
        first: Iterable[str],
        shown: dict[str, Callable[[Any], str]] | None = None,
    ) -> None:
        super().__init__(pandas.DataFrame(list(rows)).set_index(index))  # type: ignore[call-arg]
        self._first, self._known, self._shown = tuple(first), tuple(self.columns), shown or {}

    @property
    def _constructor(self) -> type[pandas.DataFrame]:
        return pandas.DataFrame

    def compact(self) -> pandas.DataFrame:
        """The columns that are shown, and those that were added since."""
        names = [n for n in self._first if n in self.columns] + [n for n in self.columns if n not in self._known]
        found = pandas.DataFrame({name: self[name] for name in names})
        for name, shorten in self._shown.items():
            if name in found:
                found[name] = found[name].map(shorten)
        return found

    def _more(self) -> str:
        names = [str(n) for n in self.columns if n not in self._first and n in self._known]
        return f"more columns: {', '.join(names)}" if names else ""

    def __repr__(self) -> str:
        more = self._more()
        return visible_lines(repr(self.compact()) + (f"\n{more}" if more else ""))

    def _repr_html_(self) -> str:
        found: Any = self.compact()
        more = self._more()
        return visible_lines(str(found._repr_html_()) + (f"<small>{escape(more)}</small>" if more else ""))
