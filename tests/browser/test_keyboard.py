"""A whole sweep by the keyboard alone: fields, Train, a row, its tools, Stop, and a member taken home."""

from __future__ import annotations

import pytest
from playwright.sync_api import Locator, expect

from tests.polling import eventually

from .jupyter import Lab
from .notebook import Notebook
from .screen import RUN_S, Screen
from .test_workbench import shown

pytestmark = [pytest.mark.browser, pytest.mark.long]  # the quickstart presses Train by keys as well


def reach(screen: Screen, control: Locator, key: str = "Tab") -> None:
    """Move the focus by Tab until it is on a control; it must get there."""
    control.wait_for()
    for _ in range(80):
        if control.evaluate("control => control === document.activeElement"):
            return
        screen.notebook.page.keyboard.press(key)
    raise AssertionError(f"{key} never reaches {control}")


def test_a_sweep_from_typing_to_taking_home(notebook: Notebook, lab: Lab) -> None:
    (screen,) = shown(notebook, lab, "keys/keys.ipynb", 'Workbench("mlp", "digits", {"lr": [1e-3]}, epochs=2000)')
    press = notebook.page.keyboard.press

    def focus_in(part: str) -> bool:
        return bool(notebook.page.evaluate("part => !!document.activeElement.closest(part)", part))

    reach(screen, screen.field("values of lr"))
    press("Control+A")
    notebook.page.keyboard.type("0.001, 0.003, 0.01")
    expect(screen.plan).to_contain_text("3 variants")
    screen.expect_accessible()

    reach(screen, screen.button("Train"))
    press("Enter")
    screen.wait_state("running")
    expect(screen.button("Pause")).to_be_focused()  # Train is off now, and Define has folded
    press(" ")
    screen.wait_state("paused")
    expect(screen.button("Resume")).to_be_focused()
    press(" ")
    screen.wait_state("running")

    reach(screen, screen.board.locator("tr[tabindex='0']"))
    press("ArrowDown")
    press(" ")
    chosen = screen.board.locator("tr[aria-selected='true']")
    expect(chosen).to_be_focused()
    reach(screen, screen.root.locator(".hfta-row-tools").get_by_role("button", name="stop", exact=True))
    press("Enter")
    expect(chosen).to_have_attribute("data-state", "STOPPED", timeout=RUN_S * 1000)
    eventually(lambda: focus_in(".hfta-leaderboard"), "focus in the table")
    reach(screen, screen.button("Stop"), "Shift+Tab")
    press("Enter")
    screen.wait_state("stopped")
    eventually(lambda: focus_in(".hfta-train-row"), "focus on what can be pressed after the run")
    screen.expect_accessible()
    assert len(notebook.cells()) == 2, "keys pressed in the Workbench reached the notebook"

    reach(screen, screen.root.locator(".hfta-row-tools").get_by_role("button", name="take", exact=False).first)
    press("Enter")
    eventually(lambda: screen.ask("wb.taken is not None"), "the member to be taken home")
    assert notebook.faults() == []
