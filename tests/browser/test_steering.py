"""Members are steered by clicks on the tools of their rows, while they train in a worker."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Locator, expect

from tests.polling import eventually

from .jupyter import Lab
from .notebook import Notebook
from .screen import RUN_S, Screen
from .test_workbench import shown

pytestmark = [pytest.mark.browser, pytest.mark.long]  # its twin without a browser: tests/ui/test_steer.py

RUN = 'Workbench("mlp", "digits", {"lr": [1e-3, 3e-3, 1e-2]}, epochs=2000)'


def steer(screen: Screen) -> Locator:
    return screen.root.locator(".hfta-row-tools")


def press(screen: Screen, name: str) -> None:
    steer(screen).get_by_role("button", name=name, exact=True).click()


def cell(screen: Screen, member: int, key: str) -> Locator:
    return screen.row(member).locator(f"td[data-key='{key}']")


def expect_state(screen: Screen, member: int, *states: str) -> None:
    expect(cell(screen, member, "state")).to_have_text(re.compile(f"^({'|'.join(states)})"), timeout=RUN_S * 1000)


def test_members_are_paused_resumed_changed_cloned_and_stopped_by_clicks(notebook: Notebook, lab: Lab) -> None:
    (screen,) = shown(notebook, lab, "steered/steered.ipynb", RUN)
    expect(steer(screen)).to_be_hidden()
    screen.train()
    expect(steer(screen)).to_be_hidden()

    screen.row(1).click()
    expect(steer(screen)).to_contain_text("#1")
    press(screen, "pause")
    expect_state(screen, 1, "PAUSED")
    expect(steer(screen).get_by_role("button", name="pause", exact=True)).to_be_disabled()
    screen.picture("steering-paused-light")
    press(screen, "resume")
    expect_state(screen, 1, "WAITING", "RUNNING")

    screen.row(2).click()
    values = screen.field("values")
    values.fill("lr")
    press(screen, "set")
    expect(screen.root.locator(".hfta-results-tools .hfta-note")).to_contain_text("lr=3e-4")
    screen.picture("steering-wrong-light")
    values.fill("lr=2e-3")
    press(screen, "clone with weights")
    expect_state(screen, 3, "RUNNING")
    expect(cell(screen, 3, "axis:lr")).to_have_text(re.compile("0.002|2e-0?3"))
    assert screen.ask("[e.parent for e in wb.history.edits]") == [2]

    expect(cell(screen, 3, "from")).to_have_text(re.compile("#2 at ep"))

    values.fill("lr=5e-3")
    press(screen, "set")
    expect(cell(screen, 2, "axis:lr")).to_have_text(re.compile("0.005|5e-0?3"), timeout=RUN_S * 1000)
    expect(cell(screen, 2, "changed")).to_have_text(re.compile("lr 0.01 \N{RIGHTWARDS ARROW} 0.005 at ep"))

    chip = screen.root.locator(".hfta-legend [data-member='2']")
    expect(chip).to_contain_text("lr=0.005")
    expect(screen.status).to_have_text("training 4 variants")
    # The member that was paused is in the array of the others again.
    expect(screen.section("Plan")).to_contain_text("4 variants in 1 array of 4", timeout=RUN_S * 1000)

    screen.row(3).click(modifiers=["Shift"])
    expect(steer(screen)).to_contain_text("#2, #3")
    for dark in (True, False):
        notebook.theme(dark)
        screen.picture(f"steering-two-{'dark' if dark else 'light'}")
    press(screen, "stop")
    expect_state(screen, 2, "STOPPED")
    expect_state(screen, 3, "STOPPED")
    expect_state(screen, 0, "RUNNING")
    expect(screen.root.locator(".hfta-results-tools .hfta-note")).to_contain_text("asked: stop #2, #3")
    notebook.viewport(900)
    screen.expect_fits()
    screen.picture("steering-narrow-light")
    screen.button("Stop").click()
    screen.wait_state("stopped")
    expect(steer(screen).get_by_role("button", name="stop", exact=True)).to_be_hidden()
    add_and_delete(screen)
    assert notebook.faults() == []


def add_and_delete(screen: Screen) -> None:
    """An edited grid is added to the run, and the member that came by it is deleted, which asks first."""
    screen.train()
    screen.unfold("Define")
    screen.type("values of lr", "1e-3, 3e-3, 1e-2, 1e-1")
    head = screen.section("Define").locator(".hfta-section-head").first
    expect(head).to_contain_text("changed since this run: lr")
    head.get_by_role("button", name="add to this run").click()
    expect(screen.row(3)).to_have_count(1, timeout=RUN_S * 1000)
    expect(head).not_to_contain_text("changed since this run")
    screen.row(3).click()
    press(screen, "delete")
    question = steer(screen).get_by_role("alert")
    expect(question).to_contain_text("Delete #3?")
    question.get_by_role("button", name="delete").click()
    expect(screen.row(3)).to_have_count(0, timeout=RUN_S * 1000)
    eventually(lambda: screen.ask("list(wb.live.selected)") == [], "nobody to be selected")
    screen.button("Stop").click()
    screen.wait_state("stopped")
