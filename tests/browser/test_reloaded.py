"""The page is reloaded while a run goes on."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from .jupyter import Lab
from .notebook import Notebook
from .screen import Screen
from .test_workbench import shown

pytestmark = pytest.mark.browser

RUN = 'Workbench("mlp", "digits", {"lr": [1e-3, 1e-2], "width": [8, 16]}, epochs=100_000, detach=False)'
LOST = "Cannot handle comm_msg"
"""What the kernel logs of a message of a widget to a subshell that is gone."""


def reload_during_a_run(notebook: Notebook, lab: Lab, times: int) -> None:
    """Reload the page so many times; each time the Workbench shows all curves and rows, and its buttons work."""
    (screen,) = shown(notebook, lab, "reloaded/reloaded.ipynb", RUN)
    screen.train()
    notebook.save()
    for _ in range(times):
        notebook.open(notebook.path)
        screen = Screen(notebook)
        expect(screen.curves).to_have_attribute("aria-label", re.compile("for 4 members"))
        expect(screen.board.locator("tbody tr")).to_have_count(4)
    screen.button("Pause").click()
    screen.wait_state("paused")
    assert LOST not in lab.log_path.read_text(errors="replace")
    notebook.screenshot("reloaded")


def test_reloaded_page_shows_all_curves_of_the_run_that_goes_on(notebook: Notebook, lab: Lab) -> None:
    reload_during_a_run(notebook, lab, times=1)


@pytest.mark.long
def test_page_may_be_reloaded_again_and_again(notebook: Notebook, lab: Lab) -> None:
    reload_during_a_run(notebook, lab, times=10)
