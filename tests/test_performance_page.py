"""docs/performance.md says what the files of results say."""

from __future__ import annotations

import json

from benchmarks import performance_page
from benchmarks.suite import plot


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
