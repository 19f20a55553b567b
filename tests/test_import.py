"""`import hfta_nb` and runs are light: what they don't use is not imported."""

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
HEAVY += ["optuna", "pandas", "ray", "rich", "scipy", "sklearn", "traitlets"]
HEAVY += ["torch._dynamo", "torch._inductor", "torch.fx.experimental.symbolic_shapes", "sympy"]  # torch's compiler


def imported_by(code: str) -> set[str]:
    """Modules that a fresh interpreter has after some code."""
    tell = "import sys, json; print(json.dumps(sorted(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", f"{code}\n{tell}"], capture_output=True, text=True, check=True)
    return set(json.loads(ran.stdout.splitlines()[-1]))


def jupyter_and_tables(found: set[str]) -> set[str]:
    """Those of the modules that are heavy."""
    packages = {name.partition(".")[0] for name in found}
    return packages & set(HEAVY) | {name for name in packages if name.startswith("jupyter")}


FACE = "import hfta_nb\nfor name in hfta_nb.__all__: getattr(hfta_nb, name)"
"""All of the public face, which is imported when it is used."""

RUNS = """
import os, tempfile, torch, hfta_nb

os.chdir(tempfile.mkdtemp())
lm = {"width": [8], "heads": [2], "depth": [1]}

def own(size: int) -> torch.nn.Module:
    made = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, size), torch.nn.Linear(size, 10))
    made.register_buffer("order", torch.arange(size))
    return made

def ran(family, grid, data, **how):
    study = hfta_nb.Study(family, {"lr": [1e-3, 1e-2], **grid}, data, epochs=1, **how)
    *_, last = study.run()
    assert last.state == "COMPLETE", last

ran("mlp", {"width": [8]}, "digits")
ran("mlp", {"width": [8, 16]}, "iris", serial=True)
ran("cnn", {"width": [4], "lr_scheduler": ["step"]}, "digits", steps_per_epoch=4)
ran("transformer_lm", lm, "english", steps_per_epoch=4, batch_size=8)
ran(own, {"size": [8]}, "digits", steps_per_epoch=4, optimizer="lbfgs")
"""
"""Studies from their definition to the last checkpoint."""


@pytest.mark.parametrize("code", ["import hfta_nb", FACE, RUNS], ids=["package", "face", "runs"])
def test_what_is_not_used_is_not_imported(code: str) -> None:
    found = imported_by(code)
    assert found & set(HEAVY) == set()
    assert not {name for name in found if name.startswith("jupyter")}


def test_the_face_is_torch_and_not_an_empty_shell() -> None:
    assert {"hfta_nb", "torch"} <= imported_by(FACE)


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
