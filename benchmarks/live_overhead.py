"""What watching costs: training throughput with the live view on, over throughput without it.

A study of 16 members trains in a worker process, started from a kernel of a real JupyterLab whose page is open in a
real headless Chromium. Runs with a LiveView on the page and runs without one alternate in one session (without, with,
with, without, ...), so that whatever else the machine does meets both alike. Throughput is training steps over the
time between the end of the first epoch and the end of the last, by the worker's own clock. The bar is 95%.

    python benchmarks/live_overhead.py [--pairs 8] [--epochs 120] [--output benchmarks/results/live_overhead_cpu.json]

Needs the packages of the extra `dev`, and a Chromium (see tests/browser/chromium.py).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # the harness of the browser tests; the package itself may be installed or not

from tests.browser import chromium  # noqa: E402
from tests.browser.conftest import CHROMIUM_FLAGS  # noqa: E402
from tests.browser.jupyter import Lab  # noqa: E402
from tests.browser.notebook import Notebook  # noqa: E402
from tests.browser.polling import eventually  # noqa: E402

BAR = 0.95
POLL_S = 1.0  # both kinds of run are asked this often whether they have ended
PACKAGES = ("torch", "jupyterlab", "ipykernel", "ipywidgets", "anywidget", "playwright")

SETUP = """
import psutil, tempfile
import hfta_nb as hfta
from hfta_nb import events as ev
from hfta_nb.executors import prewarm, start
from hfta_nb.ui.live_view import LiveView
from IPython.display import display

folder = tempfile.TemporaryDirectory()
GRID = {{"lr": [1e-3, 3e-3, 1e-2, 3e-2], "seed": [0, 1, 2, 3]}}
runs = []

def begin(watch):
    view = None
    if watch:
        view = LiveView()
        display(view)
    study = hfta.Study("mlp", GRID, data="digits", epochs={epochs}, directory=f"{{folder.name}}/{{len(runs)}}")
    cpu_s = sum(psutil.Process().cpu_times()[:2])
    handle = start(study)
    epochs = []
    handle.subscribe(lambda e: epochs.append((e.time_s, e.step)) if isinstance(e, ev.EpochDone) else None)
    if view is not None:
        view.attach(handle)
    runs.append((handle, view, epochs, cpu_s))

def result():
    handle, view, epochs, cpu_s = runs[-1]
    (first_s, first_step), (last_s, last_step) = epochs[0], epochs[-1]
    members, duration_s = len(handle.history.members), last_s - first_s
    cpu_s = sum(psutil.Process().cpu_times()[:2]) - cpu_s
    return {{"state": handle.state, "members": members, "epochs": len(epochs), "duration_s": duration_s,
            "steps_per_s": (last_step - first_step) / duration_s, "kernel_cpu_s": cpu_s,
            "messages": 0 if view is None else view._serial}}

prewarm()
"""
FRAMES = """() => {
  const views = [...document.querySelectorAll(".hfta-live")].map((e) => e.hfta);
  const drawn = views.flatMap((v) => v.drawMs).sort((a, b) => a - b);
  const frames = views.reduce((n, v) => n + v.frames, 0);
  return { views: views.length, frames, draw_ms: drawn[drawn.length >> 1] ?? null };
}"""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--pairs", type=int, default=8, help="runs of each kind")
    parser.add_argument("--epochs", type=int, default=120, help="length of a run")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "results" / "live_overhead_cpu.json")
    options = parser.parse_args()
    runs = measure(options.pairs, options.epochs)
    report = summarise(runs, options)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(report, indent=2) + "\n")
    print(f"with the view {report['with_view']['median']:.1f} steps/s, without {report['without_view']['median']:.1f}")
    print(f"ratio {report['ratio']['median']:.3f} (of pairs: {report['ratio']['of_pairs']}), the bar is {BAR}")
    print(f"written: {options.output}")
    return 0 if report["ratio"]["median"] >= BAR else 1


def measure(pairs: int, epochs: int) -> list[dict[str, Any]]:
    """All runs, in the order in which they were made; one of each kind goes before and does not count."""
    from playwright.sync_api import sync_playwright

    path = chromium.install()
    with Lab() as lab, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=CHROMIUM_FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        notebook = Notebook(page, lab)
        notebook.open(lab.write("overhead.ipynb", ["# what watching costs"]))
        notebook.run_cell(SETUP.format(epochs=epochs))
        order = [True, False] + [
            watch for pair in range(pairs) for watch in ((True, False) if pair % 2 else (False, True))
        ]
        runs = [one(notebook, watch) for watch in order]
        faults = notebook.faults()
        browser.close()
        lab.end_sessions()
    if faults:
        raise RuntimeError("the page had errors:\n" + "\n".join(faults))
    return runs[2:]


def one(notebook: Notebook, watch: bool) -> dict[str, Any]:
    """One run, from its start to its end."""
    notebook.run_cell(f"begin({watch})")
    for _ in range(3600):
        time.sleep(POLL_S)
        if notebook.kernel("runs[-1][0].ended"):
            break
    run = {"watched": watch, **notebook.kernel("result()")}
    if run["state"] != "COMPLETE":
        raise RuntimeError(f"the run ended as {run['state']}: {notebook.kernel('str(runs[-1][0].error)')}")
    if watch:
        run["page"] = eventually(lambda: notebook.page.evaluate(FRAMES), "the view's statistics")
        if run["page"]["views"] != 1 or run["page"]["frames"] < run["duration_s"]:
            raise RuntimeError(f"the view was not drawn while the run was on: {run['page']}")
        notebook.kernel("runs[-1][1].close()\nNone")
    notebook.command("notebook:clear-all-cell-outputs")
    print({k: v for k, v in run.items() if k != "page"} | run.get("page", {}), file=sys.stderr)
    return run


def summarise(runs: list[dict[str, Any]], options: argparse.Namespace) -> dict[str, Any]:
    """Medians with quartiles, and how and on what they were measured."""
    watched = [r["steps_per_s"] for r in runs if r["watched"]]
    alone = [r["steps_per_s"] for r in runs if not r["watched"]]
    return {
        "what": "training throughput of 16 members with a live view over without one",
        "ratio": {
            "median": statistics.median(watched) / statistics.median(alone),
            "of_pairs": [round(a / b, 3) for a, b in zip(watched, alone, strict=True)],
            "bar": BAR,
        },
        "with_view": spread(watched),
        "without_view": spread(alone),
        "draw_ms_median": statistics.median(r["page"]["draw_ms"] for r in runs if r["watched"]),
        "frames_per_s": statistics.median(r["page"]["frames"] / r["duration_s"] for r in runs if r["watched"]),
        "kernel_cpu_s": {
            "with_view": statistics.median(r["kernel_cpu_s"] for r in runs if r["watched"]),
            "without_view": statistics.median(r["kernel_cpu_s"] for r in runs if not r["watched"]),
        },
        "device": {"processor": processor(), "cores": len(os.sched_getaffinity(0)), "system": platform.platform()},
        "versions": {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}},
        "command": f"python benchmarks/live_overhead.py --pairs {options.pairs} --epochs {options.epochs}",
        "load_average_1min": os.getloadavg()[0],
        "runs": runs,
    }


def spread(values: list[float]) -> dict[str, Any]:
    """Median, quartiles and all values, in training steps of the whole array a second."""
    low, _, high = statistics.quantiles(values, n=4) if len(values) > 1 else (values[0],) * 3
    return {"median": statistics.median(values), "quartiles": [low, high], "unit": "steps/s", "values": values}


def processor() -> str:
    """The name of the processor."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


if __name__ == "__main__":
    sys.exit(main())
