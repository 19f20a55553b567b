"""The stored notebooks: executed, linked, without machine paths, each sweep with its figures."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[1] / "notebooks"
NOTEBOOKS = sorted(path.name for path in FOLDER.glob("*.ipynb"))
SWEEPS = [name for name in NOTEBOOKS if name != "10_own_training_loop.ipynb"]


def cells(name: str) -> list[dict[str, Any]]:
    return list(json.loads((FOLDER / name).read_text(encoding="utf-8"))["cells"])


def source(name: str) -> str:
    return "\n".join("".join(cell["source"]) for cell in cells(name))


def pictures(cell: dict[str, Any]) -> list[str]:
    return [output["data"]["image/png"] for output in cell["outputs"] if "image/png" in output.get("data", {})]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_stored_as_one_run_without_errors(name: str) -> None:
    code = [cell for cell in cells(name) if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert [o for cell in code for o in cell["outputs"] if o["output_type"] == "error"] == []


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_outputs_tell_nothing_of_the_machine_s_folders(name: str) -> None:
    outputs = [[{**o, "data": {k: v for k, v in o.get("data", {}).items() if k != "image/png"}} for o in c["outputs"]]
               for c in cells(name) if c["cell_type"] == "code"]  # fmt: skip
    assert re.findall(r"/(?:tmp|home|root|work|var|Users)/\S*", json.dumps(outputs)) == []


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_links_lead_somewhere_and_each_notebook_to_the_next(name: str) -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", source(name))
    assert [link for link in links if not (FOLDER / link).exists()] == []
    following = NOTEBOOKS[NOTEBOOKS.index(name) + 1 :]
    assert following[:1] == links[-1:] or not following


@pytest.mark.parametrize("name", SWEEPS)
def test_a_sweep_ends_with_one_figure_of_fused_against_one_after_another(name: str) -> None:
    drawn = [cell for cell in cells(name) if "figures.speedup(" in "".join(cell["source"])]
    assert len(drawn) == 1
    assert len(pictures(drawn[0])) == 1
    assert "nbval-ignore-output" in drawn[0]["metadata"]["tags"]


@pytest.mark.parametrize("name", SWEEPS)
def test_seeds_have_bands_and_two_numeric_axes_a_heat_map(name: str) -> None:
    text = source(name)
    if '"seed":' in text:
        assert 'over="seed"' in text
    numeric = re.search(r'"(?:width|batch_size|depth|generator_width)": \[.*"lr": \[|"lr": \[.*"width": \[', text)
    assert ("figures.heat_map(" in text) == (numeric is not None)


@pytest.mark.parametrize("name", SWEEPS)
def test_a_model_with_figures_of_a_gpu_shows_them(name: str) -> None:
    page = (FOLDER.parent / "docs" / "performance.md").read_text(encoding="utf-8")
    gpu = page.split("## A GPU\n")[1].split("\n## ")[0].splitlines()
    measured = {line for line in gpu if re.match(r"\| \w+ \| \d+ \| bf16 \| [\d.]+ \|", line)}
    text = source(name)
    assert {line for line in text.splitlines() if line.startswith("| ") and "| bf16 |" in line} <= measured
    family = re.search(r'Workbench\("(\w+)"', text)
    model = family[1].removesuffix("_lm") if family else ""
    assert {line for line in measured if line.startswith(f"| {model} |") and line not in text} == set()
