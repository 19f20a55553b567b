"""The program of a worker process: ``python -m hfta_nb.workers.processes.child_main ROLE PID``. Not for import.

The role is for people who look at the list of processes; the number is the id of the process that started it.
"""

from __future__ import annotations

import sys

from hfta_nb.workers.processes.child import main

if __name__ == "__main__":
    sys.exit(main(int(sys.argv[-1])))
