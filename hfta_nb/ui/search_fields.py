"""The fields of a search, and of a population: one line below the axes, shown where something is searched."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ipywidgets
import traitlets

from hfta_nb.errors import HftaError, SearchError, StudyError
from hfta_nb.models.study_config import ARGUMENTS
from hfta_nb.search import PBT, Halving, Leader
from hfta_nb.search.grid import parse_axis, show
from hfta_nb.search.methods import PRUNERS, SAMPLERS
from hfta_nb.ui import fields
from hfta_nb.ui.axis_row import AxisRow
from hfta_nb.ui.widgets import button

USUAL_TRIALS = 20
"""Trials of a search, where an axis became an interval and nobody has said how many."""

_METHODS = {"sampler": (SAMPLERS, "tpe"), "pruner": (PRUNERS, "none")}
"""Names of methods, and which is meant by None."""

_OF_TRIALS = ("slots", "sampler", "pruner", "seeds_by")
_EVERY = "Epochs from one round to the next; of a leader, training steps from one pull to the next"
_SEARCH = "Try a number of configurations instead of all, or let members replace each other"


def made(name: str, value: Any, label: str, hint: str) -> Any:
    """The field of an argument of a search.

    Raises:
        HftaError: it can't begin with this value.
    """
    known = ARGUMENTS[name]
    if name in _METHODS:
        return _method(name, value, hint)
    if name == "population":
        return Population(value, hint)
    if known.choices:
        return fields.choice(label, known.choices, hint, value)
    return fields.whole(label, value, known.low or 1, hint, known.none)


def _method(name: str, value: Any, hint: str) -> ipywidgets.Dropdown:
    """A sampler or pruner by its name; an object of Optuna's that was given joins the list."""
    names, usual = _METHODS[name]
    value = usual if value is None else value
    own = [] if isinstance(value, str) else [(f"own {type(value).__name__}", value)]
    field = fields.choice(name, names, hint)
    if not own:
        fields.one_of(name, value, names)
    field.options = [*((n, n) for n in names), *own]
    field.value = value
    return field


def _is_pull(value: float) -> bool:
    return 0 <= value <= 1


class Population(ipywidgets.HBox):  # type: ignore[misc]
    """A population method with its numbers.

    Args:
        given: `hfta_nb.PBT`, `hfta_nb.Halving`, `hfta_nb.Leader`, or None.
        tooltip: of its list.

    Attributes:
        value: what is typed; changes whenever the method may have changed.
    """

    value = traitlets.Any()

    def __init__(self, given: Any, tooltip: str) -> None:
        self.description, self.hint, self._given = "population", tooltip, given  # a box takes no tooltip
        if not (given is None or isinstance(given, PBT | Halving | Leader)):
            raise StudyError("not a population method", where="population", got=given,
                             accepted="hfta.PBT(...), hfta.Halving(...) or hfta.Leader(...)")  # fmt: skip
        self.kind = fields.choice("population", ["none", "PBT", "Halving", "Leader"], tooltip)
        self.kind.value = "none" if given is None else type(given).__name__
        self.every = fields.whole("every", getattr(given, "every", 1), 1, _EVERY)
        share, few = "above 0, at most 0.5", "The share of members that is replaced by copies of the best"
        self.exploit = fields.number("exploit", getattr(given, "exploit", 0.2), lambda v: 0 < v <= 0.5, share, few)
        self.factor = fields.whole("factor", getattr(given, "factor", 2), 2, "One of so many members goes on")
        hint = "How copies differ: lr*0.8,1.25 multiplies by one of these; lr=1e-3,1e-2 takes one of these"
        text = _perturb_text(getattr(given, "perturb", {}))
        self.perturb = fields.TypedField("perturb", text, perturb_of, hint, "lr*0.8,1.25")
        pull, to_all = "From 0 to 1, toward the best of the member's group", "The same toward the best of all groups"
        self.pull = fields.number("pull", getattr(given, "pull", 0.1), _is_pull, "from 0 to 1", pull)
        self.global_pull = fields.number(
            "global pull", getattr(given, "global_pull", 0.1), _is_pull, "from 0 to 1", to_all
        )
        self.groups = fields.whole("groups", getattr(given, "groups", 1), 1, "How many groups, each with a leader")
        self._numbers = [self.every, self.exploit, self.factor, self.perturb, self.pull, self.global_pull, self.groups]
        parts = [self.kind, *self._numbers]
        super().__init__(parts)
        self.add_class("hfta-population")
        self._begun = self._lay(None)
        for part in parts:
            part.observe(self._lay, "value")

    def __repr__(self) -> str:
        return f"Population({self.kind.value!r})"

    @property
    def disabled(self) -> bool:
        return bool(self.kind.disabled)

    @property
    def parts(self) -> dict[str, Any]:
        """The fields that the chosen method has, by the names of its arguments."""
        if self.kind.value == "Leader":
            pulls = {"pull": self.pull, "global_pull": self.global_pull} if self._several else {"pull": self.pull}
            return {"every": self.every, **pulls, "groups": self.groups}
        own: dict[str, dict[str, Any]] = {"PBT": {"exploit": self.exploit}, "Halving": {"factor": self.factor}}
        more = own.get(self.kind.value)
        return {} if more is None else {"every": self.every, **more, "perturb": self.perturb}

    @property
    def error(self) -> str:
        """What can't be read, in words; empty if all can."""
        found = [f"{name}: {part.error}" for name, part in self.parts.items() if part.error]
        if not found and "global_pull" in self.parts and self.pull.meaning + self.global_pull.meaning > 1:
            found = ["pull, global_pull: above 1 together"]
        return "; ".join(found)

    @property
    def meaning(self) -> PBT | Halving | Leader | None:
        """The method; None for none, or where something can't be read."""
        if self.value == self._begun:
            return self._given  # type: ignore[no-any-return]
        if self.error or not self.parts:
            return None
        method = {"PBT": PBT, "Halving": Halving, "Leader": Leader}[self.kind.value]
        found = {name: part.meaning for name, part in self.parts.items()}
        led_by = {"leader": self._given.leader} if method is Leader and isinstance(self._given, Leader) else {}
        return method(**found, **led_by)  # type: ignore[no-any-return]

    @property
    def _several(self) -> bool:
        return bool(not self.groups.error and self.groups.meaning > 1)

    def _lay(self, _: Any) -> tuple[str, ...]:
        shown = self.parts.values()
        for part in self._numbers:
            part.layout.display = "" if part in shown else "none"
        found = (str(self.kind.value), *(str(part.value) for part in shown))
        self.value = found
        return found


def perturb_of(text: str) -> dict[str, Any]:
    """How copies differ, as typed: ``lr*0.8,1.25; weight_decay=0,0.1``.

    Raises:
        StudyError: a part can't be read.
    """
    found: dict[str, Any] = {}
    for part in filter(None, map(str.strip, text.split(";"))):
        times = "*" in part
        try:
            name, values = parse_axis(part.replace("*", "=", 1) if times else part)
            found |= {name: values if times else list(values)}
            PBT(perturb=found)
        except HftaError as error:
            what = error.what if isinstance(error, SearchError) else "not factors, nor values"
            accepted = "for example lr*0.8,1.25; weight_decay=0,0.1"
            raise StudyError(what, got=part, accepted=accepted) from None
    return found


def _perturb_text(perturb: Mapping[str, Any]) -> str:
    """What `perturb_of` reads."""
    each = (f"{name}{'=' if isinstance(how, list) else '*'}{','.join(map(show, how))}" for name, how in perturb.items())
    return "; ".join(each)


class SearchFields(ipywidgets.HBox):  # type: ignore[misc]
    """The line of these fields, with the button that opens it.

    Args:
        made: the fields, by name.
        changed: called when the line was closed or opened.
    """

    def __init__(self, made: Mapping[str, Any], changed: Callable[[], None]) -> None:
        self.fields = dict(made)
        self._changed = changed
        self._open = self._had = self._filled = False
        self.button = button("search", _SEARCH, "hfta-search-open")
        self.button.on_click(lambda _: self._pressed())
        super().__init__(list(self.fields.values()))
        self.add_class("hfta-fields").add_class("hfta-search")

    def __repr__(self) -> str:
        return f"SearchFields({self.fields['trials'].value!r})"

    @property
    def on(self) -> bool:
        """Whether a number of trials stands in its field."""
        return bool(self.fields["trials"].value.strip())

    def follow(self, rows: Sequence[AxisRow]) -> None:
        """Show what the axes make possible; the first interval brings a number of trials, and the last takes it away.

        Args:
            rows: of the axes.
        """
        trials, had = self.fields["trials"], self._had
        ranges = [row.name for row in rows if row.is_interval]
        self._had = bool(ranges)
        if ranges and not had and not self.on:
            self._filled, trials.value = True, str(USUAL_TRIALS)
        if had and not ranges and self._filled and trials.value == str(USUAL_TRIALS):
            self._filled, trials.value = False, ""
        population = self.fields["population"]
        chosen = population.kind.value != "none"
        shown = bool(ranges) or self.on or chosen or self._open
        self.layout.display = "" if shown else "none"
        self.button.description = "no search" if shown else "search"
        self.button.disabled = bool(ranges)
        why = f"{ranges[0]} is an interval, which only a search can train" if ranges else ""
        self.button.tooltip = f"Not now: {why}" if why else "Train all of the grid" if shown else _SEARCH
        several = any(row.name == "seed" and len(row.values or ()) > 1 for row in rows)
        for name in _OF_TRIALS:
            used = self.on and (name != "seeds_by" or several)
            self.fields[name].disabled = not used
            self.fields[name].layout.display = "" if used else "none"
        population.kind.disabled = self.on and not chosen
        population.kind.tooltip = "Trials have no population: clear trials first" if self.on else population.hint

    def told(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a study: without trials, those that belong to a search have their defaults."""
        off = () if self.on else _OF_TRIALS
        return {name: ARGUMENTS[name].default if name in off else value for name, value in options.items()}

    def hints(self) -> dict[str, str]:
        """What to say of each field, by its label."""
        population = self.fields["population"]
        found = [*(f for f in self.fields.values() if f is not population), *population.children]
        return {str(w.description): str(w.tooltip) for w in found}

    def _pressed(self) -> None:
        self._open = self.layout.display == "none"
        if not self._open:
            self.fields["trials"].value, self.fields["population"].kind.value = "", "none"
        self._changed()
