"""Fields that are not axes: choices, and texts that are read as typed."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import ipywidgets

from hfta_nb.errors import HftaError, StudyError
from hfta_nb.ui.text import words

MOST = 10**9
"""The largest whole number that a field accepts."""


class TypedField(ipywidgets.Text):  # type: ignore[misc]
    """A text field with a parsed value; text that can't be read stays, with an error.

    Args:
        name: the label.
        value: the initial value; None for empty.
        read: parses the text.
        tooltip: the tooltip.
        nothing: shown while the field is empty.

    Raises:
        StudyError: the value can't be used.

    Attributes:
        meaning: the current value; None if empty or unreadable.
        error: what is wrong, in words; empty if nothing is.
    """

    def __init__(self, name: str, value: Any, read: Callable[[str], Any], tooltip: str, nothing: str = "") -> None:
        self._read = read
        try:
            read(_text(value))
        except StudyError as error:
            raise StudyError(error.what, where=name, got=value, accepted=error.accepted) from None
        super().__init__(
            _text(value),
            placeholder=nothing,
            description=name,
            tooltip=tooltip,
            continuous_update=False,
            layout={"width": "auto"},
        )
        self.add_class("hfta-field").add_class(f"hfta-field-{name.replace(' ', '-')}")

    @property
    def meaning(self) -> Any:
        try:
            return self._read(self.value.strip())
        except StudyError:
            return None

    @meaning.setter
    def meaning(self, value: Any) -> None:
        self.value = _text(value)

    @property
    def error(self) -> str:
        try:
            self._read(self.value.strip())
        except StudyError as error:
            return words(error)
        return ""


def choice(name: str, options: Sequence[str], tooltip: str, chosen: str | None = None) -> ipywidgets.Dropdown:
    """A list to choose from.

    Raises:
        HftaError: the choice is not in the list.
    """
    made = ipywidgets.Dropdown(options=list(options), description=name, tooltip=tooltip, layout={"width": "auto"})
    if chosen is not None:
        made.value = one_of(name, chosen, options)
    return made.add_class("hfta-field").add_class(f"hfta-field-{name.replace(' ', '-')}")


def whole(name: str, value: int | None, low: int, tooltip: str, nothing: str = "", most: int = MOST) -> TypedField:
    """A whole number.

    Args:
        name: the label.
        value: at first.
        low: the smallest accepted number.
        tooltip: the tooltip.
        nothing: the meaning of an empty field; by default that is an error.
        most: the largest accepted number.
    """

    def read(text: str) -> int | None:
        if nothing and not text:
            return None
        return whole_number("", text, low, most, nothing)

    return TypedField(name, value, read, tooltip, nothing)


def whole_number(where: str, text: str, low: int, most: int = MOST, nothing: str = "") -> int:
    """The whole number that was typed; see `whole`.

    Raises:
        StudyError: it is none, or out of bounds.
    """
    number = _whole(text)
    if number is None or not low <= number <= most:
        accepted = f"{low} to {most:,}" + (f", or nothing for {nothing}" if nothing else "")
        what = "not a whole number" if number is None else "out of bounds"
        raise StudyError(what, where=where, got=text, accepted=accepted)
    return number


def number(
    name: str,
    value: float | None,
    fits: Callable[[float], bool],
    accepted: str,
    tooltip: str,
    nothing: str = "",
    what: str = "not a number",
) -> TypedField:
    """A number.

    Args:
        name: the label.
        value: at first.
        fits: whether a number is accepted.
        accepted: these numbers, in words.
        tooltip: the tooltip.
        nothing: the meaning of an empty field; by default that is an error.
        what: what is said of anything else.
    """
    accepted += f", or nothing for {nothing}" if nothing else ""

    def read(text: str) -> float | None:
        if nothing and not text:
            return None
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not (math.isfinite(number) and fits(number)):
            raise StudyError(what, got=text, accepted=accepted)
        return number

    return TypedField(name, value, read, tooltip, nothing)


def price(name: str, tooltip: str) -> TypedField:
    """A price of 0 or more, or nothing."""
    return number(name, None, lambda v: v >= 0, "0 or more, for example 2.50", tooltip, "none", "not a price")


def capacity(value: Any, tooltip: str, nothing: str) -> TypedField:
    """The most members of an array: a number, "auto", or nothing."""
    return TypedField("members per array", value, _capacity, tooltip, nothing)


def padding(value: Any, tooltip: str) -> TypedField:
    """The largest share of padding: a number below 1, "auto" or "never"."""
    return TypedField("padding", value, _padding, tooltip)


def one_of(where: str, value: str, options: Sequence[str]) -> str:
    """The value, which must be one of the options.

    Raises:
        HftaError: it is not.
    """
    if value not in options:
        raise HftaError("not one of these", where=where, got=value, accepted=", ".join(options))
    return value


def devices() -> list[str]:
    """The devices of this machine, the fastest first."""
    import torch

    found = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    return [*found, "cpu"]


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _whole(text: str) -> int | None:
    """A whole number in any notation: 20, 1e3, 1_000."""
    with contextlib.suppress(ValueError):  # not digits alone: 1e3 is read below
        return int(text)
    try:
        number = float(text)
    except ValueError:
        return None
    return int(number) if number.is_integer() else None


def _capacity(text: str) -> int | str | None:
    if not text or text == "auto":
        return text or None
    number = _whole(text)
    if number is None or not 1 <= number <= MOST:
        accepted = "1, 2, 3, ..., auto, or nothing for as many as fit"
        raise StudyError("not a number of members", got=text, accepted=accepted)
    return number


def _padding(text: str) -> float | str:
    if text in ("auto", "never"):
        return text
    with contextlib.suppress(ValueError):
        number = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        if 0 <= number < 1:
            return number
    raise StudyError(
        "not a share of padding", got=text, accepted="auto, never, or a share from 0 to 1 such as 0.25 or 25%"
    )
