"""The benchmark suite as a command: `python -m benchmarks --help`."""

from __future__ import annotations

import sys

from benchmarks.suite.command import main

if __name__ == "__main__":
    sys.exit(main())
