"""`python -m hfta_nb` is the command `hfta-nb`."""

from __future__ import annotations

import sys

from hfta_nb.cli import main

if __name__ == "__main__":
    sys.exit(main())
