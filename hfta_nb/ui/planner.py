"""Makes a study from the fields, or reports why it can't."""

from __future__ import annotations

from typing import Any

from hfta_nb.errors import HftaError, StudyError
from hfta_nb.study import Study
from hfta_nb.ui.define import Define
from hfta_nb.ui.definition import FormValues
from hfta_nb.ui.notices import notices
from hfta_nb.ui.plan_view import PlanView
from hfta_nb.ui.text import count, words
from hfta_nb.ui.trials import amount


class Planner:
    """Keeps the plan up to date with the fields.

    Attributes:
        draft: the defined study; None if there is a problem.
        problem: why it can't be planned, in words.
    """

    def __init__(self, define: Define, view: PlanView) -> None:
        self._define, self._view = define, view
        self.draft: Study | None = None
        self.problem = ""

    @property
    def variants(self) -> int | None:
        """The number of variants; None without a plan."""
        return None if self.draft is None else len(self.draft.variants)

    @property
    def amount(self) -> str:
        """How many of what are defined: ``12 variants``, ``20 trials``; empty without a plan."""
        return amount(self.draft) or ("" if self.variants is None else count(self.variants, "variant"))

    def plan(self) -> str:
        """Read the fields and show the plan or the problem; returns it in one line."""
        definition = self._define.definition()
        self.draft, self.problem = None, ""
        self._define.notify(())
        if definition.problems:
            name, said = next(iter(definition.problems.items()))
            self._define.complain(None)
            return self._no(f"{name}: {said}", name)
        try:
            self.draft = _study(definition)
        except HftaError as error:
            return self._no(words(error), self._define.complain(error))
        self._define.complain(None)
        self._define.notify(notices(self.draft, self._define.fields["patience"].meaning))
        return self._view.show(self.draft, make=lambda padding: _study(definition, padding=padding))

    def fresh(self) -> Study:
        """A study of the definition, in a new directory.

        Raises:
            HftaError: the definition can't be trained.
        """
        definition = self._define.definition()
        wanted = definition.options.get("directory")
        for number in range(2, 10_000):
            study = _study(definition)
            if wanted is None or not study.store.exists:
                return study
            definition.options["directory"] = f"{wanted}-{number}"
        raise StudyError("too many runs beside this one", where=str(wanted), remedy="choose another directory")

    def _no(self, problem: str, beside: str) -> str:
        self.problem = problem
        self._view.show_problem(f"No plan yet: see {beside} above." if beside else f"No plan yet. {problem}")
        return problem


def _study(definition: FormValues, **more: Any) -> Study:
    return Study(definition.family, definition.grid, definition.data, **definition.options | more)
