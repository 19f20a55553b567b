"""docs/performance.md says what the files of results say."""

from __future__ import annotations

import json

from benchmarks import performance_page
from benchmarks.suite import plot

README = performance_page.PAGE.parents[1] / "README.md"


def test_the_page_is_what_the_results_say() -> None:
    kept = performance_page.PAGE.read_text(encoding="utf-8")
    assert performance_page.page() == kept, "run `make performance-page`"


def test_every_file_of_results_has_a_section_with_its_command() -> None:
    kept = performance_page.PAGE.read_text(encoding="utf-8")
    assert performance_page.files()
    for path in performance_page.files():
        assert f"({'../benchmarks/results/'}{path.name})" in kept
        for line in plot.read(path):
            assert f"`{line['command']}`" in kept
    for path in performance_page.RESULTS.glob("data_*.json"):
        assert json.loads(path.read_text(encoding="utf-8"))["environment"]["command"] in kept


def test_the_readme_says_what_the_results_say() -> None:
    rows = {
        (r["model"], r["members"], r["mode"]): r
        for r in plot.read(performance_page.RESULTS / "suite_cpu_1thread.jsonl")
    }
    modes = ("compiled", "processes", "vmap", "jax", "ours")
    for model in ("MLP", "CNN", "LSTM", "Transformer"):
        found = [rows[model.lower(), 8, mode]["ratio_to_serial"]["cpu_median"] for mode in modes]
        shown = [f"{ratio:.2f}" for ratio in found]
        line = f"| {model} | {' | '.join(shown[:-1])} | **{shown[-1]}** |"
        assert line in README.read_text(encoding="utf-8")
