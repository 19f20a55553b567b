"""Small widgets of our own, where those of ipywidgets lack a role, a label or a fold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anywidget
import ipywidgets
import traitlets

_HERE = Path(__file__).parent


def source(name: str) -> str:
    """A file of this package: a script or a style sheet."""
    return (_HERE / name).read_text("utf-8")


class Bar(anywidget.AnyWidget):  # type: ignore[misc]
    """The head of a Workbench: title, device, connection, and the line that is announced to screen readers.

    It also brings the style sheet of the whole Workbench, and says so when the kernel is gone.

    Attributes:
        title: what this is.
        device: the device's name and memory.
        status: what is going on, in one line.
        level: "idle", "busy", "good" or "bad".
        directory: where the run is saved, for the words shown when the kernel is gone.
        way_back: the command of JupyterLab's, and its arguments as JSON, of the button that is shown then.
        reveal: asks the front end to scroll to the run, once; it answers by setting this back.
        hints: what is shown when the pointer rests on a control, by its label: ipywidgets shows the tooltip of a field
            that has a label nowhere.
    """

    _esm = source("bar.js")
    _css = source("style.css")

    title = traitlets.Unicode("hfta_nb").tag(sync=True)
    device = traitlets.Unicode("").tag(sync=True)
    status = traitlets.Unicode("").tag(sync=True)
    level = traitlets.Enum(["idle", "busy", "good", "bad"], "idle").tag(sync=True)
    directory = traitlets.Unicode("").tag(sync=True)
    way_back = traitlets.List(traitlets.Unicode()).tag(sync=True)
    reveal = traitlets.Bool(False).tag(sync=True)
    hints = traitlets.Dict().tag(sync=True)

    def __repr__(self) -> str:
        return "Bar()"


class SectionHead(anywidget.AnyWidget):  # type: ignore[misc]
    """The head of a section: a button that folds it, and the one line that says the important thing.

    Attributes:
        title: the section's name.
        summary: the one line; not shown while the section is open, whose body says more.
        unfolded: whether the section is.
        body_display: the CSS display of the section's body; follows `unfolded`.
    """

    _esm = source("section.js")

    title = traitlets.Unicode("").tag(sync=True)
    summary = traitlets.Unicode("").tag(sync=True)
    unfolded = traitlets.Bool(True).tag(sync=True)
    body_display = traitlets.Unicode("").tag(sync=True)

    @traitlets.observe("unfolded")  # type: ignore[untyped-decorator]
    def _fold(self, change: Any) -> None:
        self.body_display = "" if change["new"] else "none"

    def __repr__(self) -> str:
        return f"SectionHead({self.title!r})"


class Section(ipywidgets.VBox):  # type: ignore[misc]
    """A head and, below it, what folds away.

    Args:
        title: the section's name; its CSS class is made of it.
        children: what folds away.
        unfolded: whether it is open at first.

    Attributes:
        head: the `SectionHead`.
    """

    def __init__(self, title: str, children: list[ipywidgets.Widget], unfolded: bool = True) -> None:
        self.head = SectionHead(title=title, unfolded=unfolded)
        body = ipywidgets.VBox(children, layout={"display": self.head.body_display}).add_class("hfta-body")
        # In the front end, so that a section folds at once while the kernel is busy with a cell.
        self._link = ipywidgets.jsdlink((self.head, "body_display"), (body.layout, "display"))
        super().__init__([self.head, body])
        self.add_class("hfta-section").add_class(f"hfta-{title.lower()}")
        self._summary = ""
        self.head.observe(lambda _: self.summarise(self._summary), "unfolded")

    def summarise(self, text: str) -> None:
        """Set the one line; it is sent to the front end while the section is folded, and when it is."""
        self._summary = text
        if not self.head.unfolded:
            self.head.summary = text

    def __repr__(self) -> str:
        return f"Section({self.head.title!r})"


class ProgressBar(anywidget.AnyWidget):  # type: ignore[misc]
    """How far the run is.

    Attributes:
        facts: "fraction" (0 to 1), "state", "text" (beside the bar) and "details" (a list of texts below it).
    """

    _esm = source("progress.js")

    facts = traitlets.Dict({"fraction": 0.0, "state": "idle", "text": "", "details": []}).tag(sync=True)

    def __repr__(self) -> str:
        return "Progress()"


class CodeBox(anywidget.AnyWidget):  # type: ignore[misc]
    """Code to take away, with a button that copies it.

    Attributes:
        title: what the code does.
        code: the code; nothing is shown while it is empty.
    """

    _esm = source("code.js")

    title = traitlets.Unicode("").tag(sync=True)
    code = traitlets.Unicode("").tag(sync=True)

    def __repr__(self) -> str:
        return "CodeBox()"


def words(css: str) -> ipywidgets.HTML:
    """A place for escaped text, empty at first."""
    return ipywidgets.HTML("").add_class(css)


def button(text: str, tooltip: str, css: str) -> ipywidgets.Button:
    """A button with a label, a tooltip and a stable class."""
    return ipywidgets.Button(description=text, tooltip=tooltip, layout={"width": "auto"}).add_class(css)
