"""Runs studies in a worker process (the default), or inline on a thread of this process.

A thread of the kernel loses up to 99.7% of its speed to a busy cell, since both need the interpreter's lock. So each
concurrent run has a worker process, which is kept warm between runs. Studies are sent by cloudpickle (families defined
in cells work); events and requests are sent over pipes.
"""

from __future__ import annotations

from hfta_nb.study.executors.attaching import attach
from hfta_nb.study.executors.handle import RunHandle
from hfta_nb.study.executors.pool import close_all, prewarm, warm
from hfta_nb.study.executors.start import start
from hfta_nb.study.executors.where import Where
from hfta_nb.workers.processes.cores import threads

__all__ = ["RunHandle", "Where", "attach", "close_all", "prewarm", "start", "threads", "warm"]
