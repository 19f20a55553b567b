"""Cross-validation in the Workbench: typed as a number, averaged in the leaderboard, an ensemble of the members."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.polling import eventually

from .jupyter import Lab
from .notebook import Notebook
from .screen import RUN_S, Screen

pytestmark = [pytest.mark.browser, pytest.mark.long]


def test_folds_are_typed_averaged_and_an_ensemble_is_drawn(notebook: Notebook, lab: Lab) -> None:
    made = 'wb = Workbench("mlp", "digits", {"lr": [3e-3, 1e-2]}, epochs=4)\nwb'
    notebook.open(lab.write("folds/folds.ipynb", ["from hfta_nb.ui import Workbench", made]))
    notebook.focus_mode()
    notebook.run_all()
    screen = Screen(notebook)
    screen.type("folds", "3")
    expect(screen.plan).to_contain_text("6 variants")
    screen.train()
    screen.wait_state("finished")
    screen.unfold("Results")
    means = screen.column("folds")
    assert len(means) == 6
    assert len(set(means)) == 2
    assert all(" ± " in mean for mean in means)
    screen.field("figure").select_option("ensemble of the members")
    image = screen.root.locator(".hfta-figures img")
    expect(image).to_be_visible(timeout=1000 * RUN_S)
    eventually(lambda: image.evaluate("i => i.complete && i.naturalWidth > 600"), "the figure")
    screen.picture("workbench-folds-light")
    assert notebook.faults() == []
