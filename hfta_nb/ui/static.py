"""Static outputs of a saved notebook: a picture and a table in place of the widget.

JupyterLab does not save widgets by default, so a notebook that is reopened or converted to HTML would show nothing of a
run. While the widget is alive, its style sheet hides both outputs. Otherwise, a style in the table hides JupyterLab's
message in place of the widget ("Error displaying widget: model not found").
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hfta_nb.records.history import History
from hfta_nb.study import Study
from hfta_nb.ui.leaderboard import table_of
from hfta_nb.ui.text import count, escape, table

MOST_ROWS = 50
_LEFT_OUT = ("rank",)
_numbers = itertools.count(1)

STYLE = (
    "<style>"
    # An output above that is text only: JupyterLab's message in place of a widget without model.
    ".jp-OutputArea-child:not(:has(> .jp-OutputArea-output *)):has(~ .jp-OutputArea-child .hfta-static){display:none}"
    # The button uses a command of JupyterLab, and is hidden elsewhere.
    ".hfta-reattach button{display:none}.jp-NotebookPanel .hfta-reattach button{display:inline-block;margin-right:8px;"
    "padding:2px 12px;font:inherit;color:inherit;background:none;border:1px solid currentColor;border-radius:3px;"
    "cursor:pointer}"
    "</style>"
)

_COMMANDS = ("notebook:insert-cell-below", "notebook:replace-selection", "notebook:run-cell")


def picture(history: History, **options: Any) -> bytes:
    """Curves and utilization as a PNG; options as in `hfta_nb.figures.summary`."""
    from hfta_nb import figures

    return figures.png(figures.summary(history, **options))


def picture_bundle(history: History) -> dict[str, Any]:
    """The picture as an output of a cell."""
    run = history.run
    of = f" of {run.family} on {run.data}" if run else ""
    return {"image/png": picture(history), "text/plain": f"[curves and utilization{of}]"}


def table_bundle(history: History, name: str = "") -> dict[str, Any]:
    """The leaderboard as an output of a cell.

    Args:
        history: history of the run.
        name: variable for a reattached Workbench; empty for no button.
    """
    shown = table_of(history)
    keep = [i for i, c in enumerate(shown["columns"]) if c["key"] not in _LEFT_OUT and not c["constant"]]
    head = [shown["columns"][i]["label"] for i in keep]
    rows = [[row["cells"][i] for i in keep] for row in shown["rows"][:MOST_ROWS]]
    rest = shown.get("of", 0) - len(rows)
    more = f"and {count(rest, 'more member')}" if rest > 0 else ""
    title = _title(history)
    markup, plain = _way_back(history.run.directory, name) if history.run and name else ("", "")
    body = f"<p>{escape(title)}</p>{markup}{table(head, rows, 'hfta-static-table')}<p>{escape(more)}</p>"
    said = "\n".join(filter(None, [title, plain, _aligned(head, rows), more]))
    return {"text/html": f'<div class="hfta-static">{STYLE if name else ""}{body}</div>', "text/plain": said}


def note_bundle(text: str, directory: str = "", name: str = "") -> dict[str, Any]:
    """A sentence in place of the widget, if there is nothing to show yet.

    Args:
        text: the sentence.
        directory, name: directory of a run in progress, and variable for a reattached Workbench.
    """
    markup, plain = _way_back(directory, name) if directory else ("", "")
    body = f'<div class="hfta-static">{STYLE}<p>{escape(text)}</p>{markup}</div>'
    return {"text/html": body, "text/plain": "\n".join(filter(None, [text, plain])) if directory else ""}


def reattach_code(directory: str, name: str) -> str:
    """The code of a cell that shows a saved run in a Workbench."""
    return f"from hfta_nb.ui import Workbench\n\n{name} = Workbench.reattach({_near(directory)!r})\n{name}"


def reattach_command(directory: str, name: str) -> tuple[str, str]:
    """The name and the JSON arguments of JupyterLab's command that runs this code in a cell below."""
    arguments = {"commands": _COMMANDS, "args": {"text": reattach_code(directory, name)}, "errorIfNotEnabled": True}
    return "apputils:run-all-enabled", json.dumps(arguments)


def _way_back(directory: str, name: str) -> tuple[str, str]:
    """How to reattach the Workbench: as markup with a button, and as text."""
    command, arguments = reattach_command(directory, name)
    call = f"Workbench.reattach({_near(directory)!r})"
    button = (
        f'<button type="button" data-commandlinker-command="{command}" data-commandlinker-args="{escape(arguments)}">'
        "Reattach</button>"
    )
    return (
        f'<p class="hfta-reattach">{button}The Workbench comes back with this run by <code>{escape(call)}</code></p>',
        f"to bring the Workbench back: {call}",
    )


def _title(history: History) -> str:
    run = history.run
    if run is None:
        return ""
    reason = f" ({history.reason})" if history.reason else ""
    members = count(len(history.members), "member")
    return f"{run.family} on {run.data}, {members}, {history.state.lower()}{reason}; saved in {_near(run.directory)}"


def _near(directory: str) -> str:
    """The directory, relative if it is below the current one: a shared notebook should not contain machine paths."""
    path, here = Path(directory), Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else directory


def _aligned(head: list[str], rows: list[list[str]]) -> str:
    widths = [max(len(str(line[i])) for line in [head, *rows]) for i in range(len(head))]
    return "\n".join(
        "  ".join(str(v).ljust(w) for v, w in zip(line, widths, strict=True)).rstrip() for line in [head, *rows]
    )


class Fallback:
    """The static outputs of a cell that displays a Workbench: first a sentence, then picture and table.

    Args:
        said: returns the Workbench's description.
        name: the variable that holds it.
    """

    def __init__(self, said: Callable[[], str], name: Callable[[], str]) -> None:
        self._said, self._name = said, name
        self._places: list[tuple[str, str]] = []
        self._cell: Any = None

    @property
    def placed(self) -> bool:
        """Whether the Workbench is displayed anywhere."""
        return bool(self._places)

    @property
    def here(self) -> bool:
        """Whether it was displayed last in the running cell."""
        return self.placed and self._cell == _cell()

    def place(self, history: History | None) -> None:
        """Reserve outputs below the widget, filled at once if a run has ended."""
        number = next(_numbers)
        ids = (f"hfta-picture-{number}", f"hfta-table-{number}")
        if history is None:
            note = f"{self._said()} was here. Run this cell again to have it back."
            bundles: tuple[dict[str, Any], ...] = ({"text/plain": ""}, note_bundle(note))
        else:
            bundles = (picture_bundle(history), table_bundle(history, self._name()))
        for bundle, identity in zip(bundles, ids, strict=True):
            _publish(bundle, identity, update=False)
        self._places.append(ids)
        self._cell = _cell()

    def begin(self, study: Study) -> None:
        """Called when a run begins: show how to reattach, in case the kernel ends during the run."""
        members = count(len(study.variants), "member")
        said = f"{study.family.name} on {study.data_name}, {members}; saved in {_near(str(study.directory))}"
        self._put({"text/plain": ""}, note_bundle(said, str(study.directory), self._name()))

    def update(self, history: History) -> None:
        """Update all such outputs. Call it on the kernel's main thread only, where output belongs to a cell."""
        if self._places:
            self._put(picture_bundle(history), table_bundle(history, self._name()))

    def _put(self, *bundles: dict[str, Any]) -> None:
        for ids in self._places:
            for bundle, identity in zip(bundles, ids, strict=True):
                _publish(bundle, identity, update=True)


def show(history: History) -> None:
    """Display picture and table as outputs of the running cell."""
    for bundle in (picture_bundle(history), table_bundle(history)):
        _publish(bundle, None, update=False)


def in_notebook() -> bool:
    """Whether there is a front end that may show widgets."""
    return hasattr(_shell(), "kernel")


def _cell() -> Any:
    """Identifies the running cell."""
    return getattr(_shell(), "execution_count", None)


def _shell() -> Any:
    from IPython.core.getipython import get_ipython

    return get_ipython()


def _publish(bundle: dict[str, Any], identity: str | None, update: bool) -> None:
    from IPython.display import display

    if _shell() is None:
        return
    kwargs: dict[str, Any] = {"display_id": identity} if identity else {}
    if "image/png" in bundle:
        kwargs["metadata"] = {"image/png": {"alt": bundle["text/plain"].strip("[]")}}
    display(bundle, raw=True, update=update, **kwargs)
