"""The program of a rank beside rank 0: ``python -m hfta_nb.workers.distributed.follower_main``. Not for import."""

from __future__ import annotations

import sys

from hfta_nb.workers.distributed.rank_follower import main

if __name__ == "__main__":
    sys.exit(main())
