"""The row of controls that steers selected members while they train."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ipywidgets

from hfta_nb import events as ev
from hfta_nb.errors import HftaError, StudyError
from hfta_nb.records.events import Control
from hfta_nb.records.history import History
from hfta_nb.search.grid import parse_axis
from hfta_nb.ui.fields import TypedField, whole
from hfta_nb.ui.widgets import button, words

_BUTTONS = {
    "pause": ("pause", "Pause the selected members between two steps; their places in the array are free meanwhile"),
    "resume": ("resume", "Let the selected members go on"),
    "stop": ("stop", "Stop the selected members; what they learnt is kept"),
    "delete": ("delete", "Stop the selected members and leave them out of the results"),
    "pin": ("pin", "Keep the selected members from being pruned or replaced"),
    "unpin": ("unpin", "Let the selected members be pruned or replaced again"),
    "set": ("set", "Give the selected members these values, from the next step on"),
    "warm": ("clone warm", "Train copies of the selected members with these values, from their weights of now on"),
    "cold": ("clone cold", "Train copies of the selected members with these values, from the start"),
    "extend": ("extend", "Train so many more epochs: the selected members, or all where none is selected"),
}
_FITTING: dict[str, Callable[[str], bool]] = {
    "pause": lambda state: state in (ev.RUNNING, ev.WAITING),
    "resume": lambda state: state == ev.PAUSED,
    "delete": lambda state: state != ev.DELETED,
    "cold": lambda state: True,
}
"""The states of members that a button concerns; of the others, those that have not ended."""


def _trains(state: str) -> bool:
    return state not in ev.FINAL_STATES


def changes_of(text: str) -> dict[str, Any]:
    """The values that were typed: ``lr=3e-4, width=16``.

    Raises:
        StudyError: a part is not a name and a value.
    """
    found: dict[str, Any] = {}
    for part in filter(None, (p.strip() for p in text.replace(";", ",").split(","))):
        try:
            name, values = parse_axis(part)
        except HftaError as error:
            raise StudyError(error.what, got=part, accepted="for example lr=3e-4, weight_decay=0.01") from None
        found[name] = values[0]
    return found


class Steer(ipywidgets.VBox):  # type: ignore[misc]
    """Buttons for the selected members, and the values that clones and changed members get.

    Args:
        on_request: called with the name of a button and what it is given: "members" and, where it takes such, "changes"
            or "epochs".

    Attributes:
        buttons: by name.
        members: those that are selected.
    """

    def __init__(self, on_request: Callable[[str, Mapping[str, Any]], None]) -> None:
        self._on_request = on_request
        self.members: list[int] = []
        self.chosen = words("hfta-steer-chosen")
        self.buttons = {name: button(text, hint, f"hfta-steer-{name}") for name, (text, hint) in _BUTTONS.items()}
        for name, made in self.buttons.items():
            made.on_click(lambda _, name=name: self._pressed(name))
        hint = "Values of axes for set and clone, as lr=3e-4, weight_decay=0.01"
        self.changes = TypedField("values", "", changes_of, hint, "lr=3e-4").add_class("hfta-steer-values")
        self.epochs = whole("more epochs", 10, 1, "How many more epochs extend gives")
        for field in (self.changes, self.epochs):
            field.observe(lambda _: self._show_error(), "value")
        self.wrong = words("hfta-error")
        names = ("pause", "resume", "stop", "delete", "pin", "unpin")
        first = ipywidgets.HBox([self.chosen, *(self.buttons[n] for n in names)]).add_class("hfta-results-tools")
        given = [self.changes, *(self.buttons[n] for n in ("set", "warm", "cold"))]
        more = [self.epochs, self.buttons["extend"], self.wrong]
        second = ipywidgets.HBox([*given, *more]).add_class("hfta-results-tools")
        super().__init__([first, second])
        self.add_class("hfta-steer")
        self.show(History(), [], False)

    def __repr__(self) -> str:
        return "Steer()"

    def show(self, history: History, members: Sequence[int], running: bool) -> None:
        """Say which members are selected, and enable what can be asked of them.

        Args:
            history: of the run.
            members: that are selected.
            running: whether a run is in progress, so that somebody answers.
        """
        self.members = [v for v in members if v in history.members]
        listed = ", ".join(f"#{v}" for v in self.members[:8]) + (", ..." if len(self.members) > 8 else "")
        text = f"with {listed}:" if self.members else "select members in the table to steer them:"
        if self.chosen.value != text:
            self.chosen.value = text
        self.layout.display = "" if running else "none"
        for name, made in self.buttons.items():
            reason = "" if running else "nothing is training"
            if not reason and name != "extend":
                reason = self._why_not(name, [history.members[v].state for v in self.members])
            if made.disabled != bool(reason):
                made.disabled = bool(reason)
            hint = f"Not now: {reason}" if reason else _BUTTONS[name][1]
            if made.tooltip != hint:
                made.tooltip = hint

    @staticmethod
    def _why_not(name: str, states: Sequence[str]) -> str:
        if not states:
            return "no member is selected"
        fits = _FITTING.get(name, _trains)
        return "" if any(map(fits, states)) else f"the selected are {', '.join(sorted({s.lower() for s in states}))}"

    def _show_error(self) -> None:
        self.wrong.value = "; ".join(filter(None, [self.changes.error, self.epochs.error]))

    def _pressed(self, name: str) -> None:
        given: dict[str, Any] = {"members": list(self.members)}
        if name in ("set", "warm", "cold"):
            given["changes"] = self.changes.meaning
        if name == "extend":
            given["epochs"] = self.epochs.meaning
        if None not in given.values():  # else what is wrong stands beside the field
            self._on_request(name, given)


def post(control: Control, history: History, name: str, given: Mapping[str, Any]) -> str:
    """Post what a button asks for; what was asked, in words.

    Args:
        control: of the run.
        history: of the run.
        name: of the button.
        given: see `Steer`.

    Raises:
        HftaError: it can't be answered; the message says why.
    """
    members = list(given["members"])
    if name == "extend":
        for member in members or [None]:
            control.extend(given["epochs"], member)
        return f"{given['epochs']} more epochs for {_listed(members) or 'all'}"
    plain: dict[str, Callable[[int], None]] = {"pause": control.pause, "resume": control.resume}
    plain |= {"stop": control.stop, "delete": control.delete}
    fits = _FITTING.get(name, _trains)
    members = [v for v in members if fits(history.members[v].state)]
    for member in members:
        if name in ("warm", "cold"):
            control.clone(member, warm=name == "warm", **given["changes"])
        elif name == "set":
            control.set(member, **given["changes"])
        elif name in ("pin", "unpin"):
            control.pin(member, name == "pin")
        else:
            plain[name](member)
    return f"{_BUTTONS[name][0]} {_listed(members)}"


def refused(event: ev.RequestRefused) -> str:
    """Why a request was not answered, in words."""
    of = "" if event.variant is None else f" #{event.variant}"
    place = f"{event.request.lower()}{of}: "
    return place + event.reason.removeprefix(place)  # most reasons begin with it themselves


def _listed(members: Sequence[int]) -> str:
    return ", ".join(f"#{v}" for v in members)
