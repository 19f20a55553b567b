"""What steers selected members while they train: the buttons on their rows, and what these ask for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hfta_nb import events as ev
from hfta_nb.errors import HftaError, StudyError
from hfta_nb.records.events import Control
from hfta_nb.records.history import History
from hfta_nb.search.grid import parse_axis
from hfta_nb.ui.fields import whole_number

_BUTTONS = {
    "pause": ("pause", "Pause the selected members between two steps; their places in the array are free meanwhile"),
    "resume": ("resume", "Let the selected members go on"),
    "stop": ("stop", "Stop the selected members; what they learnt is kept, and the others go on"),
    "delete": ("delete", "Stop the selected members and leave them out of the results"),
    "set": ("set", "Give the selected members these values, from the next step on"),
    "warm": (
        "clone with weights",
        "Train copies of the selected members with these values, from their weights of now on",
    ),
    "cold": ("clone from start", "Train copies of the selected members with these values, from new weights"),
    "extend": ("extend", "Train the selected members for so many more epochs"),
    "pin": ("protect", "Keep the selected members from being pruned or replaced"),
    "unpin": ("unprotect", "Let the selected members be pruned or replaced again"),
}
NAMES = frozenset(_BUTTONS)
_FIELDS = {"set": "values", "warm": "values", "cold": "values", "extend": "epochs"}
"""The field that a button reads."""

_TRAINING = (ev.RUNNING, ev.WAITING, ev.PAUSED)
_ENDED = tuple(sorted(ev.FINAL_STATES - {ev.DELETED}))
_QUESTIONS = {"delete": "Delete {members}? Its training ends, and it leaves table, curves and results for good."}
"""What a button asks first; the front end puts in which members."""

_STATES = {
    "pause": (ev.RUNNING, ev.WAITING),
    "resume": (ev.PAUSED,),
    "delete": (*_TRAINING, *_ENDED),
    "cold": (*_TRAINING, *_ENDED),
    "extend": (*_TRAINING, *_ENDED),
}
"""The states of members that a button concerns; of the others, those that have not ended."""


def _states(name: str) -> tuple[str, ...]:
    return _STATES.get(name, _TRAINING)


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


def actions(running: bool) -> list[dict[str, Any]]:
    """What can be done with selected members, for the tools of their rows in the leaderboard.

    Args:
        running: whether a run is in progress, so that somebody answers.

    Returns:
        Per button its name, label, tooltip, the field that it reads, the states of members that it concerns, and what
        it asks first.
    """
    if not running:
        return []
    return [
        {
            "name": name,
            "label": label,
            "title": title,
            "field": _FIELDS.get(name, ""),
            "states": list(_states(name)),
            "question": _QUESTIONS.get(name, ""),
        }
        for name, (label, title) in _BUTTONS.items()
    ]


def request_of(name: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """What a button is given: "members" and, where it takes such, "changes" or "epochs".

    Args:
        name: of the button.
        content: the message of the front end, whose "text" is what was typed in the button's field.

    Raises:
        StudyError: that can't be read; the message says what is accepted.
    """
    given: dict[str, Any] = {"members": [int(v) for v in content.get("members", ())]}
    field, text = _FIELDS.get(name), str(content.get("text", "")).strip()
    if field == "values":
        given["changes"] = changes_of(text)
    elif field == "epochs":
        given["epochs"] = whole_number("epochs", text, 1)
    return given


def post(control: Control, history: History, name: str, given: Mapping[str, Any]) -> str:
    """Post what a button asks for; what was asked, in words.

    Args:
        control: of the run.
        history: of the run.
        name: of the button.
        given: see `request_of`.

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
    members = [v for v in members if history.members[v].state in _states(name)]
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
