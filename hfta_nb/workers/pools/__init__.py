"""Trains the groups of one study with several workers: processes of this machine, or actors of a Ray cluster.

`Study.run(executor=...)` takes a name or one of the executors here. The process that runs the study keeps the store,
the history and the mailbox; workers train groups and send events and checkpoints.
"""

from __future__ import annotations

from hfta_nb.workers.executor_table import NAMES as KINDS
from hfta_nb.workers.pools.choosing import executor_of, reached
from hfta_nb.workers.pools.executor import Executor, Site, Terms, Worker
from hfta_nb.workers.pools.on_ray import OnRay
from hfta_nb.workers.pools.processes import Processes
from hfta_nb.workers.pools.worker_pool import WorkerPool

__all__ = ["KINDS", "Executor", "OnRay", "Processes", "Site", "Terms", "Worker", "WorkerPool", "executor_of", "reached"]
