"""Parts of a Workbench beside its run: traffic, folded sections, words, names, tooltips."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ui.bench import Clock, Make, Runs, improved, press, shown, steps, texts

from hfta_nb import events as ev
from hfta_nb.ui import Workbench
from hfta_nb.ui.saved_run import COLUMNS, columns_of


def test_traffic_is_low(make: Make, runs: Runs, clock: Clock) -> None:
    bench = make()
    press(bench, "train")
    runs.begins(bench)
    sent: list[str] = []
    for widget in (bench.leaderboard, bench.train_view.progress, bench.bar, *(s.head for s in bench.sections.values())):
        widget.observe(lambda change: sent.append(change["name"]))
    for i in range(1000):  # ten seconds
        clock.now += 0.01
        runs.happens(steps(i / 250), *improved(0.5 + i / 5000, 0.6))
    assert 10 <= len(sent) <= 45  # the table and the progress, at most twice a second each


def test_a_long_table_is_drawn_less_often(make: Make, runs: Runs) -> None:
    bench = make(grid={"lr": [i * 1e-5 for i in range(1, 801)]})
    press(bench, "train")
    runs.begins(bench)
    assert bench._session._follower is not None
    assert bench._session._follower.period_s == 2.0


def test_folded_sections_say_the_important_thing(make: Make, runs: Runs, clock: Clock) -> None:
    bench = make()
    heads = {title: section.head for title, section in bench.sections.items()}
    assert {t: h.unfolded for t, h in heads.items()} == {
        "Define": True,
        "Plan": True,
        "Train": True,
        "Watch": False,
        "Results": False,
    }
    press(bench, "train")
    assert {t for t, h in heads.items() if not h.unfolded} == {"Define", "Plan"}
    assert heads["Plan"].summary == "2 variants in 1 array of 2: differing in lr"
    for head in heads.values():
        head.unfolded = False
        assert head.body_display == "none"
    runs.begins(bench)
    clock.now += 1
    runs.happens(*improved(0.7, 0.9), ev.DeviceSampled(3.0, "cpu", {"core0": 0.5, "memory_bytes": 2.0**30}), steps(1.5))
    bench.refresh()
    assert heads["Define"].summary == "mlp on digits, 4 epochs; 2 lr x 1 width = 2 variants"
    assert heads["Train"].summary == "running; epoch 2/4, 0:41, 0:22 left; 36,100 samples/s; 2 running"
    assert heads["Watch"].summary == "val accuracy 0.9 (#1); CPU 50%; memory 1.0 GiB"
    assert heads["Results"].summary == "best #1 lr=0.01, width=8: val accuracy 0.9 at epoch 1"
    heads["Train"].unfolded = True
    assert heads["Train"].body_display == ""


def test_what_is_opened_during_a_run_stays_open(make: Make, runs: Runs) -> None:
    bench = make()
    define = bench.sections["Define"].head
    press(bench, "train")
    runs.begins(bench)
    define.unfolded = True
    bench.refresh()
    runs.ends()
    bench.train()
    assert define.unfolded
    runs.begins(bench)
    define.unfolded = False
    runs.ends()
    define.unfolded = True  # to edit the next run
    bench.train()
    assert not define.unfolded


def test_the_arrangement_of_columns_comes_back_with_the_run(make: Make, runs: Runs, tmp_path: Path) -> None:
    bench = make()
    press(bench, "train")
    bench.study.directory.mkdir(parents=True)
    runs.begins(bench)
    kept = {"order": ["axis:lr", "rank"], "hidden": {"best_epoch": True}, "widths": {"axis:lr": 90}}
    bench.leaderboard.arranged = kept
    assert columns_of(bench.study.directory) == kept
    for damaged in ("{", "[]", '{"order": 3, "hidden": {"a": false}}'):
        (bench.study.directory / COLUMNS).write_text(damaged)
        assert columns_of(bench.study.directory) == ({"hidden": {"a": False}} if "false" in damaged else {})
    assert columns_of(tmp_path / "none") == {}


def test_two_workbenches_are_independent(make: Make, runs: Runs) -> None:
    one, two = make(), make(grid={"width": [4, 8]})
    press(one, "train")
    press(two, "train")
    assert len(runs.handles) == 2
    first, second = runs.handles
    runs.begins(two)  # the last that was started
    assert (one.state, two.state) == ("starting", "running")
    press(two, "stop")
    second.finish(event=ev.RunChanged(9.0, ev.STOPPED))
    assert (one.state, two.state) == ("starting", "stopped")
    assert not first.ended
    assert one.study.directory != two.study.directory
    assert one.leaderboard.table["rows"] == []


def test_a_button_s_error_is_said_on_the_screen(make: Make, runs: Runs) -> None:
    bench = make()
    press(bench, "train")
    runs.begins(bench)
    press(bench, "csv")  # nothing of this run is on disk
    assert "hfta-error" in bench.results.note.value


def test_results_buttons_make_sense_only_with_a_run(make: Make, runs: Runs) -> None:
    bench = make()
    names = {"csv", "png", "code", "check"}
    assert {n for n, yes in shown(bench).items() if yes} & names == {"code"}
    press(bench, "train")
    runs.begins(bench)
    assert {n for n, yes in shown(bench).items() if yes} & names == {"csv", "png", "code"}
    runs.ends()
    assert {n for n, yes in shown(bench).items() if yes} & names == names


def test_names_are_text_everywhere(make: Make, runs: Runs, clock: Clock) -> None:
    evil = "<img src=x onerror=alert(1)>**bold**"
    bench = make(directory=f"runs/{evil}")
    press(bench, "train")
    runs.begins(bench)
    runs.happens(ev.PhaseChanged(3.0, 0, evil, evil))
    runs.ends(ev.FAILED, evil, evil)
    bench.results.say(evil)
    bench.define.row("lr").text_field.value = evil
    for _, value in texts(bench):
        assert "<img" not in value
    assert bench.live.color_by == ""


def test_closing_ends_listening(make: Make, runs: Runs) -> None:
    bench = make()
    press(bench, "train")
    runs.begins(bench)
    bench.close()
    assert not runs.handle._subscribers
    bench.close()


def test_tooltips_and_classes_for_every_button(make: Make) -> None:
    bench = make()
    for name, button in {**bench.train_view.buttons, **bench.results.buttons}.items():
        assert button.tooltip
        assert button.description
        assert f"hfta-button-{name}" in button._dom_classes
    assert "hfta-workbench" in bench._dom_classes


def test_the_default_needs_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.chdir(tmp_path)
    bench = Workbench()
    assert bench.bar.status == "ready to train 3 variants"
    assert not list(tmp_path.iterdir())  # planning leaves nothing on disk
    bench.close()
