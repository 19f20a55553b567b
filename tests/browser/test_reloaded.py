"""The page is reloaded, or the kernel restarted, while a run goes on."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from .jupyter import Lab
from .notebook import Notebook
from .screen import Screen
from .test_workbench import shown

pytestmark = pytest.mark.browser

LASTING = 'Workbench("mlp", "digits", {"lr": [1e-3, 1e-2], "width": [8, 16]}, epochs=100_000)'
RUN = LASTING.replace(")", ", detach=False)")
LOST = "Cannot handle comm_msg"
"""What the kernel logs of a message of a widget to a subshell that is gone."""


def reload_during_a_run(notebook: Notebook, lab: Lab, times: int, cell: str = "") -> Screen:
    """Reload the page so many times; each time the Workbench shows all curves and rows, and its buttons work.

    Args:
        cell: begins the run, instead of the button.
    """
    (screen,) = shown(notebook, lab, "reloaded/reloaded.ipynb", RUN)
    if cell:
        notebook.start_cell(cell)
        screen.wait_state("running")
    else:
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
    return screen


def test_reloaded_page_shows_all_curves_of_the_run_for_which_a_cell_waits(notebook: Notebook, lab: Lab) -> None:
    screen = reload_during_a_run(notebook, lab, times=1, cell="wb.run()\nended = wb.state")
    screen.button("Stop").click()
    screen.wait_state("stopped")
    assert notebook.kernel("ended") == "stopped"  # after the cell


@pytest.mark.long
def test_page_may_be_reloaded_again_and_again(notebook: Notebook, lab: Lab) -> None:
    reload_during_a_run(notebook, lab, times=10)


@pytest.mark.long
def test_a_run_goes_on_when_its_kernel_restarts_and_is_steered_again(notebook: Notebook, lab: Lab) -> None:
    (screen,) = shown(notebook, lab, "restarted/restarted.ipynb", LASTING)
    screen.train()
    directory = str(screen.ask("str(wb.study.directory)"))
    epoch = int(str(screen.ask("wb.history.members[0].epoch")))
    notebook.restart()
    screen.picture("reloaded-kernel-restarted")
    screen.root.locator(".hfta-gone button").click()
    notebook.page.locator(".hfta-workbench").nth(1).wait_for(timeout=90_000)
    back = Screen(notebook, "wb", 1)  # below the one that is disconnected
    back.wait_state("running")
    assert str(back.ask("str(wb.study.directory)")) == directory
    assert int(str(back.ask("wb.history.members[0].epoch"))) > epoch
    expect(back.curves).to_have_attribute("aria-label", re.compile("for 4 members"))
    expect(back.board.locator("tbody tr")).to_have_count(4)
    notebook.screenshot("reloaded-reattached")
    notebook.run_cell(f"again = {LASTING}\nagain")
    again = Screen(notebook, "again", 2)
    offer = "There is a run in progress of mlp on digits: 4 variants"
    expect(again.root.locator(".hfta-offer")).to_contain_text(offer, timeout=30_000)
    again.picture("reloaded-offered")
    again.section("Runs").locator(".hfta-fold").first.click()
    again.button(f"Reattach {Path(directory).name}").click()
    again.wait_state("running")
    expect(again.curves).to_have_attribute("aria-label", re.compile("for 4 members"))
    back.button("Stop").click()
    back.wait_state("stopped")
    again.wait_state("stopped")
    notebook.screenshot("reloaded-stopped")
