"""Families, rules and trackers of another installed package, which its entry points name."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import hfta_nb as hfta
from hfta_nb.errors import StudyError
from tests.requirements_files import ROOT

MODULE = '''
import torch
from torch import nn
import hfta_nb as hfta


def wide(in_features: int, num_classes: int, width: int = 8) -> nn.Module:
    """A perceptron whose activation is a function of this package."""
    return nn.Sequential(nn.Flatten(), nn.Linear(in_features, width), Squared(), nn.Linear(width, num_classes))


class Lines(hfta.callbacks.Tracker):
    """Prints each member's last loss."""

    def __init__(self, mark: str = ">") -> None:
        super().__init__()
        self.mark = mark

    def begin(self, variant, run, name, parameters):
        self.name = name

    def log(self, variant, epoch, time_s, values):
        self.last = epoch, values["val_loss"]

    def end(self, variant, state):
        print(self.mark, variant, state, *self.last)


@torch.overrides.wrap_torch_function(lambda x: (x,))
def squared(x):
    return x * x


class Squared(nn.Module):
    def forward(self, x):
        return squared(x)


seen = []


def squared_of_members(context, function, args, kwargs):
    seen.append(function)
    return function(*args, **kwargs)


RULES = {squared: squared_of_members}
'''

ENTRY_POINTS = """
[hfta_nb.families]
wide = plug_in:wide
gone = plug_in:not_there

[hfta_nb.trackers]
lines = plug_in:Lines

[hfta_nb.rules]
squared = plug_in:RULES
"""


@pytest.fixture
def plug_in(tmp_path: Path) -> Path:
    """A folder with an installed package that has entry points, as pip leaves it."""
    site = tmp_path / "site"
    info = site / "plug_in-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "plug_in.py").write_text(MODULE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plug-in\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    return site


def run(site: Path, code: str, folder: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), str(ROOT)])}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_a_package_adds_a_family_a_rule_and_a_tracker(plug_in: Path, tmp_path: Path) -> None:
    out = run(
        plug_in,
        """
        import hfta_nb as hfta
        study = hfta.Study("wide", {"lr": [1e-2, 1e-3]}, "digits", epochs=1)
        study.fit(on_event="lines", progress=False)
        import plug_in
        print("rule", len(plug_in.seen) > 0, study.family.name, "wide" in hfta.families(), "gone" in hfta.families())
        """,
        tmp_path,
    )
    assert "> 0 COMPLETE 1 " in out
    assert "> 1 COMPLETE 1 " in out
    assert "rule True wide True False" in out
    assert "ExtensionWarning: gone of plug-in is left out: plug_in:not_there can't be imported (AttributeError" in out


def test_an_unknown_tracker_names_those_there_are(tmp_path: Path) -> None:
    study = hfta.Study("mlp", {"lr": [1e-3]}, "digits", epochs=1, directory=tmp_path)
    with pytest.raises(StudyError, match="on_event: unknown tracker; got 'tensorbord'; accepted: tensorboard, mlflow"):
        study.fit(on_event=["tensorbord"], progress=False)
