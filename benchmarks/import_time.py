"""The time to import hfta_nb, relative to importing torch; the target is at most 1.3.

Names of the public face are imported on first use, so `import hfta_nb` alone is no measure: the target applies to an
import that uses every name of the face.

    python benchmarks/import_time.py [--rounds 15]
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.common import interleaved, options, write

BAR = 1.3

IMPORTS = {
    "torch": "import torch",
    "hfta_nb": "import hfta_nb",
    "hfta_nb_face": "import hfta_nb\nfor name in hfta_nb.__all__: getattr(hfta_nb, name)",
}


def import_s(code: str) -> float:
    """Seconds of some imports in a fresh interpreter, without its own start."""
    timed = f"import time\nbegin = time.perf_counter()\n{code}\nprint(time.perf_counter() - begin)"
    ran = subprocess.run([sys.executable, "-c", timed], capture_output=True, text=True, check=True)
    return float(ran.stdout.split()[-1])


def main() -> int:
    rounds = options(__doc__, rounds=15).parse_args().rounds
    timings = interleaved({name: lambda code=code: import_s(code) for name, code in IMPORTS.items()}, rounds)
    ratio = timings["hfta_nb_face"].median_s / timings["torch"].median_s
    for name, timing in timings.items():
        print(f"{name:13} {timing}")
    print(f"{ratio:.2f} times the import of torch; the bar is {BAR}")
    print(write("import_time", {"what": "import times", **timings, "ratio": round(ratio, 3), "bar": BAR}))
    return 0 if ratio < BAR else 1


if __name__ == "__main__":
    sys.exit(main())
