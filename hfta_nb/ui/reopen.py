"""Finds the saved run that is offered, and shows it again."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from hfta_nb.errors import FamilyError, StoreError, StudyError
from hfta_nb.records.summaries import USUAL_FOLDER
from hfta_nb.study import SavedRun, Study, saved_runs
from hfta_nb.ui.definition import FormValues
from hfta_nb.ui.run_phase import AT_REST
from hfta_nb.ui.saved_run import as_interrupted
from hfta_nb.ui.workbench_protocol import Bench


def folder_of(definition: FormValues) -> Path:
    """The folder of new runs."""
    directory = definition.options.get("directory")
    return Path(USUAL_FOLDER).absolute() if directory is None else Path(directory).absolute().parent


def latest(definition: FormValues) -> SavedRun | None:
    """The latest saved run of the defined family and data, in the folder of new runs."""
    name = definition.data if isinstance(definition.data, str) else definition.data.name
    runs = (run for run in saved_runs(folder_of(definition)) if (run.family, run.data) == (definition.family, name))
    return next(runs, None)


def loaded(path: str | Path, family: Any = None, data: Any = None) -> Study:
    """The study of a saved run, or of one in progress in another process.

    Raises:
        StoreError: there is no run, it is damaged, or its data must be given.
        FamilyError: its family is not known.
    """
    call = f"Workbench.reattach({str(path)!r}"
    try:
        return as_interrupted(Study.load(path, family=family, data=data))
    except FamilyError as error:
        if "pass it" not in error.remedy:
            raise
        remedy = f"run the cell that defines it first, or pass it: {call}, family=...)"
        raise FamilyError(error.what, where=error.where, got=_Shown(error.got), remedy=remedy) from error
    except StoreError as error:
        if "data=" not in error.remedy:
            raise
        raise StoreError(error.what, where=error.where, remedy=f"give it again: {call}, data=...)") from error


def restore(bench: Bench, path: str | Path, leave: bool) -> None:
    """See `Workbench.restore`; `leave`: a run in progress goes on without this Workbench."""
    if bench.state not in AT_REST and not leave:
        raise StudyError("a run is in progress", where="Workbench", remedy="stop it first")
    own: dict[str, Any] = {}
    offered = bench.offer.run
    if offered is not None and Path(path).absolute() == offered.directory.absolute():
        # Only this Workbench may know the run's family and data.
        data = bench.define.definition().data
        own = {"family": bench.family, "data": None if isinstance(data, str) else data}
    bench.remake(loaded(path, **own))


@dataclasses.dataclass(frozen=True)
class _Shown:
    """A value that is shown as an earlier error has shown it."""

    text: str

    def __repr__(self) -> str:
        return self.text
