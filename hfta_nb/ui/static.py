"""What a saved notebook shows: a picture and a table in outputs of their own, beside the widget that it can't keep.

JupyterLab does not save widgets unless it is told to, so a notebook that is opened again, or turned into HTML,
would show nothing of a run. While the widget is alive, the style sheet hides both.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from hfta_nb.history import History
from hfta_nb.ui.leaderboard import table_of
from hfta_nb.ui.text import count, escape, table

MOST_ROWS = 50
_LEFT_OUT = ("rank",)
_numbers = itertools.count(1)


def picture(history: History, **options: Any) -> bytes:
    """Curves and utilization as a PNG; options as in `hfta_nb.figures.summary`."""
    from hfta_nb import figures

    return figures.png(figures.summary(history, **options))


def picture_bundle(history: History) -> dict[str, Any]:
    """The picture as an output of a cell."""
    run = history.run
    of = f" of {run.family} on {run.data}" if run else ""
    return {"image/png": picture(history), "text/plain": f"[curves and utilization{of}]"}


def table_bundle(history: History) -> dict[str, Any]:
    """The leaderboard as an output of a cell."""
    shown = table_of(history)
    keep = [i for i, c in enumerate(shown["columns"]) if c["key"] not in _LEFT_OUT]
    head = [shown["columns"][i]["label"] for i in keep]
    rows = [[row["cells"][i] for i in keep] for row in shown["rows"][:MOST_ROWS]]
    rest = len(shown["rows"]) - len(rows)
    more = f"and {count(rest, 'more member')}" if rest > 0 else ""
    title = _title(history)
    markup = table(head, rows, "hfta-static-table")
    body = f'<div class="hfta-static"><p>{escape(title)}</p>{markup}<p>{escape(more)}</p></div>'
    return {"text/html": body, "text/plain": "\n".join(filter(None, [title, _aligned(head, rows), more]))}


def _title(history: History) -> str:
    run = history.run
    if run is None:
        return ""
    reason = f" ({history.reason})" if history.reason else ""
    members = count(len(history.members), "member")
    return f"{run.family} on {run.data}, {members}, {history.state.lower()}{reason}; saved in {_place(run.directory)}"


def _place(directory: str) -> str:
    """Where the run lies, as seen from here: a notebook may be read where the whole path means nothing."""
    path = Path(directory)
    return path.relative_to(Path.cwd()).as_posix() if path.is_relative_to(Path.cwd()) else directory


def _aligned(head: list[str], rows: list[list[str]]) -> str:
    widths = [max(len(str(line[i])) for line in [head, *rows]) for i in range(len(head))]
    return "\n".join(
        "  ".join(str(v).ljust(w) for v, w in zip(line, widths, strict=True)).rstrip() for line in [head, *rows]
    )


class Fallback:
    """The two outputs of a cell in which a Workbench is displayed; empty until a run has ended."""

    def __init__(self) -> None:
        self._places: list[tuple[str, str]] = []

    def place(self, history: History | None) -> None:
        """Make room below the widget; filled at once where there is a run that has ended."""
        number = next(_numbers)
        ids = (f"hfta-picture-{number}", f"hfta-table-{number}")
        if history is None:
            bundles = ({"text/plain": ""}, {"text/html": '<div class="hfta-static"></div>', "text/plain": ""})
        else:
            bundles = (picture_bundle(history), table_bundle(history))
        for bundle, identity in zip(bundles, ids, strict=True):
            _publish(bundle, identity, update=False)
        self._places.append(ids)

    def update(self, history: History) -> None:
        """Put the run into every such place. Call it on the kernel's own thread only: output has a cell there."""
        if not self._places:
            return
        bundles = picture_bundle(history), table_bundle(history)
        for ids in self._places:
            for bundle, identity in zip(bundles, ids, strict=True):
                _publish(bundle, identity, update=True)


def show(history: History) -> None:
    """Display picture and table as outputs of the cell that is running."""
    for bundle in (picture_bundle(history), table_bundle(history)):
        _publish(bundle, None, update=False)


def _publish(bundle: dict[str, Any], identity: str | None, update: bool) -> None:
    from IPython.core.getipython import get_ipython
    from IPython.display import display

    shell = get_ipython()
    if shell is None:
        return
    kwargs: dict[str, Any] = {"display_id": identity} if identity else {}
    if "image/png" in bundle:
        kwargs["metadata"] = {"image/png": {"alt": bundle["text/plain"].strip("[]")}}
    display(bundle, raw=True, update=update, **kwargs)
