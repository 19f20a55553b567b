"""The program of a worker process of a crew: ``python -m hfta_nb.workers.crews.child_main PID``. Not for import."""

from __future__ import annotations

import sys

from hfta_nb.workers.crews.crew_child import main

if __name__ == "__main__":
    main(int(sys.argv[1]))
