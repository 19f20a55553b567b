"""Training steps of many members, compared over all modes of training. `python -m benchmarks` runs it; see
README.md."""

import os

# Set before torch is imported: its profiler would print a message for every start and end.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")
