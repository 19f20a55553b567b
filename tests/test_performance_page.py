"""docs/performance.md agrees with the result files."""

from __future__ import annotations

import json

import pytest

from benchmarks import performance_page
from benchmarks.suite import plot

README = performance_page.README


def test_the_page_is_what_the_results_say() -> None:
    kept = performance_page.PAGE.read_text(encoding="utf-8")
    assert performance_page.page() == kept, "run `make performance-page`"


def test_readme_has_the_table_of_whole_runs() -> None:
    kept = README.read_text(encoding="utf-8")
    assert all(kept.count(mark) == 1 for mark in performance_page.MARKS)
    assert performance_page.readme(kept) == kept, "run `make performance-page`"


def test_every_file_of_results_has_a_section_with_its_command() -> None:
    kept = performance_page.PAGE.read_text(encoding="utf-8")
    assert performance_page.files()
    for path in performance_page.files():
        assert f"({'../benchmarks/results/'}{path.name})" in kept
        for line in plot.read(path):
            assert f"`{line['command']}`" in kept
    for path in performance_page.RESULTS.glob("data_*.json"):
        assert json.loads(path.read_text(encoding="utf-8"))["environment"]["command"] in kept


IN_README = {
    "MLP": ("suite_cpu_1thread", "mlp"),
    "CNN": ("suite_cpu_1thread", "cnn"),
    "LSTM": ("suite_cpu_1thread", "lstm"),
    "Transformer": ("suite_cpu_1thread", "transformer"),
    "DCGAN": ("suite_cpu_hfta", "dcgan"),
    "BERT": ("suite_cpu_hfta", "bert"),
    "ResNet-18": ("suite_cpu_hfta", "resnet18"),
    "PointNet, classification": ("suite_cpu_hfta", "pointnet_cls"),
    "MobileNetV3-Large": ("suite_cpu_hfta", "mobilenet_v3_large"),
    "PointNet, segmentation": ("suite_cpu_hfta", "pointnet_seg"),
}
"""The rows of README's table: of which file, and of which model in it."""


@pytest.mark.parametrize("shown", IN_README)
def test_the_readme_says_what_the_results_say(shown: str) -> None:
    name, model = IN_README[shown]
    lines = plot.read(performance_page.RESULTS / f"{name}.jsonl")
    rows = {r["mode"]: r["ratio_to_serial"]["cpu_median"] for r in lines if (r["model"], r["members"]) == (model, 8)}
    modes = ("compiled", "processes", "vmap", "jax")
    others = " | ".join(f"{rows[m]:.2f}" if m in rows else "-" for m in modes)
    assert f"| {shown} | {others} | **{rows['ours']:.2f}** |" in README.read_text(encoding="utf-8")


def test_the_readme_says_what_a_processor_without_avx512_gives() -> None:
    rows = {r["model"]: r for r in plot.read(performance_page.RESULTS / "suite_cpu_1thread_avx2.jsonl")
            if r["mode"] == "ours"}  # fmt: skip
    transformer, cnn = (rows[m]["ratio_to_serial"]["cpu_median"] for m in ("transformer", "cnn"))
    text = " ".join(README.read_text(encoding="utf-8").split())
    assert f"Without AVX-512 the Transformer has {transformer:.2f} and the CNN {cnn:.2f}" in text
