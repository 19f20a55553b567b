"""`import hfta_nb` is light: packages for notebooks, figures or tables are not imported."""

from __future__ import annotations

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


def imported_by(code: str) -> set[str]:
    """The modules that a fresh interpreter has after some code."""
    tell = "import sys, json; print(json.dumps(sorted(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", f"{code}\n{tell}"], capture_output=True, text=True, check=True)
    return set(json.loads(ran.stdout.splitlines()[-1]))


def jupyter_and_tables(found: set[str]) -> set[str]:
    """Those of the modules that are heavy."""
    packages = {name.partition(".")[0] for name in found}
    return packages & set(HEAVY) | {name for name in packages if name.startswith("jupyter")}


FACE = "import hfta_nb\nfor name in hfta_nb.__all__: getattr(hfta_nb, name)"
"""All of the public face, which is imported when it is used."""


def test_the_package_brings_no_jupyter_and_no_tables() -> None:
    assert jupyter_and_tables(imported_by("import hfta_nb")) == set()


def test_the_face_is_torch_without_its_compiler_and_without_jupyter_and_tables() -> None:
    """The front end of torch's compiler takes a second to import; an optimizer of torch does it when it is made."""
    found = imported_by(FACE)
    assert {"hfta_nb", "torch"} <= found
    assert "torch._dynamo" not in found
    assert jupyter_and_tables(found) == set()


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
