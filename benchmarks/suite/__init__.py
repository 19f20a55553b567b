"""Training steps of many members, every way there is, side by side. `python -m benchmarks` runs it; see README.md."""

import os

# Before torch is imported: its profiler would tell of every start and end.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")
