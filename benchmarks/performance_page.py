"""Writes docs/performance.md, and README's table of whole runs, from the committed results of the suite, of
`benchmarks/whole_runs.py` and of `benchmarks/data.py`.

Usage: python -m benchmarks.performance_page           writes both and the figures (`make performance-page`)
       python -m benchmarks.performance_page --check   tells whether both are up to date
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS
from benchmarks.suite import plot
from benchmarks.suite.report import report

PAGE = RESULTS.parents[1] / "docs" / "performance.md"
README = RESULTS.parents[1] / "README.md"
MARKS = "<!-- whole runs: make performance-page -->\n", "<!-- end of whole runs -->\n"
"""What README's table of whole runs is between."""

RUNS = {
    "mlp": "MLP",
    "cnn": "CNN",
    "lstm": "LSTM",
    "transformer_lm": "Transformer LM",
    "resnet18": "ResNet-18",
    "search": "MLP, a search",
}
"""Studies of whole runs as they are shown."""

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
    return "\n".join([HEAD, *_whole_runs(), *_suite(), *_data()])


def readme(text: str) -> str:
    """README with the table of whole runs as it is now."""
    before, _, rest = text.partition(MARKS[0])
    _, _, after = rest.partition(MARKS[1])
    return f"{before}{MARKS[0]}{_in_readme()}{MARKS[1]}{after}"


def _runs() -> dict[str, Any]:
    path = RESULTS / "whole_runs.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


def _in_readme() -> str:
    found = _runs()
    if not found:
        return ""
    head = "whole runs", "members", "plain loop", "hfta_nb", "the run", "its steps"
    rows = []
    for row in found["rows"]:
        plain, fused = (row["ways"][way]["run"]["median_s"] for way in ("plain", "fused"))
        ratio = f"**{row['ratios']['plain']['median']:.2f}**"
        step = f"{row['step_ratio']:.2f}" if row["step_ratio"] else "-"
        rows.append([RUNS[row["study"]], row["members"], f"{plain:.1f} s", f"{fused:.1f} s", ratio, step])
    about = found["environment"]
    told = (
        "\nFrom starting Python to the last epoch, relative to a plain loop over the members; more is faster. "
        f"[whole_runs.json](benchmarks/results/whole_runs.json), one thread of {about['processor']}.\n\n"
    )
    return told + _table(head, rows) + "\n"


def _whole_runs() -> Iterator[str]:
    found = _runs()
    if not found:
        return
    phases = list(found["rows"][0]["ways"]["fused"]["phases"])
    head = "study", "way", "run, s", "quartiles", "ratio", *phases, "peak, MiB"
    rows = []
    for row in found["rows"]:
        for way, of in row["ways"].items():
            run, ratio = of["run"], row["ratios"].get(way)
            spread = f"{run['low_s']:.1f} to {run['high_s']:.1f}"
            shown = "" if ratio is None else f"{ratio['median']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})"
            times = [f"{of['phases'][phase]:.2f}" for phase in phases]
            name = RUNS[row["study"]]
            rows.append([name, way, f"{run['median_s']:.1f}", spread, shown, *times, f"{of['peak_bytes'] / 2**20:.0f}"])
    about, link = found["environment"], "[whole_runs.json](../benchmarks/results/whole_runs.json)"
    steps = ", ".join(f"{RUNS[row['study']]} {row['step_ratio']:.2f}" for row in found["rows"] if row["step_ratio"])
    told = f"{link}: {about['processor']}; `{about['command']}`. {found['what']}."
    ratios = f"A ratio is this way's time over fused's. Of steps alone, plain's over fused's: {steps}."
    yield f"## Whole runs\n\n{told} {ratios}\n\n{_table(head, rows)}"


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
        shown = README.read_text(encoding="utf-8")
        return int(PAGE.read_text(encoding="utf-8") != page() or shown != readme(shown))
    for path in files():
        plot.main([str(path)])
    PAGE.write_text(page(), encoding="utf-8")
    README.write_text(readme(README.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
