"""A search is set up on an empty Workbench by its controls, trains in a worker, and its trials end."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.polling import eventually

from .jupyter import Lab
from .notebook import Notebook
from .screen import RUN_S, Screen
from .test_workbench import shown

pytestmark = pytest.mark.browser


def set_up(screen: Screen) -> None:
    """Six trials of an interval of learning rates, two at a time, pruned at rungs."""
    screen.field("family").select_option("mlp")
    eventually(lambda: screen.ask("wb.family.name") == "mlp", "the axes of the family")
    expect(screen.field("trials")).to_be_hidden()
    screen.field("kind of lr").select_option("log interval")
    expect(screen.field("trials")).to_have_value("20")
    error = screen.axis("lr").locator(".hfta-error [role=alert]")
    for text, said in [
        ("0 to 1", "no logarithmic interval"),
        ("1e-1 to 1e-4", "not in order"),
        ("1e-3", "a first and"),
    ]:
        screen.type("values of lr", text)
        expect(error).to_contain_text(said)
        expect(screen.button("Train")).to_be_disabled()
    screen.type("values of lr", "1e-4 to 1e-1")
    expect(error).to_be_hidden()
    for label, text in [("epochs", "4"), ("trials", "6"), ("slots", "2")]:
        screen.type(label, text)
    screen.field("pruner").select_option("asha")
    wanted = "6 trials of lr 0.0001 to 0.1 (log), 2 at a time, proposed by tpe, pruned by asha after epochs 1 and 3."
    expect(screen.root.locator(".hfta-plan-search")).to_contain_text(wanted)
    expect(screen.status).to_contain_text("ready to train 6 trials")


@pytest.mark.long
def test_a_search_is_set_up_and_its_trials_end(notebook: Notebook, lab: Lab) -> None:
    (screen,) = shown(notebook, lab, "searched/searched.ipynb", "Workbench()")
    set_up(screen)
    screen.picture("search-planned-light")
    screen.train()
    train = screen.section("Train")
    expect(train).to_contain_text(re.compile(r"trials: .*to come"), timeout=RUN_S * 1000)
    screen.picture("search-running-light")
    screen.wait_state("finished")
    expect(train).to_contain_text("6 of 6 trials")
    expect(screen.board.locator("tbody tr")).to_have_count(6)
    assert "PRUNED" in screen.column("state")
    screen.field("figure").select_option("best so far")
    expect(screen.root.locator(".hfta-figures img")).to_be_visible()
    screen.expect_accessible()
    screen.picture("search-finished-light")
    screen.field("figure").select_option("parallel coordinates")
    linked = screen.root.locator(".hfta-linked")
    expect(linked.locator("path")).to_have_count(6)
    linked.locator(".hfta-ruler").first.focus()
    for _ in range(10):
        screen.notebook.page.keyboard.press("Shift+ArrowUp")  # all of the axis
    expect(screen.board.locator("tr[aria-selected=true]")).to_have_count(6)
    expect(screen.root.locator(".hfta-figures img")).to_be_hidden()
    screen.picture("search-parallel-light")
