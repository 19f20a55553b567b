"""A study: family, grid and data, wired to plan, training, store and telemetry. Headless."""

from hfta_nb.study.result import Result
from hfta_nb.study.run_index import SavedRun, saved_runs
from hfta_nb.study.study import Study

__all__ = ["Result", "SavedRun", "Study", "saved_runs"]
