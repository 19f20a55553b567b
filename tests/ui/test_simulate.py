"""Simulate, a part of Plan: a planned study on other devices."""

from __future__ import annotations

import html
import re

import pytest
from ui.bench import Make, Runs

from hfta_nb import events as ev
from hfta_nb.errors import WorkerError
from hfta_nb.ui import Workbench, simulate
from hfta_nb.ui.simulate import FASTEST, Simulate

APART = {"grid": {"lr": [1e-3, 1e-2], "width": [8, 64]}, "padding": "never"}
WAYS = ["one per device", "one shared stream", "FLEET-L", "FLEET-G", "best"]


def opened(bench: Workbench) -> Simulate:
    """The part, unfolded."""
    part = bench.plan_view.simulate
    part.head.unfolded = True
    return part


def heads(part: Simulate) -> list[str]:
    return re.findall(r"<th [^>]*>(.*?)</th>", part.figures.value)


def rows(part: Simulate) -> dict[str, list[str]]:
    """The cells of each way."""
    cells = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in part.figures.value.split("<tr>")[2:]]
    return {first.split(" (")[0].split(",")[0]: rest for first, *rest in cells}


def measured(runs: Runs, *rates: float) -> None:
    """The measurement tells these."""
    runs.happens(*(ev.RateMeasured(1.0, i, 2, (rate,), (1000,)) for i, rate in enumerate(rates)))


def test_nothing_is_offered_where_one_array_has_one_place(make: Make) -> None:
    assert make().plan_view.simulate.layout.display == "none"
    assert make(**APART).plan_view.simulate.layout.display == ""
    assert make(executor="processes", workers=3).plan_view.simulate.layout.display == ""


def test_folded_it_calculates_nothing_and_unfolded_it_shows_chart_and_table(make: Make) -> None:
    part = make(**APART).plan_view.simulate
    assert part.chart.value == part.figures.value == ""
    part.head.unfolded = True
    assert 'src="data:image/png;base64,iVBOR' in part.chart.value
    assert re.search(r'alt="Gantt chart, [^"]*: 2 arrays on 2 devices"', part.chart.value)
    assert list(rows(part)) == ["one per device", "all in step", "FLEET-L", "FLEET-G", "best rounds"]
    part.head.unfolded = False
    assert part.head.summary.startswith("2 devices: ")
    assert "rates are assumed" in part.head.summary


def test_assumed_rates_are_said_and_have_no_times(make: Make) -> None:
    part = opened(make(**APART))
    assert "Rates are assumed" in part.rates.value
    part.price.value = "2.5"
    assert heads(part) == ["way", "speedup", "devices compute", "devices held", "rounds"]
    assert rows(part)["one per device"][0] == "1.00x"


def test_measured_rates_give_times_and_costs(make: Make, runs: Runs) -> None:
    bench = make(**APART)
    part = opened(bench)
    part.measure_button.click()
    assert [one["job"] for one in runs.started] == ["profile"]
    assert part.measure_button.description == "stop measuring"
    runs.happens(ev.RateMeasured(1.0, 0, 2, (100.0,), (1000,)))
    assert "1 of 2 arrays done" in part.rates.value
    runs.happens(ev.RateMeasured(1.0, 1, 2, (10.0,), (1000,)))
    runs.ends()
    assert "measured on 1 device of this machine" in part.rates.value
    assert part.measure_button.description == "measure"
    part.devices.value, part.price.value = "1", "3600"
    samples = 4 * len(bench.study.data)  # type: ignore[arg-type]
    seconds = samples / 100 + samples / 10
    alone = rows(part)["one per device"]
    assert heads(part)[1::5] == ["takes", "device-hours"]
    assert alone[0] == f"{int(seconds // 60)}:{round(seconds % 60):02d}"
    assert float(alone[-1]) == pytest.approx(seconds, rel=0.01)  # one a second
    assert f"on 1 device in {alone[0]}" in part.chart.value


def test_rates_stay_with_the_arrays_that_they_were_measured_of(make: Make, runs: Runs) -> None:
    bench = make(**APART)
    part = opened(bench)
    part.measure()
    measured(runs, 100.0, 10.0)
    runs.ends()
    before = rows(part)["one per device"][0]
    bench.define.fields["epochs"].value = "8"
    assert "measured" in part.rates.value
    assert rows(part)["one per device"][0] != before
    bench.define.fields["batch_size"].value = "16"
    assert "Rates are assumed" in part.rates.value


def test_the_chart_shows_the_way_that_is_chosen(make: Make) -> None:
    part = opened(make(**APART))
    assert [value for _, value in part.way.options] == [FASTEST, *WAYS]
    for way, said in [("FLEET-L", "FLEET-L"), ("best", "best rounds")]:
        part.way.value = way
        assert f'alt="Gantt chart, {said}: ' in part.chart.value


@pytest.mark.parametrize(
    ("field", "text", "said"),
    [
        ("devices", "many", "devices: not a whole number; got &#x27;many&#x27;; accepted: 1 to 1,024"),
        ("devices", "0", "devices: out of bounds"),
        ("devices", "2000", "devices: out of bounds"),
        ("price", "cheap", "price per device-hour: not a price"),
        ("price", "-1", "price per device-hour: not a price"),
    ],
)
def test_what_is_typed_wrong_is_told_beside_the_field(make: Make, field: str, text: str, said: str) -> None:
    part = opened(make(**APART))
    typed = getattr(part, field)
    right, typed.value = typed.value, text
    assert said in part.wrong.value
    assert 'role="alert"' in part.wrong.value
    assert "hfta-wrong" in typed._dom_classes
    assert part.chart.value == part.figures.value == ""
    typed.value = right
    assert part.wrong.value == ""
    assert part.chart.value


def test_many_arrays_are_told_where_to_simulate(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulate, "MOST_ARRAYS", 1)
    part = opened(make(**APART))
    assert "too many arrays to simulate here; got 2 arrays" in html.unescape(part.wrong.value).replace("'", "")
    assert part.chart.value == ""


def test_a_run_ends_measuring_and_waits_for_nothing(make: Make, runs: Runs) -> None:
    bench = make(**APART)
    part = opened(bench)
    handle = part.measure()
    bench.train()
    assert ev.Stop() in runs.requests
    runs.begins(bench)
    assert part.measure_button.disabled
    assert "a run is in progress" in part.measure_button.tooltip
    assert part.devices.disabled
    assert "A run is in progress" in part.rates.value
    handle.deliver(ev.RateMeasured(1.0, 0, 2, (100.0,), (1000,)))  # too late
    handle.finish(event=ev.RunChanged(2.0, ev.COMPLETE))
    assert part.profile is None
    runs.ends()
    assert not part.measure_button.disabled
    assert "Rates are assumed" in part.rates.value
    assert part.chart.value


def test_what_cannot_be_measured_is_told(make: Make, runs: Runs) -> None:
    part = opened(make(**APART))
    part.measure_button.click()
    runs.ends(ev.FAILED, "RuntimeError: <b>no</b>")
    assert "not measured: RuntimeError: &lt;b&gt;no&lt;/b&gt;" in part.wrong.value
    assert part.measure_button.description == "measure"
    runs.error = WorkerError("can't be sent")
    part.measure_button.click()
    assert "can&#x27;t be sent" in part.wrong.value


def test_its_fields_have_hints(make: Make) -> None:
    hints = make(**APART).bar.hints
    assert {"devices", "price per device-hour", "chart of"} <= set(hints)
    assert "devices to simulate" in hints["devices"]
