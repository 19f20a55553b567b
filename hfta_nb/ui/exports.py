"""Exports of a run: files in its directory."""

from __future__ import annotations

import base64
import copy
from pathlib import Path
from typing import Any

from hfta_nb.errors import StoreError
from hfta_nb.records import regular_files
from hfta_nb.records.history import History
from hfta_nb.study import Study
from hfta_nb.ui import static
from hfta_nb.ui.live_view import LiveView
from hfta_nb.ui.text import escape, memory

_TYPES = {".csv": "text/csv", ".png": "image/png"}


def write_csv(study: Study) -> Path:
    """The leaderboard as ``leaderboard.csv`` in the run's directory.

    Raises:
        StudyError: there is no run yet.
    """
    path = study.directory / "leaderboard.csv"
    return study.export(path)


def write_png(study: Study, history: History, reading: Any, live: LiveView) -> Path:
    """Curves and utilization, as the live view has them, as ``curves.png`` in the run's directory.

    Args:
        study: the study, whose directory gets the file.
        history: the history to draw.
        reading: the lock under which the history is read.
        live: the live view, which sets metric and colours.
    """
    path = study.directory / "curves.png"
    with reading:  # drawing is slow, and the reader of events must not wait for it
        drawn = copy.deepcopy(history)
    metric = f"val_{live.metric}"
    chosen = metric if metric in drawn.metrics else None
    return write(path, static.picture(drawn, metric=chosen, color_by=live.color_by or None, log_y=live.log_y))


def write(path: Path, picture: bytes) -> Path:
    """Write a picture; returns its path.

    Raises:
        StoreError: it can't be written.
    """
    try:
        regular_files.rewrite(path, picture)
    except OSError as error:
        raise StoreError(f"can't be written ({error.strerror})", where=str(path)) from error
    return path


def download(path: Path) -> str:
    """A written file as a link that downloads it, and where it lies, as markup."""
    kind, data = content(path)
    address = f"data:{kind};base64,{base64.b64encode(data).decode()}"
    name = escape(path.name)
    return (
        f'<span role="status"><a class="hfta-download" download="{name}" href="{address}">download {name}</a> '
        f"({memory(len(data))}), written to {escape(path)}</span>"
    )


def content(path: Path) -> tuple[str, bytes]:
    """The MIME type of a file, and what is in it."""
    return _TYPES.get(path.suffix, "application/octet-stream"), path.read_bytes()


def name_of(thing: object, otherwise: str) -> str:
    """The name of the notebook's variable for an object."""
    from IPython.core.getipython import get_ipython

    shell = get_ipython()
    names = list(shell.user_ns.items()) if shell is not None else ()  # a cell may be changing it
    return next((n for n, v in names if v is thing and not n.startswith("_")), otherwise)
