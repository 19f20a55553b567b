"""Where a study runs: in this process, or in a worker process of its own (the default under widgets).

Events come out and requests go in; weights reach the kernel through the run's directory alone.
"""

from hfta_nb.executors.handle import RunHandle
from hfta_nb.executors.pool import close_all, prewarm, start
from hfta_nb.executors.threads import threads

__all__ = ["RunHandle", "close_all", "prewarm", "start", "threads"]
