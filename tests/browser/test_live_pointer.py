"""Pointer and keyboard input in the live view, alone in a Chromium."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest
from run_events import epoch_done, learning, run_started, whole_run

from hfta_nb import events as ev
from hfta_nb.figures import colors

from .live_page import FEW, MANY, Open, count, flat, flat_run, hover, picture, place, settle, zoom_in

UNDER_POINTER = """
([x, y]) => {
  const box = document.querySelector(".hfta-tip").getBoundingClientRect();
  return box.left <= x && x <= box.right && box.top <= y && y <= box.bottom;
}
"""
pytestmark = pytest.mark.browser


def test_hover_lists_the_value_of_every_member(opened: Open) -> None:
    front = opened(flat_run())
    text = hover(front, 0.5, 0.9)
    assert re.search(r"epoch [56] · step \d+ · 0:1\d", text)
    epoch = int(re.search(r"epoch (\d+)", text)[1])  # type: ignore[index]
    for member in range(4):
        loss = flat(epoch, member)
        assert f"{float(f'{loss:.4g}'):g}" in text
        assert f"{float(f'{0.8 * loss:.4g}'):g}" in text
    assert front.page.locator(".hfta-tip tr.hfta-near").inner_text().startswith("\t#0 lr=0.001, width=8")
    assert "#3 lr=0.01, width=16" in hover(front, 0.5, 0.1)
    front.page.mouse.move(2, 2)
    settle(front)
    assert front.page.locator(".hfta-tip").is_hidden()


def test_epochs_without_validation_have_no_value_there(opened: Open) -> None:
    def epoch(number: int) -> ev.EpochDone:
        whole = epoch_done(number, 4, learning)
        kept = {n: v for n, v in whole.metrics.items() if n.startswith("train") or number % 4 == 0}
        return dataclasses.replace(whole, metrics=kept)

    front = opened([run_started(FEW), *(epoch(e) for e in range(1, 21))])
    assert count(front, colors.member(2).light) > 50
    texts = [hover(front, x / 20, y) for x in range(6, 15) for y in (0.3, 0.6, 0.9, 0.97)]
    lacking: dict[bool, set[bool]] = {True: set(), False: set()}
    for text in filter(None, texts):
        number = int(re.search(r"epoch (\d+) ", text)[1])  # type: ignore[index]
        lacking[number % 4 == 0].add("–" in text)
    assert lacking == {True: {False}, False: {True}}
    front.page.locator("canvas[data-panel=curves]").focus()
    seen = []
    for _ in range(3):
        front.page.keyboard.press("ArrowLeft")
        settle(front)
        seen.append(str(front.page.locator(".hfta-tip").inner_text()).split(" ")[1])
    assert seen == ["20", "16", "12"]  # the keys go along validation


def test_hover_among_many_lists_those_around_the_nearest(opened: Open) -> None:
    front = opened(flat_run(axes={"seed": list(range(40))}), traits={"split": "validation"})
    text = hover(front, 0.5, 0.5)
    rows = front.page.locator(".hfta-tip tbody tr").count()
    assert rows == 7 + 2
    assert re.search(r"\d+ more above", text)
    assert re.search(r"\d+ more below", text)


def test_hover_over_the_device_lists_its_measurements(opened: Open) -> None:
    front = opened(whole_run(FEW))
    text = hover(front, 0.9, 0.5, "device")
    for part in ("SM active", "memory in all", "139 GiB", "power", "W", "41 GiB"):
        assert part in text


def test_click_selects_and_shift_adds(opened: Open) -> None:
    front = opened(flat_run(), traits={"split": "validation"})
    values = [flat(5, m) for m in range(4)]
    low, high = min(values), max(values)

    def click(member: int, **keys: Any) -> list[int]:
        y = 1 - (values[member] - low + 0.04 * (high - low)) / (1.08 * (high - low))
        front.page.mouse.move(*place(front, 0.5, y))
        for key in keys.get("keys", ()):
            front.page.keyboard.down(key)
        front.page.mouse.down()
        front.page.mouse.up()
        for key in keys.get("keys", ()):
            front.page.keyboard.up(key)
        settle(front)
        return list(front.page.evaluate("model.saved.at(-1)?.selected ?? null"))

    assert click(2) == [2]
    assert click(0, keys=["Shift"]) == [2, 0]
    assert click(2, keys=["Control"]) == [0]
    assert front.page.locator(".hfta-chip[aria-pressed=true]").all_inner_texts() == ["#0 lr=0.001, width=8"]
    assert "selected: #0 lr=0.001, width=8" in front.page.locator("[aria-live]").inner_text()
    assert click(0) == []


def test_selection_from_the_kernel_is_shown(opened: Open) -> None:
    front = opened(flat_run())
    before = picture(front)
    front.view.selected = [1, 3]
    settle(front)
    assert front.page.locator(".hfta-chip[aria-pressed=true]").count() == 2
    assert picture(front) != before


def test_wheel_zooms_drag_pans_and_double_click_resets(opened: Open) -> None:
    front = opened(whole_run(FEW))
    whole = picture(front)
    reset = front.page.get_by_role("button", name="reset zoom")
    assert reset.is_hidden()
    zoom_in(front)
    zoomed = picture(front)
    assert zoomed != whole
    front.page.mouse.down()
    front.page.mouse.move(*place(front, 0.7, 0.4), steps=4)
    front.page.mouse.up()
    settle(front)
    assert picture(front) != zoomed
    assert front.page.evaluate("model.get('selected')") == []  # a drag is no click
    front.page.mouse.dblclick(*place(front, 0.1, 0.1))
    front.set(selected=[])
    front.page.mouse.move(2, 2)
    settle(front)
    assert picture(front) == whole
    assert reset.is_hidden()


def test_zooming_out_ends_at_all_of_the_data_and_then_scrolls_the_page(opened: Open) -> None:
    front = opened(whole_run(FEW))
    whole, reset = picture(front), front.page.get_by_role("button", name="reset zoom")
    zoom_in(front)
    for _ in range(12):
        front.page.mouse.wheel(0, 300)
    reset.wait_for(state="hidden")
    front.page.mouse.move(2, 2)
    settle(front)
    assert picture(front) == whole
    front.page.evaluate("document.body.style.minHeight = '4000px'")
    front.page.mouse.move(*place(front, 0.5, 0.5))
    front.page.mouse.wheel(0, 300)
    front.page.wait_for_function("window.scrollY > 0")
    assert reset.is_hidden()


def test_both_plots_share_the_time_axis(opened: Open) -> None:
    front = opened(whole_run(FEW), traits={"x_axis": "time"})
    before = picture(front, "device")
    zoom_in(front)
    front.page.mouse.move(2, 2)
    settle(front)
    assert picture(front, "device") != before


def test_legend_lifts_by_pointer_and_keyboard_and_keeps_the_focus(opened: Open) -> None:
    front = opened(flat_run())
    plain = picture(front)
    chip = front.page.locator(".hfta-chip").nth(1)
    chip.hover()
    settle(front)
    lifted = picture(front)
    assert lifted != plain
    front.page.mouse.move(2, 2)
    chip.focus()
    settle(front)
    assert picture(front) == lifted
    front.page.keyboard.press("Enter")
    settle(front)
    assert front.page.evaluate("model.get('selected')") == [1]
    assert front.page.evaluate("document.activeElement.dataset.member") == "1"
    front.show([epoch_done(11, 4, flat)])
    assert front.page.evaluate("document.activeElement.dataset.member") == "1"


def test_keyboard_walks_from_point_to_point(opened: Open) -> None:
    front = opened(flat_run(), traits={"split": "validation"})
    front.page.locator("canvas[data-panel=curves]").focus()

    def press(key: str) -> str:
        front.page.keyboard.press(key)
        settle(front)
        return str(front.page.locator(".hfta-tip").inner_text())

    assert press("ArrowLeft").startswith("epoch 10")
    assert press("ArrowLeft").startswith("epoch 9")
    press("ArrowUp")
    assert "#1 " in front.page.locator(".hfta-tip tr.hfta-near").inner_text()
    front.page.keyboard.press("Enter")
    settle(front)
    assert front.page.evaluate("model.get('selected')") == [1]
    before = picture(front)
    front.page.keyboard.press("+")
    settle(front)
    assert picture(front) != before


def test_tooltip_stays_within_the_view_and_never_under_the_pointer(opened: Open) -> None:
    front = opened(whole_run(MANY), width=900)
    for x in (0.02, 0.5, 0.98):
        hover(front, x, 0.5)
        assert front.page.evaluate(UNDER_POINTER, list(place(front, x, 0.5))) is False
        tip, view = (front.page.locator(s).bounding_box() for s in (".hfta-tip", ".hfta-live"))
        assert tip["x"] >= view["x"]
        assert tip["x"] + tip["width"] <= view["x"] + view["width"]
        assert tip["y"] >= view["y"]
