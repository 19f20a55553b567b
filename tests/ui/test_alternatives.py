"""Other plans of the same sweep, to click, with what was estimated of them."""

from __future__ import annotations

import html

from ui.bench import Make, Runs, press

from hfta_nb import events as ev
from hfta_nb.ui import Workbench
from hfta_nb.ui.alternatives import Alternatives

APART = {"grid": {"lr": [1e-3, 1e-2], "width": [8, 64]}, "epochs": 10}


def shown(bench: Workbench) -> dict[str, str]:
    """What each button says, and what is said beside it."""
    *boxes, _ = bench.plan_view.alternatives.buttons.children
    return {box.children[0].description: html.unescape(box.children[1].value) for box in boxes}


def click(bench: Workbench, name: str) -> None:
    *boxes, _ = bench.plan_view.alternatives.buttons.children
    next(box.children[0] for box in boxes if box.children[0].description == name).click()


def measured(runs: Runs, *rates: float, members: int = 2) -> None:
    """The measurement that is on tells these."""
    runs.happens(*(ev.RateMeasured(1.0, i, members, (rate,), (1000,)) for i, rate in enumerate(rates)))
    runs.ends()


def test_a_plan_that_is_the_only_one_has_no_others(make: Make) -> None:
    bench = make()
    assert bench.plan_view.alternatives.layout.display == "none"
    assert repr(bench.plan_view.alternatives) == "Alternatives([])"


def test_a_click_pads_to_one_array_and_another_splits_again(make: Make) -> None:
    bench = make(**APART)
    assert bench.plan_view.sentence.value.startswith("4 variants in 2 arrays")
    (name, text), *more = shown(bench).items()
    assert (name, more) == ("pad to one array", [])
    assert text.startswith("1 array, 46% padding, about ")
    assert text.endswith("KiB")  # no time, as none was measured
    click(bench, name)
    assert bench.planned() == ""
    assert bench.define.fields["padding"].value == "0.5"  # the least that does it
    assert bench.plan_view.sentence.value.startswith("4 variants in 1 array of 4")
    assert list(shown(bench)) == ["split by width"]
    assert shown(bench)["split by width"].startswith("2 arrays, no padding, about ")
    click(bench, "split by width")
    bench.planned()
    assert bench.define.fields["padding"].value == "never"
    assert "padding='never'" in bench.code()


def test_times_are_measured_on_request_and_kept(make: Make, runs: Runs) -> None:
    bench = make(**APART)
    part: Alternatives = bench.plan_view.alternatives
    assert runs.started == []
    part.estimate.click()
    assert part.estimate.description == "stop estimating"
    assert [one["job"] for one in runs.started] == ["profile"]
    measured(runs, 1000.0, 500.0)  # 10 epochs of so many samples
    samples = 10 * len(bench.study.data)
    assert [len(one["study"].groups()) for one in runs.started] == [2, 1]
    measured(runs, 900.0, members=4)
    assert part.estimate.description == "estimate times"
    assert f"This plan takes about 0:{round(samples / 1000 + samples / 500):02d}." in part.said.value
    assert "come on top" in part.said.value
    assert shown(bench)["pad to one array"].endswith(f", about 0:{round(samples / 900):02d}")
    click(bench, "pad to one array")
    bench.planned()
    assert f"This plan takes about 0:{round(samples / 900):02d}." in part.said.value
    part.estimate.click()  # both are known
    assert len(runs.started) == 2


def test_what_can_t_be_measured_is_said_and_a_run_ends_measuring(make: Make, runs: Runs) -> None:
    bench = make(**APART)
    part = bench.plan_view.alternatives
    part.estimate.click()
    runs.ends(ev.FAILED, "RuntimeError: <b>")
    assert "not measured: RuntimeError: &lt;b&gt;" in part.said.value
    part.estimate.click()
    press(bench, "train")
    assert part.layout.display == "none"
    assert [one.get("job", "run") for one in runs.started] == ["profile", "profile", "run"]


def test_a_share_of_padding_is_typed(make: Make) -> None:
    field = make().define.fields["padding"]
    assert field.value == "auto"
    for text, meaning in [("25%", 0.25), ("0.4", 0.4), ("never", "never"), ("0", 0.0)]:
        field.value = text
        assert field.meaning == meaning
    for text in ("1", "100%", "much", "-0.1", ""):
        field.value = text
        assert "a share from 0 to 1" in field.error
