"""The linked figures alone in a Chromium: what is pressed is selected, and what is selected stands out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from front_end import DARK, open_page

from hfta_nb.study import analysis
from hfta_nb.ui.front_end import source
from tests.ui.test_linked_figure import AXES, study_of

from .test_leaderboard_module import MODEL

pytestmark = pytest.mark.browser

SELECTED = "model.get('selected')"
FAINT = "document.querySelectorAll('.hfta-parallel path[stroke-opacity=\"0.16\"]').length"
SETTLED = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done())))"


@pytest.fixture
def opened(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens pages with a linked figure; in the end none of them may have had an error."""
    pages = []

    def make(kind: str, **options: Any) -> Any:
        page = open_page(browser, **options)
        pages.append(page)
        shown = analysis.linked(study_of(AXES), kind, "lr", "act", "")
        css = source("style.css") + source("live_view.css")
        traits = {"data": shown, "selected": []}
        page.evaluate(MODEL, {"esm": source("linked_figure.js"), "css": css, "traits": traits})
        page.evaluate(SETTLED)
        return page

    yield make
    errors = [error for page in pages for error in page.errors]
    for page in pages:
        page.close()
    assert errors == []


def select(page: Any, ids: list[int]) -> None:
    page.evaluate("(ids) => model.set('selected', ids)", ids)
    page.evaluate(SETTLED)


def brush(page: Any, ruler: str, low: float, high: float) -> None:
    """Drag along a ruler, from one part of its height to another."""
    box = page.get_by_role("slider", name=ruler).locator("line").first.bounding_box()
    for place, then in ((low, page.mouse.down), (high, page.mouse.up)):
        page.mouse.move(box["x"], box["y"] + (1 - place) * box["height"], steps=3)
        then()
    page.evaluate(SETTLED)


def test_brushes_select_what_lies_in_all_of_them(opened: Callable[..., Any]) -> None:
    page = opened("parallel_coordinates")
    assert page.locator(".hfta-parallel path").count() == 6
    brush(page, "lr", 0.9, 1.05)
    assert sorted(page.evaluate(SELECTED)) == [8, 9, 10, 11]
    brush(page, "act", -0.02, 0.1)  # gelu
    assert sorted(page.evaluate(SELECTED)) == [10, 11]
    assert page.evaluate(FAINT) == 5
    assert page.locator(".hfta-brush[height='0']").count() == 1
    select(page, [0, 4])  # elsewhere
    assert page.evaluate(FAINT) == 4
    assert page.locator(".hfta-brush[height='0']").count() == 3
    ruler = page.get_by_role("slider", name="lr")
    ruler.focus()
    page.keyboard.press("ArrowDown")  # from the top
    page.evaluate(SETTLED)
    assert sorted(page.evaluate(SELECTED)) == [8, 9, 10, 11]
    assert ruler.get_attribute("aria-valuetext") == "from 80% to 100% of the axis"
    page.keyboard.press("Escape")
    assert page.evaluate(SELECTED) == []
    line = page.get_by_role("slider", name="lr").locator("line").first.bounding_box()
    page.mouse.move(line["x"] + 60, line["y"] + 1)
    assert "lr=0.1" in page.locator(".hfta-tip").inner_text()
    page.mouse.down()
    page.mouse.up()
    assert len(page.evaluate(SELECTED)) == 2


@pytest.mark.parametrize("kind", ["importances", "heat_map"])
def test_blocks_select_their_members(opened: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(analysis, "importance_shares", lambda study: {"lr": 0.8, "act": 0.2})  # Optuna takes seconds
    page = opened(kind, body=DARK)
    first, last = page.locator(".hfta-block").first, page.locator(".hfta-block").last
    for block in (first, last):
        block.click(modifiers=["Shift"])
        page.evaluate(SETTLED)
        assert block.get_attribute("aria-pressed") == "true"
        assert block.evaluate("block => block === document.activeElement")  # though it was drawn again
    both = page.evaluate(SELECTED)
    last.click(modifiers=["Shift"])
    assert 0 < len(page.evaluate(SELECTED)) < len(both)
    select(page, [])
    assert page.locator(".hfta-block[aria-pressed=true]").count() == 0


def test_a_mean_curve_selects_its_seeds(opened: Callable[..., Any]) -> None:
    page = opened("curves")
    page.get_by_role("button", name="lr=0.01, act=relu").click()
    assert page.evaluate(SELECTED) == [4, 5]
    plot = page.locator("canvas")
    plot.focus()
    page.keyboard.press("ArrowLeft")
    assert page.locator(".hfta-tip").inner_text().startswith("epoch 6")
    page.keyboard.press("ArrowLeft")
    assert page.locator(".hfta-tip").inner_text().startswith("epoch 5")
    page.keyboard.press("Enter")
    assert len(page.evaluate(SELECTED)) == 2
    assert "configurations, with the standard deviation over seeds" in plot.get_attribute("aria-label")
