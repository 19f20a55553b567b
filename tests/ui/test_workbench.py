"""The Workbench without a front end, with scripted runs: states, buttons, errors, traffic."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from run_events import epoch_done
from ui.bench import Clock, Make, Runs, can_be_pressed, improved, press, steps

from hfta_nb import events as ev
from hfta_nb.errors import StudyError, WorkerError
from hfta_nb.ui.leaderboard import check_text


def test_it_says_what_it_is(make: Make) -> None:
    bench = make()
    assert repr(bench) == "Workbench(mlp on digits, 4 epochs; 2 lr x 1 width = 2 variants)"
    assert bench.bar.status == "ready to train 2 variants"
    assert bench.plan_view.sentence.value == "2 variants in 1 array of 2: differing in lr"
    bundle = bench._repr_mimebundle_()
    assert bundle["text/plain"] == repr(bench)
    assert "application/vnd.jupyter.widget-view+json" in bundle
    assert can_be_pressed(bench) == {"train"}
    assert bench.state == "idle"


def test_every_widget_has_a_repr_without_address(make: Make) -> None:
    def walk(widget: Any) -> None:
        if type(widget).__module__.startswith("hfta_nb"):
            assert "0x" not in repr(widget)
            assert "object at" not in repr(widget)
        for child in getattr(widget, "children", ()):
            walk(child)

    walk(make())


def test_a_life_with_pause_and_end(make: Make, runs: Runs) -> None:
    bench = make()
    press(bench, "train")
    assert bench.state == "starting"
    assert bench.bar.status == "starting a worker process"
    assert can_be_pressed(bench) == {"stop"}
    runs.begins(bench)
    assert bench.bar.status == "training 2 variants"
    assert can_be_pressed(bench) == {"pause", "stop"}
    press(bench, "pause")
    assert bench.bar.status == "pausing ..."
    assert runs.requests == [ev.Pause()]
    runs.happens(ev.RunChanged(5.0, ev.PAUSED))
    assert can_be_pressed(bench) == {"resume", "stop"}
    assert bench.train_view.progress.facts["details"] == ["2 paused"]
    assert {row["state"] for row in bench.leaderboard.table["rows"]} == {"PAUSED"}
    press(bench, "resume")
    runs.happens(ev.RunChanged(6.0, ev.RUNNING))
    assert bench.state == "running"
    runs.happens(*improved(0.7, 0.9), ev.MemberChanged(7.0, 0, ev.COMPLETE), ev.MemberChanged(7.0, 1, ev.COMPLETE))
    runs.ends()
    assert bench.bar.status == "finished; best #1 lr=0.01, width=8: val accuracy 0.9 at epoch 1"
    assert bench.bar.level == "good"
    assert bench.train_view.progress.facts["fraction"] == 1.0
    assert can_be_pressed(bench) == {"train"}
    assert runs.requests == [ev.Pause(), ev.Resume()]


def test_starting_says_what_it_is_doing(make: Make, runs: Runs) -> None:
    bench = make()
    press(bench, "train")
    runs.happens(ev.PhaseChanged(1.0, 0, "building", "24 members"))
    assert bench.bar.status == "starting: building (24 members)"
    runs.happens(ev.PhaseChanged(1.0, 0, "tuning", "block size"))
    assert bench.bar.status == "starting: tuning (block size)"


def test_numbers_while_it_runs(make: Make, runs: Runs, clock: Clock) -> None:
    bench = make()
    press(bench, "train")
    runs.begins(bench)
    clock.now += 1
    runs.happens(ev.SpeedMeasured(2.0, 0, 2, 40, 0.001, 0.0112, 11.2, "all members at once, recorded steps"))
    clock.now += 1
    runs.happens(steps(1.5))
    facts = bench.train_view.progress.facts
    assert facts["text"] == "epoch 2/4, 0:41, 0:22 left"
    how, measured = "all members at once, recorded steps", facts["details"][1]
    assert measured.endswith("x as fast as one after another so far, a step 11.2x")
    assert facts["details"] == ["36,100 samples/s", measured, how, "2 running"]
    assert facts["fraction"] == pytest.approx(1.5 / 4)
    assert facts["state"] == "running"
    clock.now += 1
    runs.happens(replace(steps(1.6), waiting_share=0.43))
    assert bench.train_view.progress.facts["details"][:2] == ["36,100 samples/s", "43% of the time waiting for data"]


def test_the_plan_follows_the_run_until_it_is_edited(make: Make, runs: Runs, clock: Clock) -> None:
    bench = make(precision="bf16", capacity="auto")
    planned = bench.plan_view.sentence.value
    assert planned == "2 variants in 1 array of 2: differing in lr"
    press(bench, "train")
    runs.begins(bench, precision="bf16")
    (whole,) = bench.study.groups()
    parts = replace(whole, variants=(0,), capacity=1), replace(whole, variants=(1,), index=1, capacity=1)
    clock.now += 1
    runs.happens(ev.PlanMade(3.0, parts))
    assert bench.plan_view.sentence.value == "2 variants in 2 arrays of 1: split by lr"
    assert "members at most" in bench.plan_view.arrays.value
    assert "bf16" in bench.plan_view.manner.value
    clock.now += 1
    runs.happens(ev.SpeedMeasured(3.5, 0, 1, 40, 0.001, 0.0112, 1.2, "compiled"))
    assert "bf16, compiled" in bench.train_view.progress.facts["details"]
    bench.define.fields["precision"].value = "fp32"
    assert bench.plan_view.sentence.value == planned
    assert "float32" in bench.plan_view.manner.value


def test_the_time_left_is_no_guess(make: Make, runs: Runs, clock: Clock) -> None:
    bench = make()
    press(bench, "train")
    runs.begins(bench)
    clock.now += 1
    runs.happens(ev.StepsDone(2.0, 0, 1, 92, 0.01, 24.0, 0.3, math.nan, (0, 1), (0.5, 0.5)))
    assert bench.train_view.progress.facts["text"] == "epoch 1/4, 0:00, estimating"


def test_a_second_train_asks_and_the_first_run_stays(make: Make, runs: Runs) -> None:
    bench = make()
    press(bench, "train")
    first = bench.study
    runs.begins(bench)
    runs.ends()
    press(bench, "train")
    assert bench.train_view.asking
    assert str(first.directory) in bench.train_view.question.value
    assert len(runs.started) == 1
    bench.train_view.confirm_box.children[2].click()  # keep this one
    assert not bench.train_view.asking
    press(bench, "train")
    bench.train_view.confirm_box.children[1].click()  # start a new run
    assert not bench.train_view.asking
    assert len(runs.started) == 2
    assert bench.study is not first
    assert bench.study.directory != first.directory


def test_stop_keeps_and_resume_carries_on(make: Make, runs: Runs) -> None:
    bench = make()
    press(bench, "train")
    runs.begins(bench)
    press(bench, "stop")
    assert bench.bar.status == "stopping ..."
    assert can_be_pressed(bench) == set()
    runs.ends(ev.STOPPED)
    assert bench.train_view.buttons["resume"].disabled  # nothing was saved
    assert "nothing was trained" in bench.train_view.buttons["resume"].tooltip
    bench.study.store.write_study({"family": "mlp"})
    bench.study.store.write_checkpoint({"group": 0})
    bench.phase_changed()
    assert bench.train_view.buttons["resume"].disabled  # the checkpoint is of the beginning
    for event in improved(0.5, 0.6):
        bench.history.add(event)
    bench.phase_changed()
    assert "checkpoint" in bench.train_view.buttons["resume"].tooltip
    press(bench, "resume")
    assert runs.started[-1]["resume"] is True
    assert runs.started[-1]["study"] is runs.started[0]["study"]
    runs.begins(bench, resumed=True)
    assert bench.state == "running"
    assert bench.live.running  # the curves follow as well


def test_a_failed_run_says_why_and_what_to_do(make: Make, runs: Runs) -> None:
    bench = make()
    press(bench, "train")
    runs.begins(bench)
    runs.ends(ev.FAILED, "RuntimeError: <b>out of memory</b>", "Traceback ...\n<script>1</script>")
    assert bench.state == "failed"
    assert "&lt;b&gt;out of memory" in bench.train_view.failure.value
    assert "<script>" not in bench.train_view.failure.value
    assert bench.bar.level == "bad"
    assert bench.train_view.progress.facts["details"] == ["2 failed"]  # nobody is running any more
    assert {row["state"] for row in bench.leaderboard.table["rows"]} == {ev.FAILED}
    carry_on, retry = bench.train_view.failure_box.children[1].children
    assert carry_on.layout.display == "none"  # nothing was saved
    retry.click()  # without asking: nothing is lost by it
    assert len(runs.started) == 2
    assert bench.state == "starting"
    assert bench.train_view.failure_box.layout.display == "none"


def test_where_arrays_train_is_passed_on(make: Make, runs: Runs) -> None:
    bench = make(executor="processes", workers=3)
    bench.run(wait=False)
    where = {"executor": "processes", "workers": 3, "address": None}
    assert (runs.started[0]["kind"], runs.started[0]["arguments"]) == ("worker", where)
    with pytest.raises(WorkerError, match="unknown executor"):
        make(executor="cloud")
    with pytest.raises(WorkerError, match="is for processes of this machine or actors of Ray alone"):
        make(workers=3)


def test_a_run_that_can_t_be_started(make: Make, runs: Runs) -> None:
    bench = make()
    runs.error = WorkerError("the study can't be sent", remedy="open files in the build function")
    press(bench, "train")
    assert bench.state == "failed"
    assert "open files in the build function" in bench.train_view.failure.value
    with pytest.raises(WorkerError):
        bench.run()


def test_take_home_of_a_member(make: Make, runs: Runs) -> None:
    bench = make()
    press(bench, "train")
    runs.begins(bench)
    rows = {row["id"]: row for row in bench.leaderboard.table["rows"]}
    assert not rows[1]["take"]
    bench.leaderboard._handle_custom_msg({"kind": "take", "id": 1}, [])
    assert "no such file in the run" in bench.results.note.value
    bench.leaderboard._handle_custom_msg({"kind": "erase", "id": 1}, [])
    bench.leaderboard._handle_custom_msg({"kind": "take", "id": "1"}, [])
    assert runs.requests == []


def test_the_leaderboard_is_live_and_marks_what_diverged(make: Make, runs: Runs, clock: Clock) -> None:
    bench = make()
    press(bench, "train")
    runs.begins(bench)
    clock.now += 1
    runs.happens(*improved(0.7, 0.9))
    clock.now += 1
    runs.happens(ev.MemberChanged(4.0, 0, ev.DIVERGED, "training loss is not finite"))
    table = bench.leaderboard.table
    assert [c["key"] for c in table["columns"]][:5] == [
        "rank",
        "member",
        "axis:lr",
        "metric:val_accuracy",
        "best_epoch",
    ]
    assert [c["key"] for c in table["columns"] if c["constant"]] == ["axis:width"]
    assert [row["id"] for row in table["rows"]] == [1, 0]
    assert table["rows"][1]["state"] == ev.DIVERGED
    assert table["rows"][1]["reason"] == "training loss is not finite"
    cells = dict(zip((c["key"] for c in table["columns"]), table["rows"][0]["cells"], strict=True))
    assert (cells["member"], cells["axis:lr"], cells["axis:width"]) == ("#1", "0.01", "8")
    json.dumps(table, allow_nan=False)


def test_not_a_number_reaches_the_front_end_as_text(make: Make, runs: Runs, clock: Clock) -> None:
    bench = make()
    press(bench, "train")
    runs.begins(bench)
    clock.now += 1
    runs.happens(epoch_done(1, 2, lambda e, m: math.nan if m else 0.5, 3.0))
    table = bench.leaderboard.table
    json.dumps(table, allow_nan=False)
    assert "nan" in table["rows"][-1]["cells"]


def test_editing_while_a_run_is_on_changes_the_next_run(make: Make, runs: Runs) -> None:
    bench = make()
    press(bench, "train")
    runs.begins(bench)
    study = bench.study
    bench.define.row("lr").text_field.value = "0.1, 0.2, 0.3"
    assert bench.study is study
    assert bench.plan_view.sentence.value == "3 variants in 1 array of 3: differing in lr"
    assert bench.train_view.buttons["train"].tooltip == "Not now: a run is in progress; stop it first"
    assert bench.bar.status == "training 2 variants"


def test_methods_say_why_not(make: Make, runs: Runs) -> None:
    bench = make()
    for method in (bench.pause, bench.resume, bench.stop, bench.check):
        with pytest.raises(StudyError):
            method()
    bench.define.row("lr").text_field.value = "x"
    with pytest.raises(StudyError, match="can't train now: lr: "):
        bench.run()
    bench.define.row("lr").text_field.value = "0.1"
    bench.train()
    with pytest.raises(StudyError, match="a run is in progress"):
        bench.run()


def test_data_that_the_family_can_not_take_is_told_before_the_run(make: Make) -> None:
    bench = make()
    bench.define.family_field.value = "cnn"
    bench.define.data_field.options = ["digits", "wine"]
    bench.define.data_field.value = "wine"
    assert "needs images, and wine is table rows [13]" in bench.define.problem.value
    assert "families for wine: mlp" in bench.define.problem.value
    assert can_be_pressed(bench) == set()
    bench.define.data_field.value = "digits"
    assert bench.define.problem.value == ""


def test_a_check_that_can_not_tell_is_shown_as_neither(make: Make, runs: Runs) -> None:
    bench = make()
    checked = ev.MemberChecked(9.0, 0, 2, {"val_loss": 0.25}, 4.0, equal=False, decided=False)
    bench.results.show_check([checked])
    shown = bench.results.note.value
    assert 'class="hfta-error"' in shown
    assert "#0: can&#x27;t tell whether it equals training alone; largest difference 0.25" in shown
    assert shown.count("tolerance of losses 4, more than the loss itself: check in float64") == 1
    assert check_text(checked) == "can't tell, 0.25 over 2 epochs"
