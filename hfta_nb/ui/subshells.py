"""Messages of widgets are handled in the kernel where the page asks for it.

JupyterLab names a subshell of the kernel in each message of a widget, so that its controls work while a cell runs.
ipykernel 7.4 prefers the subshell, or the main shell, of the message for which the widget was last updated. A widget
that was made in a cell is then dead until the cell that runs ends; and one that a thread updates while a page reloads
(the kernel's last message is then the page's request for all widgets, whose subshell ends with the request) loses
everything that the new page says: "Unknown subshell_id".
"""

from __future__ import annotations

import sys
from typing import Any


class _Never:
    """An attribute that can be set and is never there."""

    def __get__(self, comm: Any, kind: type) -> Any:
        raise AttributeError

    def __set__(self, comm: Any, value: Any) -> None:
        pass


def follow_page() -> None:
    """Let ipykernel forget for whom a widget was last updated; answers that are awaited by an id keep their way."""
    comm = getattr(sys.modules.get("ipykernel.comm.comm"), "BaseComm", None)
    if comm is not None:  # else there is no kernel
        comm._reply_subshell_id = _Never()
