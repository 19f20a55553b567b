"""What has been changed in Define since the run on the screen began; it can be taken back, or added to the run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hfta_nb.errors import StudyError
from hfta_nb.search.grid import Grid
from hfta_nb.ui.define import Define
from hfta_nb.ui.definition import FormValues
from hfta_nb.ui.refining import around
from hfta_nb.ui.run_phase import why_not
from hfta_nb.ui.saved_run import grid_of, searched_of
from hfta_nb.ui.session import Session
from hfta_nb.ui.text import count, listing
from hfta_nb.ui.widgets import Section

REVERT, ADD = "revert", "add to this run"
_LISTED = "listed configurations"


class SinceRun:
    """Holds Define beside what it was when the run began.

    Args:
        define: the fields.
        section: their section, whose head says what is changed.
        session: the run.
        pressed: called with `REVERT` or `ADD` when that button is.
    """

    def __init__(self, define: Define, section: Section, session: Session, pressed: Callable[[str], None]) -> None:
        self._define, self._section, self._session = define, section, session
        section.head.on_action(pressed)
        self._begun: FormValues | None = None  # before the first run
        self._typed: dict[str, Any] = {}

    def begin(self) -> None:
        """Called when a run of this definition begins, or is shown."""
        self._begun = self._define.definition()
        self._typed = {name: widget.value for name, widget in self._define.fields.items()}
        self.say()

    def say(self) -> None:
        """Say on Define's line what is another than in the run."""
        changed, head = self._changed(), self._section.head
        head.note = f"changed since this run: {listing(changed)}" if changed else ""
        head.actions = [REVERT] * bool(changed) + [ADD] * bool(changed and self._joining())

    def revert(self) -> None:
        """Put everything as it was when the run began."""
        define, then = self._define, self._begun
        if then is None:
            return
        for name, widget in define.fields.items():
            if widget.value != self._typed[name]:
                widget.value = self._typed[name]
        define.listed.put(then.listed)
        define.put(then.axes)

    def add(self) -> list[dict[str, Any]]:
        """Ask the run to train the variants that Define has and it has not; returns them.

        Raises:
            StudyError: nothing is training, or there are none that can join the run.
        """
        variants = self._joining()
        if not variants:
            remedy = "add values to axes while a run is in progress; a search chooses its trials itself"
            raise StudyError("there is nothing to add", where=ADD, remedy=remedy)
        self._session.handle.control.add(variants)
        self.begin()
        return variants

    def refine(self, member: int) -> None:
        """Put a finer grid around a member, or a narrower search, in place of the run's.

        Raises:
            StudyError: there is no such member.
        """
        with self._session.reading():
            found = self._session.history.members.get(member)
        study = self._session.study
        if found is None or study is None:
            raise StudyError("no such member", where="refine", got=member)
        self.revert()
        axes = searched_of(study).get("grid", grid_of(study).axes)
        self._define.listed.put(())
        self._define.put(around(found.config, axes, self._define.specs))
        self._section.head.unfolded = True

    def _changed(self) -> list[str]:
        """The names of what is another now: fields and axes."""
        then, now = self._begun, self._define.definition()
        if then is None:
            return []
        found = [name for name in ("family", "data") if _differ(getattr(then, name), getattr(now, name))]
        axes = then.axes | now.axes
        found += [name for name in axes if then.axes.get(name) != now.axes.get(name) or name in now.problems]
        found += [name for name, value in now.options.items() if _differ(value, then.options.get(name))]
        return found + [_LISTED] * (then.listed != now.listed)

    def _joining(self) -> list[dict[str, Any]]:
        """The variants of Define that can join the run: only axes may differ, and it is no search or population."""
        study, then, now = self._session.study, self._begun, self._define.definition()
        if then is None or study is None or study.searcher is not None or study.population is not None or now.problems:
            return []
        if why_not("stop", self._session.phase) or not {*then.axes, *now.axes, _LISTED}.issuperset(self._changed()):
            return []
        with self._session.reading():
            there = [member.config for member in self._session.history.members.values()]
        configs = [dict(variant.config) for variant in Grid(now.grid).variants()]
        return [config for config in configs if not any(config.items() <= one.items() for one in there)]


def added(variants: list[dict[str, Any]]) -> str:
    """What was asked, in words."""
    return f"asked: add {count(len(variants), 'variant')}"


def _differ(one: Any, other: Any) -> bool:
    """Own data and options given in code are compared by what they are: they may hold tensors."""
    plain = isinstance(one, str | int | float | list | tuple | dict | None) and type(one) is type(other)
    return one is not other and not (plain and one == other)
