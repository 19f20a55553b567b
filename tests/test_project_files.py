"""Files that other programs read (citation, hosted docs, workflows, conda) agree with the package and one another."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.specifiers import SpecifierSet

import hfta_nb
from tests.requirements_files import CONDA_NAMES, ROOT, project, required

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def read(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


def commands(workflow: Path) -> list[str]:
    jobs = yaml.safe_load(workflow.read_text(encoding="utf-8"))["jobs"].values()
    return [step["run"] for job in jobs for step in job["steps"] if "run" in step]


def test_the_citation_names_this_version_and_both_papers() -> None:
    found = read("CITATION.cff")
    assert found["version"] == hfta_nb.__version__
    assert [paper["conference"]["name"] for paper in found["references"]] == ["MLSys 2021", "MLSys 2020"]


def test_the_conda_recipe_asks_for_what_the_package_asks_for() -> None:
    recipe = read(".ci/conda/recipe.yaml")
    assert recipe["package"]["version"] == hfta_nb.__version__
    run = dict(line.split(" ") for line in recipe["requirements"]["run"])
    expected = {CONDA_NAMES.get(name, name): str(r.specifier) for name, r in required().items()}
    assert {name: SpecifierSet(text) for name, text in run.items()} == {
        name: SpecifierSet(text) for name, text in {**expected, "python": project()["requires-python"]}.items()
    }


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_call_what_is_there(workflow: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    lines = commands(workflow)
    assert lines
    for line in lines:
        words = shlex.split(line)
        if words[0] == "make":
            assert re.search(rf"^{words[1]}:", makefile, re.MULTILINE)


def test_workflows_run_the_oldest_and_the_newest_python() -> None:
    jobs = read(".github/workflows/test.yml")["jobs"]
    allowed = SpecifierSet(project()["requires-python"])
    for name in ("make", "wheel"):
        pythons = jobs[name]["strategy"]["matrix"]["python"]
        assert all(allowed.contains(python) for python in pythons)
        named = [c.rpartition(" ")[2] for c in project()["classifiers"] if re.search(r":: 3\.\d+$", c)]
        assert {named[0], named[-1]} == set(pythons)


def test_the_hosted_docs_install_the_locks_and_build_the_site() -> None:
    jobs = read(".readthedocs.yaml")["build"]["jobs"]
    for name in re.findall(r"--requirement (\S+)", " ".join(jobs["install"])):
        assert (ROOT / name).is_file()
    assert jobs["build"]["html"][0] == "python -m docs._site build/site"


def test_the_devcontainer_makes_the_environment() -> None:
    found = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text(encoding="utf-8"))
    assert found["postCreateCommand"] == "make venv"
