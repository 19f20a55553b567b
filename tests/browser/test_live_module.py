"""The live view alone in a Chromium: a page with the part of a widget's model that it uses, without Jupyter."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
from front_end import DARK
from run_events import T0, cpu_sample, epoch_done, gpu_sample, learning, run_started, whole_run

from hfta_nb import events as ev
from hfta_nb.figures import colors

from .live_page import FEW, FRAMES, HIDE, MANY, Open, count, flat, flat_run, hover, picture, settle

pytestmark = pytest.mark.browser

RECORDED = Path(__file__).parents[1] / "ui" / "front" / "two_gpus.jsonl"
DRAWN = [line for line in colors.device_lines(gpu_sample(1.0).values) if line.kind in ("fraction", "power", "memory")]

WAITING = "timers.filter(Boolean).length"
"""How many questions will be asked again."""


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
    front.hello()
    before, frames = picture(front), front.page.evaluate(FRAMES)
    front.show([epoch_done(6, 4, lambda e, m: 0.5 * m)])
    assert picture(front) != before
    assert front.page.evaluate(FRAMES) == frames + 1


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


def test_toolbar_and_traits_are_one(opened: Open) -> None:
    front = opened(whole_run(FEW))
    page = front.page
    seen = {picture(front)}
    page.get_by_label("metric").select_option("accuracy")
    page.get_by_label("show", exact=True).select_option("validation")
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


def test_hopeless_members_leave_the_scale_and_the_best_stands_out(opened: Open) -> None:
    events = [
        run_started(FEW, 20),
        *(epoch_done(e, 4, lambda e, m: 1e5 * e if m == 3 else flat(e, m)) for e in range(1, 6)),
    ]
    front = opened([*events, ev.MemberImproved(T0 + 9, 0, 1, "val_loss", 1.0)])
    label = front.page.locator("canvas").first
    assert "1 member off scale, up to 500000" in label.get_attribute("aria-label")
    assert label.get_attribute("aria-label").endswith("4 waiting, 1 blown up")
    chips = front.page.locator(".hfta-curves .hfta-chip b").all_inner_texts()
    assert chips == ["best", "", "", "blown up"]
    best, other = count(front, colors.member(0).light), count(front, colors.member(1).light)
    assert best > 1.5 * other > 100  # on the screen, and wider
    # The axis spans the planned run: more epochs leave the points where they are.
    before = hover(front, 0.12, 0.5)
    assert "epoch 3 " in before
    front.show([epoch_done(6, 4, flat)])
    assert hover(front, 0.12, 0.5) == before
    fit = front.page.get_by_role("button", name="fit to selection")
    assert fit.is_hidden()
    front.set(selected=[1])
    fit.click()
    settle(front)
    front.page.mouse.move(2, 2)
    settle(front)
    assert count(front, colors.member(0).light) < best / 2  # its training curve alone lies near
    assert front.page.get_by_role("button", name="reset zoom").is_visible()


def test_cores_are_one_line_with_a_band_in_a_small_panel(opened: Open) -> None:
    front = opened(whole_run(FEW, sample=lambda s: cpu_sample(s, 4)))
    assert front.page.locator(".hfta-device .hfta-chip").all_inner_texts()[0].startswith("CPU")
    assert count(front, colors.CPU.light, "device") > 100
    curves, device = (front.page.locator(f"canvas[data-panel={name}]").bounding_box() for name in ("curves", "device"))
    assert device["width"] * device["height"] < 0.25 * curves["width"] * curves["height"]
    assert re.search(r"cores from \d+% to \d+%", hover(front, 0.5, 0.5, "device"))


def test_two_gpus_are_drawn_together_or_one_alone(opened: Open) -> None:
    samples = [ev.from_json(json.loads(line)) for line in RECORDED.read_text("utf-8").splitlines()]
    front = opened([run_started(FEW, 20, device="cuda:0"), *samples])
    panel = front.page.locator(".hfta-device")
    assert panel.locator(".hfta-title").inner_text() == "devices · utilization, power, memory"
    together = {line.key: count(front, line.stroke.light, "device") for line in DRAWN}
    assert min(together.values()) > 100
    text = hover(front, 0.6, 0.5, "device")
    assert re.search(r"\tcuda:0\tcuda:1\s+.*SM active\t\d+%\t\d+%", text, re.DOTALL)
    assert re.search(r"power\t\d+ W\t\d+ W", text)
    second = panel.get_by_role("button", name="cuda:1")
    second.click()
    settle(front)
    assert second.get_attribute("aria-pressed") == "true"
    assert second.evaluate("button => button === document.activeElement")
    assert "of cuda:1 over time; now SM active 60%" in panel.locator("canvas").get_attribute("aria-label")
    front.page.mouse.move(2, 2)
    settle(front)
    for line in DRAWN:
        assert count(front, line.stroke.light, "device") != together[line.key]
    second.click()
    settle(front)
    assert "of cuda:0, cuda:1 over time" in panel.locator("canvas").get_attribute("aria-label")


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


@pytest.mark.each("width", every=2)
@pytest.mark.parametrize(("width", "beside"), [(1280, True), (900, True), (600, False)])
def test_plots_stand_side_by_side_where_there_is_room(opened: Open, width: int, beside: bool) -> None:
    front = opened(whole_run(MANY), width=width)
    left, right = (c.bounding_box() for c in front.page.locator("canvas").all())
    assert (right["x"] > left["x"] + 100) == beside
    assert front.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


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


def test_asks_again_less_and_less_often_until_it_is_answered(opened: Open) -> None:
    front = opened()
    for _ in range(8):  # nobody hears it
        front.page.evaluate("timers.pop().again()")
    assert front.page.evaluate("model.sent.length") == 9
    front.page.evaluate("() => { model.send = () => { throw new Error('the kernel is gone'); }; }")
    pause = front.page.evaluate("timers.at(-1).pause")
    assert pause == 30_000
    front.page.evaluate("timers.pop().again()")
    assert front.page.evaluate(WAITING) == 0


def test_first_question_is_lost_and_the_second_answered(opened: Open) -> None:
    front = opened()
    for event in flat_run(3):
        front.view.add(event)
    front.view.flush()
    front._held.clear()  # by now, others have it all
    front.page.evaluate("timers.pop().again()")
    assert front.page.evaluate("model.sent") == [{"kind": "hello"}] * 2
    front.hello()
    assert "for 4 members" in front.page.locator("canvas").first.get_attribute("aria-label")
    assert front.page.evaluate(WAITING) == 0
    frames = front.page.evaluate(FRAMES)
    front.hello()  # the first one came after all
    assert front.page.evaluate(FRAMES) == frames
    front.show([epoch_done(4, 4, flat)])
    assert front.page.evaluate("model.sent.length") == 2


def test_stops_asking_where_there_is_no_run_yet(opened: Open) -> None:
    front = opened()
    assert front.page.evaluate(WAITING) == 1
    front.hello()
    assert front.page.evaluate(WAITING) == 0


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


@pytest.mark.each("value", every=2)
@pytest.mark.parametrize("value", [math.nan, math.inf, 0.0, -1.0, 1e300])
@pytest.mark.parametrize("log_y", [False, True])
def test_any_value_draws(opened: Open, value: float, log_y: bool) -> None:
    events = [run_started(FEW), *(epoch_done(e, 4, lambda e, m: learning(e, m) if m else value) for e in (1, 2, 3))]
    front = opened(events, traits={"log_y": log_y, "log_x": True})
    assert count(front, colors.member(2).light) > 50


def test_one_point_and_one_measurement_can_be_seen(opened: Open) -> None:
    front = opened([run_started(FEW), epoch_done(1, 4, flat), cpu_sample(1.0)])
    assert count(front, colors.member(2).light) > 8
    assert count(front, colors.CPU.light, "device") > 8


def test_rungs_and_copies_are_marked(opened: Open) -> None:
    front = opened(flat_run(), traits={"split": "validation"})
    before, orange = picture(front), count(front, colors.member(1).light)
    front.set(rungs=[3, 6])
    settle(front)
    assert picture(front) != before
    front.show([ev.MemberEdited(T0 + 30, 1, "copied", 0, True, 6, 138, {"lr": 0.5})])
    settle(front)
    assert count(front, colors.member(1).light) > orange + 8
    assert "copy of #0, lr 0.001 \N{RIGHTWARDS ARROW} 0.5 at epoch 6" in hover(front, 0.99, 0.66)
