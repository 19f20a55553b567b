"""The program of a worker process: ``python -m hfta_nb.study.executors.worker_main PID``, with the kernel's PID. Not
for import."""

from __future__ import annotations

import sys

from hfta_nb.study.executors.child import main

if __name__ == "__main__":
    main(int(sys.argv[1]))
