"""Small widgets for roles, labels and folding that ipywidgets lacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anywidget
import ipywidgets
import traitlets

from hfta_nb.ui.front_end import source


class Bar(anywidget.AnyWidget):  # type: ignore[misc]
    """The head of a Workbench: title, device, connection, and the status line for screen readers.

    It also loads the style sheet of the whole Workbench, and shows when the kernel is gone.

    Attributes:
        title: the title.
        device: the device's name and memory.
        status: the current state, in one line.
        level: "idle", "busy", "good" or "bad".
        directory: where the run is saved, for the words shown when the kernel is gone.
        goes_on: whether it goes on then.
        way_back: JupyterLab's command, with its arguments as JSON, of the button that is shown then.
        reveal: asks the front end to scroll to the run, once; it answers by setting this back.
        hints: tooltips of controls, by label; ipywidgets itself shows no tooltip on a field with a label.
    """

    _esm = source("bar.js")
    _css = source("style.css")

    title = traitlets.Unicode("hfta_nb").tag(sync=True)
    device = traitlets.Unicode("").tag(sync=True)
    status = traitlets.Unicode("").tag(sync=True)
    goes_on = traitlets.Bool(False).tag(sync=True)
    level = traitlets.Enum(["idle", "busy", "good", "bad"], "idle").tag(sync=True)
    directory = traitlets.Unicode("").tag(sync=True)
    way_back = traitlets.List(traitlets.Unicode()).tag(sync=True)
    reveal = traitlets.Bool(False).tag(sync=True)
    hints = traitlets.Dict().tag(sync=True)

    def __repr__(self) -> str:
        return "Bar()"


class SectionHead(anywidget.AnyWidget):  # type: ignore[misc]
    """The head of a section: a button that folds it, and a one-line summary.

    Attributes:
        title: the section's name.
        summary: the one line, shown while the section is folded.
        note: a few words beside the title, whether or not it is open.
        actions: labels of buttons beside these; `on_action` hears of them.
        unfolded: whether the section is open.
        body_display: the CSS display of the section's body; follows `unfolded`.
    """

    _esm = source("section.js")

    title = traitlets.Unicode("").tag(sync=True)
    summary = traitlets.Unicode("").tag(sync=True)
    note = traitlets.Unicode("").tag(sync=True)
    actions = traitlets.List(traitlets.Unicode()).tag(sync=True)
    unfolded = traitlets.Bool(True).tag(sync=True)
    body_display = traitlets.Unicode("").tag(sync=True)

    @traitlets.observe("unfolded")  # type: ignore[untyped-decorator]
    def _fold(self, change: Any) -> None:
        self.body_display = "" if change["new"] else "none"

    def on_action(self, pressed: Callable[[str], None]) -> None:
        """Call this with the label of an action when its button is pressed."""
        self.on_msg(lambda _widget, content, _buffers: pressed(content["action"]) if "action" in content else None)

    def __repr__(self) -> str:
        return f"SectionHead({self.title!r})"


class Section(ipywidgets.VBox):  # type: ignore[misc]
    """A head and a body that folds.

    Args:
        title: the section's name; its CSS class is made of it.
        children: the body.
        unfolded: whether it is open at first.

    Attributes:
        head: the `SectionHead`.
        kept_open: see `keep_open_if_opened`.
    """

    def __init__(self, title: str, children: list[ipywidgets.Widget], unfolded: bool = True) -> None:
        self.head = SectionHead(title=title, unfolded=unfolded)
        body = ipywidgets.VBox(children, layout={"display": self.head.body_display}).add_class("hfta-body")
        # Linked in the front end, so that a section folds at once while the kernel is busy.
        self._link = ipywidgets.jsdlink((self.head, "body_display"), (body.layout, "display"))
        super().__init__([self.head, body])
        self.add_class("hfta-section").add_class(f"hfta-{title.lower()}")
        self._summary, self.kept_open = "", False
        self.head.observe(lambda _: self.summarise(self._summary), "unfolded")

    def keep_open_if_opened(self, when: Callable[[], bool]) -> None:
        """Let `kept_open` say whether it is open because somebody has opened it when this holds."""

        def folded(change: Any) -> None:
            if when() or not change["new"]:
                self.kept_open = change["new"]

        self.head.observe(folded, "unfolded")

    def summarise(self, text: str) -> None:
        """Set the summary, which is sent to the front end if or when the section is folded."""
        self._summary = text
        if not self.head.unfolded:
            self.head.summary = text

    def __repr__(self) -> str:
        return f"Section({self.head.title!r})"


class ProgressBar(anywidget.AnyWidget):  # type: ignore[misc]
    """The progress of the run.

    Attributes:
        facts: "fraction" (0 to 1), "state", "text" (beside the bar), "details" (a list of texts below it)
            and "titles" (of some of these, what more there is to say).
    """

    _esm = source("progress.js")

    facts = traitlets.Dict({"fraction": 0.0, "state": "idle", "text": "", "details": []}).tag(sync=True)

    def __repr__(self) -> str:
        return "Progress()"


class CodeBox(anywidget.AnyWidget):  # type: ignore[misc]
    """Code with buttons that copy it and put it into a cell; and files, which `download` hands to the browser.

    Attributes:
        title: the purpose of the code.
        code: the code; nothing is shown while it is empty.
    """

    _esm = source("code.js")

    title = traitlets.Unicode("").tag(sync=True)
    code = traitlets.Unicode("").tag(sync=True)

    def __repr__(self) -> str:
        return "CodeBox()"

    def download(self, name: str, kind: str, data: bytes) -> None:
        """Let the browser save a file.

        Args:
            name: of the file.
            kind: its MIME type.
            data: what is in it.
        """
        self.send({"kind": "download", "name": name, "type": kind}, [data])

    def insert(self) -> None:
        """Put the code into a new cell below the one that is active; elsewhere than in JupyterLab, do nothing."""
        self.send({"kind": "insert"})


class Picture(ipywidgets.Image):  # type: ignore[misc]
    """A picture whose tooltip says what it shows, to a screen reader as well."""

    description = traitlets.Unicode("").tag(sync=True)  # without it the front end can't set the tooltip of a picture


def words(css: str) -> ipywidgets.HTML:
    """A widget for escaped text, initially empty."""
    return ipywidgets.HTML("").add_class(css)


def button(text: str, tooltip: str, css: str) -> ipywidgets.Button:
    """A button with a label, a tooltip and a stable class."""
    return ipywidgets.Button(description=text, tooltip=tooltip, layout={"width": "auto"}).add_class(css)
