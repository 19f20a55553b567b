"""`import hfta_nb` is light: packages for notebooks, figures or tables are not imported."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import hfta_nb

HEAVY = [
    "IPython",
    "anywidget",
    "ipykernel",
    "ipywidgets",
    "jupyter_client",
    "jupyter_core",
    "jupyterlab",
    "matplotlib",
]
HEAVY += ["optuna", "pandas", "ray", "rich", "sklearn", "traitlets"]


@functools.cache
def imported_by(code: str) -> set[str]:
    """Top-level packages that a fresh interpreter has after some code."""
    tell = "import sys, json; print(json.dumps(sorted({m.partition('.')[0] for m in sys.modules})))"
    ran = subprocess.run([sys.executable, "-c", f"{code}\n{tell}"], capture_output=True, text=True, check=True)
    return set(json.loads(ran.stdout.splitlines()[-1]))


FACE = "import hfta_nb\nfor name in hfta_nb.__all__: getattr(hfta_nb, name)"
"""All of the public face, which is imported when it is used."""


@pytest.mark.parametrize("code", ["import hfta_nb", FACE], ids=["package", "face"])
def test_the_package_brings_no_jupyter_and_no_tables(code: str) -> None:
    found = imported_by(code)
    assert found & set(HEAVY) == set()
    assert not {name for name in found if name.startswith("jupyter")}


def test_the_face_is_torch_and_not_an_empty_shell() -> None:
    assert {"hfta_nb", "torch"} <= imported_by(FACE)


def test_the_face_leaves_torchs_compiler_alone() -> None:
    """Its front end takes a second to import; an optimizer of torch does it when it is made."""
    imported_by(f"{FACE}\nimport sys\nassert 'torch._dynamo' not in sys.modules")


def test_a_study_can_be_made_without_jupyter_installed() -> None:
    missing = ["IPython", "ipywidgets", "anywidget", "traitlets", "matplotlib"]
    block = f"import sys\nsys.modules |= dict.fromkeys({missing})\n"
    code = block + FACE + "\nassert len(hfta_nb.Study('mlp', {'lr': [1e-3, 1e-2]}, 'digits').variants) == 2"
    assert "torch" in imported_by(code)


@pytest.mark.long
def test_star_import_gives_the_public_face() -> None:
    code = "from hfta_nb import *\nassert callable(fuse) and callable(family) and callable(families) and Study"
    assert "hfta_nb" in imported_by(code)


def test_no_part_hides_a_public_function() -> None:
    parts = {path.stem for path in Path(hfta_nb.__file__).parent.iterdir() if path.suffix == ".py" or path.is_dir()}
    hidden = [name for name in hfta_nb.__all__ if name in parts and not isinstance(getattr(hfta_nb, name), ModuleType)]
    assert not hidden
