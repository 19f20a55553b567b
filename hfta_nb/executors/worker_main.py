"""What a worker process runs: ``python -m hfta_nb.executors.worker_main``. Not for import."""

from __future__ import annotations

from hfta_nb.executors.child import main

if __name__ == "__main__":
    main()
