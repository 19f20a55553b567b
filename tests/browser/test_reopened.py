"""A notebook that is run, saved, and opened again with another kernel."""

from __future__ import annotations

import pytest
from playwright.sync_api import Locator, expect

from tests.polling import eventually

from .jupyter import Lab
from .notebook import Notebook
from .screen import Screen

pytestmark = [pytest.mark.browser, pytest.mark.long]

CELLS = [
    "from hfta_nb.ui import Workbench",
    'wb = Workbench("mlp", "digits", {"lr": [1e-3, 1e-2], "width": [8, 16]}, epochs=20)\nwb',
    'print("a long output\\n" * 60)',
    "wb.run()",
    'print("another one\\n" * 60)',
]

BROKEN = """
import torch
import hfta_nb as hfta

class Net(torch.nn.Module):
    def __init__(self, width=8, in_features=64, num_classes=10):
        super().__init__()
        self.first, self.last = torch.nn.Linear(in_features, width), torch.nn.Linear(8, num_classes)

    def forward(self, x):
        return self.last(self.first(x.flatten(1)))

@hfta.family
def forgetful(width: int = 8, in_features: int = 64, num_classes: int = 10):
    return Net(width, in_features, num_classes)

tried = Workbench(forgetful, "digits", {"width": [8, 16]}, epochs=1)
tried
"""


START_MS = 90_000  # a new kernel imports torch first

GONE = "widget model not found"
"""What JupyterLab writes on the console about a widget that was saved without its model."""


def in_view(part: Locator) -> bool:
    """Whether the top of an element is on the screen."""
    box = part.bounding_box()
    return box is not None and 0 <= box["y"] < 800


def test_run_all_shows_the_run_and_the_saved_notebook_the_way_back(notebook: Notebook, lab: Lab) -> None:
    notebook.open(lab.write("reopened/reopened.ipynb", CELLS))
    notebook.focus_mode()
    notebook.run_all()
    screen = Screen(notebook)
    assert screen.state == "finished"
    eventually(lambda: in_view(screen.section("Train")), "the page to scroll to the run")
    notebook.screenshot("reopened-after-run-all")
    eventually(lambda: "image/png" in str(notebook.cells()[1]["outputs"]), "the picture in the Workbench's cell")
    directory = str(screen.ask("wb.study.directory.name"))
    notebook.restart()
    expect(screen.root.locator(".hfta-gone button")).to_have_text("Reattach")
    screen.picture("reopened-kernel-restarted")
    notebook.save()

    notebook.open(notebook.path)
    notebook.focus_mode()
    outputs = notebook.output(1)
    expect(outputs.locator("img")).to_be_visible()
    expect(outputs.locator(".hfta-static")).to_contain_text(f"4 members, complete; saved in hfta_runs/{directory}")
    error = outputs.get_by_text("Error displaying widget")
    expect(error).to_have_count(1, timeout=30_000)
    expect(error).not_to_be_visible()
    notebook.page.locator(".jp-Notebook").evaluate("notebook => notebook.scrollTo(0, 0)")
    notebook.screenshot("reopened-saved")
    outputs.locator(".hfta-reattach").get_by_role("button", name="Reattach").click()
    notebook.page.locator(".hfta-workbench").wait_for(timeout=START_MS)
    back = Screen(notebook, "wb", 0)
    back.wait_state("finished")
    expect(back.board.locator("tbody tr")).to_have_count(4)
    assert back.ask("wb.study.directory.name") == directory
    eventually(lambda: in_view(back.section("Train")), "the page to scroll to the Workbench")
    notebook.screenshot("reopened-reattached")

    notebook.run_cell('again = Workbench("mlp", "digits", {"lr": [0.5]}, epochs=1)\nagain')
    again = Screen(notebook, "again", 1)
    expect(again.root.locator(".hfta-offer")).to_contain_text("There is a saved run of mlp on digits: 4 variants")
    again.picture("reopened-offered")
    again.button("Reattach").click()
    again.wait_state("finished")
    expect(again.board.locator("tbody tr")).to_have_count(4)
    expect(again.root.locator(".hfta-offer")).not_to_be_visible()

    notebook.run_cell(BROKEN)
    tried = Screen(notebook, "tried", 2)
    expect(tried.root.locator(".hfta-tried")).to_contain_text("cell In[", timeout=30_000)
    raised = tried.root.locator(".hfta-tried .hfta-source-raised")
    expect(raised).to_contain_text("return self.last(self.first(x.flatten(1)))")
    tried.picture("reopened-tried")
    assert [fault for fault in notebook.faults() if GONE not in fault] == []
