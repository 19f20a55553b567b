"""live_view.js on its own in a real Chromium: a page with as much of a widget's model as it uses, and no Jupyter."""

from __future__ import annotations

import dataclasses
import math
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from front_end import DARK, BrowserFrontEnd, open_page
from run_events import T0, cpu_sample, epoch_done, gpu_sample, learning, run_started, whole_run

from hfta_nb import colors
from hfta_nb import events as ev
from hfta_nb.history import Curve
from hfta_nb.ui.live_state import LIMIT, thin
from hfta_nb.ui.live_view import LiveView

pytestmark = pytest.mark.browser

FEW = {"lr": [1e-3, 1e-2], "width": [8, 16]}
MANY = {"lr": [1e-4, 1e-3, 1e-2, 1e-1], "width": [8, 16, 32, 64]}

# How many pixels of a canvas have about this colour.
COUNT = """
([panel, color]) => {
  const canvas = document.querySelector(`canvas[data-panel=${panel}]`);
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const wanted = [1, 3, 5].map((i) => parseInt(color.slice(i, i + 2), 16));
  let found = 0;
  for (let i = 0; i < data.length; i += 4) if (wanted.every((v, k) => Math.abs(data[i + k] - v) < 12)) found++;
  return found;
}
"""
# What a canvas shows, as a number that differs where the picture does.
PICTURE = """
(panel) => {
  const canvas = document.querySelector(`canvas[data-panel=${panel}]`);
  let hash = 0;
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  for (const v of data) hash = (hash * 31 + v) | 0;
  return hash;
}
"""
FRAMES = "document.querySelector('.hfta-live').hfta.frames"
HIDE = """
(hidden) => {
  Object.defineProperty(document, "hidden", { configurable: true, get: () => hidden });
  document.dispatchEvent(new Event("visibilitychange"));
}
"""

Open = Callable[..., BrowserFrontEnd]


@pytest.fixture
def opened(browser: Any) -> Iterator[Open]:
    """Opens pages with a view of a run; in the end none of them may have had an error."""
    fronts: list[BrowserFrontEnd] = []

    def make(events: Any = (), traits: dict[str, Any] | None = None, **page: Any) -> BrowserFrontEnd:
        fronts.append(BrowserFrontEnd(open_page(browser, **page), LiveView(**(traits or {}))))
        fronts[-1].show(events)
        return fronts[-1]

    yield make
    errors = [error for front in fronts for error in front.page.errors]
    for front in fronts:
        front.page.close()
    assert errors == []


def count(front: BrowserFrontEnd, color: str, panel: str = "curves") -> int:
    return int(front.page.evaluate(COUNT, [panel, color]))


def picture(front: BrowserFrontEnd, panel: str = "curves") -> int:
    return int(front.page.evaluate(PICTURE, panel))


def settle(front: BrowserFrontEnd) -> None:
    front.page.evaluate("settled()")


def place(front: BrowserFrontEnd, x: float, y: float, panel: str = "curves") -> tuple[float, float]:
    """A place on a canvas, from 0 to 1 of its plotting area."""
    box = front.page.locator(f"canvas[data-panel={panel}]").bounding_box()
    left, right = (52, 12) if panel == "curves" else (44, 50)
    return box["x"] + left + x * (box["width"] - left - right), box["y"] + 8 + y * (box["height"] - 8 - 34)


def hover(front: BrowserFrontEnd, x: float, y: float, panel: str = "curves") -> str:
    front.page.mouse.move(*place(front, x, y, panel))
    settle(front)
    tip = front.page.locator(".hfta-tip")
    return str(tip.inner_text()) if tip.is_visible() else ""


def zoom_in(front: BrowserFrontEnd) -> None:
    """Turn the wheel over the middle of the curves, and wait until the page has had it: the driver does not."""
    front.page.mouse.move(*place(front, 0.5, 0.5))
    front.page.mouse.wheel(0, -300)
    front.page.get_by_role("button", name="reset zoom").wait_for(state="visible")
    settle(front)


def flat(epoch: int, member: int) -> float:
    """Losses that tell the members apart: member 0 lowest."""
    return 1.0 + member + 0.001 * epoch


def flat_run(epochs: int = 10, axes: dict[str, Any] | None = None) -> list[ev.Event]:
    start = run_started(axes or FEW, epochs)
    return [start, *(epoch_done(e, len(start.variants), flat) for e in range(1, epochs + 1))]


def test_curves_of_all_members_and_the_device_are_drawn(opened: Open) -> None:
    front = opened(whole_run(FEW))
    for member in (0, 2, 3):
        assert count(front, colors.member(member).light) > 100
    for line in colors.device_lines(gpu_sample(1.0).values):
        if line.kind == "fraction":
            assert count(front, line.stroke.light, "device") > 100
    assert front.view.metric == "loss"


def test_before_anything_happened_it_says_so(opened: Open) -> None:
    front = opened()
    labels = [c.get_attribute("aria-label") for c in front.page.locator("canvas").all()]
    assert labels == ["Curves of the members: no run yet", "Utilization of the device: no measurements yet."]
    front.show([run_started(FEW)])
    assert "the first epoch is under way" in front.page.locator("canvas").first.get_attribute("aria-label")


def test_new_points_alone_move_the_picture(opened: Open) -> None:
    front = opened(flat_run(5))
    front.view._handle_custom_msg({"kind": "hello"}, [])
    front.deliver()
    before, frames = picture(front), front.page.evaluate(FRAMES)
    front.show([epoch_done(6, 4, lambda e, m: 0.5 * m)])
    assert picture(front) != before
    assert front.page.evaluate(FRAMES) == frames + 1


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
    assert rows == 16
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


def test_hidden_tab_stops_redraws(opened: Open) -> None:
    front = opened(flat_run(5))
    front.page.evaluate(HIDE, True)
    frames = front.page.evaluate(FRAMES)
    before = picture(front)
    front.show([epoch_done(6, 4, lambda e, m: 0.5 * m)])
    front.show([epoch_done(7, 4, lambda e, m: 0.4 * m)])
    assert front.page.evaluate(FRAMES) == frames
    front.page.evaluate(HIDE, False)
    settle(front)
    assert front.page.evaluate(FRAMES) == frames + 1
    assert picture(front) != before


def test_view_that_is_not_on_the_screen_stops_redraws(opened: Open) -> None:
    front = opened(flat_run(5))
    front.page.evaluate("document.getElementById('root').style.display = 'none'; settled()")
    frames = front.page.evaluate(FRAMES)
    front.show([epoch_done(6, 4, flat)])
    assert front.page.evaluate(FRAMES) == frames
    front.page.evaluate("document.getElementById('root').style.display = ''; settled()")
    settle(front)
    assert front.page.evaluate(FRAMES) > frames


def test_nothing_new_means_no_redraw(opened: Open) -> None:
    front = opened([*whole_run(FEW), ev.RunChanged(T0 + 99, ev.COMPLETE)])
    frames = front.page.evaluate(FRAMES)
    for _ in range(5):
        settle(front)
    assert front.page.evaluate(FRAMES) == frames


def test_names_are_text(opened: Open) -> None:
    bad = "<script>window.pwned = 1</script><img src=x onerror='window.pwned = 1'>"
    front = opened(whole_run({"name": [bad, "**b**", "$x$"], "lr": [1.0, 2.0]}), traits={"color_by": "name"})
    text = hover(front, 0.5, 0.5)
    assert "<script>window.pwned = 1</script>" in text
    assert bad in front.page.locator(".hfta-chip").first.get_attribute("title")
    assert front.page.locator(".hfta-step").first.inner_text().strip() == bad
    assert front.page.locator(".hfta-live img, .hfta-live script").count() == 0
    assert front.page.evaluate("window.pwned ?? null") is None


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


def test_both_plots_share_the_time_axis(opened: Open) -> None:
    front = opened(whole_run(FEW), traits={"x_axis": "time"})
    before = picture(front, "device")
    zoom_in(front)
    front.page.mouse.move(2, 2)
    settle(front)
    assert picture(front, "device") != before


def test_toolbar_and_traits_are_one(opened: Open) -> None:
    front = opened(whole_run(FEW))
    page = front.page
    seen = {picture(front)}
    page.get_by_label("metric").select_option("accuracy")
    page.get_by_label("split").select_option("validation")
    page.get_by_role("button", name="log y").click()
    page.get_by_label("smooth").fill("0.5")
    page.get_by_label("colour by").select_option("width")
    page.get_by_label("x", exact=True).select_option("step")
    settle(front)
    saved = page.evaluate("model.saved.at(-1)")
    assert (saved["metric"], saved["split"], saved["log_y"], saved["smoothing"]) == (
        "accuracy",
        "validation",
        True,
        0.5,
    )
    assert (saved["color_by"], saved["x_axis"]) == ("width", "step")
    seen.add(picture(front))
    front.set(log_y=False, smoothing=0.0)
    seen.add(picture(front))
    assert len(seen) == 3
    assert page.get_by_role("button", name="log y").get_attribute("aria-pressed") == "false"


def test_every_control_has_a_name_and_a_tooltip(opened: Open) -> None:
    front = opened(whole_run(FEW))
    controls = front.page.evaluate(
        """() => [...document.querySelectorAll(".hfta-live :is(select, input, button)")].map((e) =>
        [e.labels?.[0]?.innerText || e.getAttribute("aria-label") || e.textContent, e.title, e.tabIndex])"""
    )
    assert len(controls) > 12
    for name, title, tab_index in controls:
        assert name.strip()
        assert title.strip()
        assert tab_index == 0


def test_canvases_say_what_they_show(opened: Open) -> None:
    front = opened(whole_run(FEW))
    curves, device = front.page.locator("canvas[role=img]").all()
    text = curves.get_attribute("aria-label")
    assert text.startswith("Curves of loss over epoch for 4 members; last values from ")
    assert text.endswith("epoch 20 of 20, 3 running, 1 diverged")
    assert "SM active 95%" in device.get_attribute("aria-label")
    front.show([ev.RunChanged(T0 + 99, ev.FAILED, "the worker died")])
    assert "run failed: the worker died" in front.page.locator("[aria-live=polite]").inner_text()


def test_ended_member_has_a_cross_and_its_reason(opened: Open) -> None:
    events = flat_run()
    front = opened(events, traits={"split": "validation"})
    green = colors.member(2).light
    before = count(front, green)
    front.show([ev.MemberChanged(T0 + 30, 2, ev.COMPLETE, "no better for 5 epochs")])
    assert count(front, green) > before + 8
    chip = front.page.locator(".hfta-chip").nth(2)
    assert chip.get_attribute("title") == "#2 lr=0.01, width=8: COMPLETE no better for 5 epochs"
    assert "COMPLETE: no better for 5 epochs" in hover(front, 0.99, 0.35)


def test_member_lost_from_its_first_point_is_marked_all_the_same(opened: Open) -> None:
    events = [run_started(FEW), epoch_done(1, 4, lambda e, m: math.nan if m == 3 else flat(e, m))]
    front = opened([*events, ev.MemberChanged(T0, 3, ev.DIVERGED, "nan")])
    assert count(front, colors.member(3).light) > 8


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


def test_beyond_twelve_members_a_colour_bar_takes_the_legends_place(opened: Open) -> None:
    front = opened(whole_run(MANY))
    assert front.page.locator(".hfta-curves .hfta-chip").count() == 0
    steps = front.page.locator(".hfta-step")
    assert [t.strip() for t in steps.all_inner_texts()] == ["0.0001", "0.001", "0.01", "0.1"]
    assert front.page.get_by_label("colour by").locator("option").all_inner_texts() == ["lr", "width"]
    for stroke in colors.axis("lr", MANY["lr"]).strokes:
        assert count(front, stroke.light) > 100
    steps.nth(2).click()
    settle(front)
    assert front.page.evaluate("model.get('selected')") == [8, 9, 10, 11]
    front.page.get_by_label("colour by").select_option("width")
    settle(front)
    assert [t.strip() for t in steps.all_inner_texts()] == ["8", "16", "32", "64"]


def test_keyboard_walks_from_point_to_point(opened: Open) -> None:
    front = opened(flat_run(), traits={"split": "validation"})
    front.page.locator("canvas[data-panel=curves]").focus()

    def press(key: str) -> str:
        front.page.keyboard.press(key)
        settle(front)
        return str(front.page.locator(".hfta-tip").inner_text())

    assert press("ArrowLeft").startswith("epoch 10")
    assert press("ArrowLeft").startswith("epoch 9")
    assert "#1 " in press("ArrowUp").splitlines()[-1]
    front.page.keyboard.press("Enter")
    settle(front)
    assert front.page.evaluate("model.get('selected')") == [1]
    before = picture(front)
    front.page.keyboard.press("+")
    settle(front)
    assert picture(front) != before


def test_theme_is_followed_when_it_changes(opened: Open) -> None:
    front = opened(flat_run(axes={"lr": [0.5, 0.6]}))
    assert count(front, "#ffffff") > 10_000
    front.page.evaluate(
        "(style) => { document.body.setAttribute('style', style); document.body.dataset.jpThemeLight = 'false'; }", DARK
    )
    settle(front)
    assert count(front, "#ffffff") < 2_000
    assert count(front, "#111111") > 10_000
    assert count(front, colors.member(0).dark) > 100


def test_dark_system_outside_jupyterlab(opened: Open) -> None:
    front = opened(flat_run(), color_scheme="dark")
    assert count(front, "#16181b") > 10_000
    assert count(front, colors.member(0).dark) > 100


def test_crisp_on_a_dense_screen(opened: Open) -> None:
    front = opened(flat_run(), ratio=2.0)
    sizes = "(c) => [c.width, c.height, c.clientWidth, c.clientHeight]"
    for canvas in front.page.locator("canvas").all():
        width, height, client_width, client_height = canvas.evaluate(sizes)
        assert (width, height) == (2 * client_width, 2 * client_height)


@pytest.mark.parametrize(("width", "beside"), [(1280, True), (900, True), (600, False)])
def test_plots_stand_side_by_side_where_there_is_room(opened: Open, width: int, beside: bool) -> None:
    front = opened(whole_run(MANY), width=width)
    left, right = (c.bounding_box() for c in front.page.locator("canvas").all())
    assert (right["x"] > left["x"] + 100) == beside
    assert front.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_tooltip_stays_within_the_view(opened: Open) -> None:
    front = opened(whole_run(MANY), width=900)
    for x in (0.02, 0.5, 0.98):
        hover(front, x, 0.5)
        tip, view = (front.page.locator(s).bounding_box() for s in (".hfta-tip", ".hfta-live"))
        assert tip["x"] >= view["x"]
        assert tip["x"] + tip["width"] <= view["x"] + view["width"]
        assert tip["y"] >= view["y"]


def test_asks_for_the_state_when_it_opens_and_when_it_missed_something(opened: Open) -> None:
    front = opened()
    assert front.page.evaluate("model.sent") == [{"kind": "hello"}]
    front.view._handle_custom_msg({"kind": "hello"}, [])
    front.show(flat_run(3))
    assert front.page.evaluate("model.sent.length") == 1
    front.view.add(epoch_done(4, 4, flat))
    front.view.flush()
    front._held.clear()  # lost on the way
    front.show([epoch_done(5, 4, flat)])
    assert front.page.evaluate("model.sent.length") == 2


def test_second_view_of_the_same_widget_shows_everything_at_once(opened: Open) -> None:
    front = opened(whole_run(FEW), height=1200)
    front.page.evaluate(
        """async () => {
          const el = document.body.appendChild(document.createElement("div"));
          window.second = await addView(el);
          await settled();
        }"""
    )
    labels = [c.get_attribute("aria-label") for c in front.page.locator("canvas[data-panel=curves]").all()]
    assert len(labels) == 2
    assert labels[0] == labels[1]
    front.page.evaluate("second.abort(); document.body.lastChild.remove()")
    front.show([epoch_done(21, 4, flat)])  # no error, and the first goes on
    assert "to 4.021" in front.page.locator("canvas").first.get_attribute("aria-label")


def test_closed_view_draws_no_more(opened: Open) -> None:
    front = opened(flat_run(3))
    front.page.evaluate("window.stats = document.querySelector('.hfta-live').hfta; view.abort()")
    frames = front.page.evaluate("stats.frames")
    front.show([epoch_done(4, 4, flat)])
    front.page.evaluate("document.body.dataset.jpThemeLight = 'false'; settled()")
    assert front.page.evaluate("stats.frames") == frames


def test_page_thins_curves_as_python_does(opened: Open) -> None:
    chance = random.Random(5)
    values = [chance.gauss(0, 1) if i % 97 else math.nan for i in range(3 * LIMIT)]
    got = opened().page.evaluate(
        """(values) => {
          const trace = new module.Trace();
          values.forEach((v, i) => trace.add(i / 10, 3 * i, i / 5, v === null ? NaN : v));
          return [...trace.step.subarray(0, trace.n)];
        }""",
        [None if math.isnan(v) else v for v in values],
    )
    curve = Curve()
    for i, value in enumerate(values):
        curve.add(i / 10, 3 * i, value, i / 5)
        thin(curve)
    assert got == curve.steps


def test_resumed_run_drops_points_in_the_page_too(opened: Open) -> None:
    steps = opened().page.evaluate(
        """() => {
          const trace = new module.Trace();
          for (const step of [1, 2, 3, 4, 5, 3, 4]) trace.add(step, step, step, step);
          return [...trace.step.subarray(0, trace.n)];
        }"""
    )
    assert steps == [1, 2, 3, 4]


def test_smoothing_starts_unbiased_and_skips_nan(opened: Open) -> None:
    got = opened().page.evaluate("[...module.smooth([4, NaN, 2], 3, 0.5)].map((v) => Number.isNaN(v) ? null : v)")
    assert got == [4, None, pytest.approx((0.5 * 0.5 * 4 + 0.5 * 2) / 0.75)]


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("module.ticks(0, 1, false, 5, String)", ["0", "0.2", "0.4", "0.6", "0.8", "1"]),
        ("module.ticks(1, 3, false, 5, String, true)", ["1", "2", "3"]),
        ("module.ticks(-4, 0, true, 5, (v) => v.toExponential())", ["1e-4", "1e-3", "1e-2", "1e-1", "1e+0"]),
        ("module.ticks(0, 1.2, true, 5, String)", ["1", "2", "5", "10"]),
        ("module.ticks(-20, 20, true, 4, String)", ["1e-20", "1e-10", "1", "10000000000", "100000000000000000000"]),
    ],
)
def test_ticks(opened: Open, call: str, expected: list[str]) -> None:
    assert opened().page.evaluate(f"{call}.map((t) => t.text).filter(Boolean)") == expected


@pytest.mark.parametrize("value", [math.nan, math.inf, 0.0, -1.0, 1e300])
@pytest.mark.parametrize("log_y", [False, True])
def test_any_value_draws(opened: Open, value: float, log_y: bool) -> None:
    events = [run_started(FEW), *(epoch_done(e, 4, lambda e, m: learning(e, m) if m else value) for e in (1, 2, 3))]
    front = opened(events, traits={"log_y": log_y, "log_x": True})
    assert count(front, colors.member(2).light) > 50


def test_one_point_and_one_measurement_can_be_seen(opened: Open) -> None:
    front = opened([run_started(FEW), epoch_done(1, 4, flat), cpu_sample(1.0)])
    assert count(front, colors.member(2).light) > 8
    assert count(front, colors.OKABE_ITO[1].light, "device") > 8
