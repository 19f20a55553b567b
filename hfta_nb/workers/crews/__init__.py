"""Trains the groups of one study with several workers: processes of this machine, or actors of a Ray cluster.

`Study.run(executor=...)` takes a name or one of the executors here. The process that runs the study keeps the store,
the history and the mailbox; workers train groups and send events and checkpoints.
"""

from __future__ import annotations

from hfta_nb.workers.crews.choosing import executor_of, reached
from hfta_nb.workers.crews.crew import Crew
from hfta_nb.workers.crews.executor import Executor, Site, Terms, Worker
from hfta_nb.workers.crews.on_ray import OnRay
from hfta_nb.workers.crews.processes import Processes
from hfta_nb.workers.executor_table import NAMES as KINDS

__all__ = ["KINDS", "Crew", "Executor", "OnRay", "Processes", "Site", "Terms", "Worker", "executor_of", "reached"]
