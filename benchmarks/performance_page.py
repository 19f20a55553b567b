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
    "suite_gpu": "A GPU",
    "suite_cpu_1thread": "One thread",
    "suite_cpu_2threads": "Two threads",
    "suite_cpu_hfta": "HFTA's models at small widths",
    "suite_cpu_compiled": "Steps compiled",
    "suite_cpu_1thread_avx2": "One thread of a processor with AVX2 and without AVX-512",
    "suite_cpu_1thread_xeon": "One thread of another processor, an earlier state",
    "suite_cpu_2threads_xeon": "Two threads of another processor, an earlier state",
    "suite_cpu_hfta_xeon": "HFTA's models on another processor, an earlier state",
}
"""Titles of results by file; other files of the suite follow under their own names."""

HEAD = """\
# Performance

`make performance-page` writes this page from the files in `benchmarks/results/`; a test compares both.
[benchmarks/README.md](../benchmarks/README.md) describes how each figure is measured, and what makes it fair.

- **ratio**: the time of serial training divided by the time of this mode, for the same steps of the same members in
  interleaved rounds. Serial is the plain module, eager, with torch's fused Adam. "Best serial" is the faster of serial
  and serial under `torch.compile`, without compile time. A mode whose losses differ from serial's has no ratio.
- **hfta_nb** is the training step of a study; **split form** is `array.losses(loss_fn, array(x), y).sum().backward()`
  and the optimizer; **hfta_nb, compiled** the study's step after `torch.compile`'s compiler, faster or not
  (`compile="always"`).
- **of the roofline**: the least time for the operations (at the measured matrix rate) or the bytes (at the measured
  bandwidth), divided by the time taken. The optimizer and elementwise work count no operations, so a small model
  can't reach 100%.
- **drawing batches**: share of the step for taking the batch from the data set.
- **paid after**: steps after which building, tuning and recording have paid for themselves.
- **where the step goes**: by torch's profiler, less its own cost: products (matrix products, convolutions, attention,
  recurrent kernels), other kernels, the optimizer, batches, and time between calls (Python, autograd, launching).
  "Lost" is everything except products at the measured rate.
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
