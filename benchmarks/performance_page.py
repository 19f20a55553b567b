"""Writes docs/performance.md from the committed results of the suite and of `benchmarks/data.py`.

Usage: python -m benchmarks.performance_page           writes the page and the figures (`make performance-page`)
       python -m benchmarks.performance_page --check   tells whether the page is up to date
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS
from benchmarks.suite import plot
from benchmarks.suite.report import report

PAGE = RESULTS.parents[1] / "docs" / "performance.md"
SUITE = {
    "suite_cpu_1thread": "One thread",
    "suite_cpu_2threads": "Two threads",
    "suite_cpu_hfta": "HFTA's models at small widths",
    "suite_cpu_compiled": "Steps compiled",
    "suite_cpu_1thread_avx2": "One thread of a processor with AVX2 and without AVX-512",
    "suite_cpu_1thread_xeon": "One thread of another processor, an earlier state",
    "suite_cpu_2threads_xeon": "Two threads of another processor, an earlier state",
    "suite_cpu_hfta_xeon": "HFTA's models on another processor, an earlier state",
}
"""Titles of results by file; others of the suite follow under their own names."""

HEAD = """\
# Performance

Written by `make performance-page` from the files in `benchmarks/results/`; a test compares this page with them. How
each figure is taken, and what makes it fair, is in [benchmarks/README.md](../benchmarks/README.md).

- **ratio**: serial training's time over this way's time for the same steps of the same members, the laps interleaved.
  Serial is the plain module, eager, with torch's fused Adam; "best serial" is that or the same under `torch.compile`,
  whichever is faster without its compile time. A way whose losses are not serial's has no ratio.
- **hfta_nb** is the training step of a study; **split form** is `array.losses(loss_fn, array(x), y).sum().backward()`
  and the optimizer; **hfta_nb, compiled** the study's step after `torch.compile`'s compiler, faster or not
  (`compile="always"`).
- **of the roofline**: the least time that operations (over the measured matrix rate) or bytes (over the measured
  bandwidth) need, over the time taken. The optimizer and elementwise work have no operations there, so a small model
  cannot reach 100%.
- **drawing batches**: share of the step for taking the batch from the data set.
- **paid after**: steps until what building, tuning and recording took beyond serial's beginning has been won back.
- **where the step goes**: by torch's profiler, less what that itself costs: products (matrix products, convolutions,
  attention, recurrent kernels), other kernels, the optimizer, batches, and what lies between calls (Python, autograd,
  launching). "Lost" is all but products at the measured rate.
"""


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *_suite(), *_data()])


def files() -> list[Path]:
    """Results of the suite, those with a title first."""
    known = [RESULTS / f"{name}.jsonl" for name in SUITE]
    others = sorted(set(RESULTS.glob("suite_*.jsonl")) - set(known))
    return [path for path in (*known, *others) if path.exists()]


def _suite() -> Iterator[str]:
    for path in files():
        picture, link = path.with_suffix(".png"), f"[{path.name}](../benchmarks/results/{path.name})"
        yield f"## {SUITE.get(path.stem, path.stem)}\n\n{link}: {report(plot.read(path))}"
        if picture.exists():
            yield f"![Curves of {path.stem}](../benchmarks/results/{picture.name})\n"


def _data() -> Iterator[str]:
    for path in sorted(RESULTS.glob("data_*.json")):
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        text = ["| model | members | data | step, ms | waiting for data |", "|---|---|---|---|---|"]
        for row in found["rows"]:
            cells = (
                row["model"],
                row["members"],
                row["data"],
                f"{row['step_s'] * 1e3:.3g}",
                f"{row['wait_share']:.2%}",
            )
            text.append(f"| {' | '.join(map(str, cells))} |")
        about, link = found["environment"], f"[{path.name}](../benchmarks/results/{path.name})"
        told = f"{link}: {about['gpu'] or about['processor']}; `{about['command']}`. {found['what']}"
        yield f"## Waiting for data\n\n{told}\n\n" + "\n".join(text) + "\n"


def main() -> int:
    if "--check" in sys.argv:
        return int(PAGE.read_text(encoding="utf-8") != page())
    for path in files():
        plot.main([str(path)])
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
