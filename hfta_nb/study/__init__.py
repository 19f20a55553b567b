"""A study: family, grid and data, wired to plan, training, store and telemetry. Headless."""

from hfta_nb.search import COSTS
from hfta_nb.study.analysis import LINKED, linked
from hfta_nb.study.comparing import RUN, compare, overlay, together
from hfta_nb.study.definition_files import given_options, rescued
from hfta_nb.study.machine import Part, parts_of_machine
from hfta_nb.study.planning import array_name
from hfta_nb.study.result import Result
from hfta_nb.study.run_index import SavedRun, annotate, delete_run, runs, saved_runs
from hfta_nb.study.sameness import Change, Kept, kept
from hfta_nb.study.study import Study

__all__ = [
    "COSTS",
    "LINKED",
    "RUN",
    "Change",
    "Kept",
    "Part",
    "Result",
    "SavedRun",
    "Study",
    "annotate",
    "array_name",
    "compare",
    "delete_run",
    "given_options",
    "kept",
    "linked",
    "overlay",
    "parts_of_machine",
    "rescued",
    "runs",
    "saved_runs",
    "together",
]
