"""A search on the screen: intervals, its fields, its plan, and how far it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
import pytest
from run_events import run_started
from ui.bench import Make, steps

import hfta_nb as hfta
from hfta_nb import events as ev
from hfta_nb.errors import HftaError, SearchError, StudyError
from hfta_nb.records.history import History
from hfta_nb.study import Study
from hfta_nb.ui import Workbench
from hfta_nb.ui.axis_row import AxisRow
from hfta_nb.ui.leaderboard import table_of
from hfta_nb.ui.run_phase import RunPhase
from hfta_nb.ui.saved_run import arguments_of
from hfta_nb.ui.search_fields import perturb_of
from hfta_nb.ui.train_view import details, progress_text
from hfta_nb.ui.trials import Trials, plan_words, rungs

SPACE = {"lr": hfta.uniform(1e-4, 1e-1, log=True), "width": hfta.integers(8, 32, 8), "activation": ["relu", "gelu"]}


def row_of(name: str, kind: str, text: str) -> AxisRow:
    """The row of an axis with this kind and text."""
    made = AxisRow(name, hfta.family("mlp").specs, lambda: None, lambda _: None, [8 if name == "width" else 0.01])
    made.kind_field.value = kind
    made.text_field.value = text
    return made


def test_a_space_given_in_code_stands_in_the_fields_and_in_the_code_cell(make: Make) -> None:
    bench = make(grid=SPACE, trials=6, slots=3, pruner="asha")
    texts = {row.name: (row.kind, row.text_field.value) for row in bench.define.rows}
    assert texts["lr"] == ("log interval", "0.0001 to 0.1")
    assert texts["width"] == ("integers", "8 to 32 step 8")
    assert [bench.define.fields[n].value for n in ("trials", "slots", "sampler", "pruner")] == ["6", "3", "tpe", "asha"]
    assert bench.define.search.layout.display == ""
    headless = Study(
        "mlp", SPACE, "digits", epochs=4, trials=6, slots=3, pruner="asha", directory=bench.study.directory
    )
    assert [v.config for v in bench.study.variants] == [v.config for v in headless.variants]
    assert bench.study.to_code() == headless.to_code()
    assert repr(bench).endswith("; lr 0.0001 to 0.1 (log) x width 8 to 32 step 8 x 2 activation = 6 trials)")
    assert bench.bar.status == "ready to train 6 trials"


@pytest.mark.parametrize(
    ("name", "kind", "text", "wanted"),
    [
        ("lr", "interval", "1e-3 to 1e-1", hfta.uniform(1e-3, 1e-1)),
        ("lr", "log interval", "1e-4, 1e-1", hfta.uniform(1e-4, 1e-1, log=True)),
        ("lr", "interval", "0.1 to 0.9 step 0.2", hfta.uniform(0.1, 0.9, step=0.2)),
        ("width", "interval", "8..64", hfta.integers(8, 64)),
        ("width", "interval", "8 to 64 step 8", hfta.integers(8, 64, 8)),
        ("width", "log interval", "8 to 64", optuna.distributions.IntDistribution(8, 64, log=True)),
    ],
)
def test_intervals_are_read_as_typed(name: str, kind: str, text: str, wanted: Any) -> None:
    row = row_of(name, kind, text)
    assert (row.values, row.error) == (wanted, "")
    assert type(row.values) is type(wanted)


@pytest.mark.parametrize(
    ("name", "kind", "text", "said"),
    [
        ("lr", "interval", "5 to 3", "the ends are not in order; got '5 to 3'; for example 0.1 to 0.9"),
        ("lr", "log interval", "0 to 1", "no logarithmic interval: low=0"),
        ("lr", "log interval", "1e-3 to 1e-1 step 0.1", "an interval is a first and a last number"),
        ("lr", "interval", "0.1 to", "an interval is a first and a last number"),
        ("lr", "interval", "a to b", '"a" is not a number; for example 0.1 to 0.9'),
        ("lr", "interval", "-1 to 1", "out of bounds; got -1.0"),
        ("lr", "interval", "", "no interval; for example 0.1 to 0.9"),
        ("width", "interval", "8.5 to 64", '"8.5" is not a whole number; for example 8 to 64'),
        ("width", "log interval", "0 to 64", "no logarithmic interval: low=0"),
        ("width", "interval", "64 to 8", "the ends are not in order"),
    ],
)
def test_what_is_no_interval_is_told_beside_its_field(name: str, kind: str, text: str, said: str) -> None:
    row = row_of(name, kind, text)
    assert row.values is None
    assert said in row.error
    assert 'role="alert"' in row.problem.value
    row.text_field.value = "8 to 64"
    assert row.error == ""


def test_an_interval_brings_a_number_of_trials_and_takes_it_away(make: Make) -> None:
    bench = make()
    define, trials = bench.define, bench.define.fields["trials"]
    assert define.search.layout.display == "none"
    define.row("lr").kind_field.value = "log interval"
    assert (define.row("lr").text_field.value, trials.value) == ("0.001 to 0.01", "20")
    assert (define.search.layout.display, define.search.button.disabled) == ("", True)
    assert bench.study.searcher.trials == 20
    trials.value = ""
    assert "a search space needs a number of trials" in bench.planned()
    assert "trials: a search space needs" in define.fields_problem.value
    trials.value = "20"
    define.row("lr").kind_field.value = "list"
    assert (trials.value, define.search.layout.display) == ("", "none")
    assert bench.study.searcher is None
    assert len(bench.study.variants) == 2


def test_a_list_is_searched_where_the_line_is_opened_and_trials_are_typed(make: Make) -> None:
    bench = make(grid={"lr": [1e-3, 1e-2, 1e-1], "seed": [0, 1]})
    search, fields = bench.define.search, bench.define.fields
    search.button.click()
    assert (search.layout.display, fields["slots"].layout.display) == ("", "none")
    fields["trials"].value = "3"
    assert (fields["slots"].layout.display, fields["seeds_by"].layout.display) == ("", "")
    fields["seeds_by"].value, fields["sampler"].value = "bound", "random"
    searcher = bench.study.searcher
    assert (searcher.trials, searcher.seeds_by, searcher.sampler, list(searcher.seeds)) == (
        3,
        "bound",
        "random",
        [0, 1],
    )
    search.button.click()
    assert search.layout.display == "none"
    assert (bench.study.searcher, len(bench.study.variants)) == (None, 6)


@pytest.mark.parametrize(
    ("typed_text", "said"), [("0", "out of bounds"), ("1.5", "not a whole number"), ("x", "not a")]
)
def test_a_wrong_number_of_trials_is_told(make: Make, typed_text: str, said: str) -> None:
    bench = make(trials=4)
    bench.define.fields["trials"].value = typed_text
    assert said in bench.define.fields_problem.value
    assert bench.train_view.buttons["train"].disabled


@pytest.mark.parametrize(
    "options",
    [{"sampler": "tpx"}, {"pruner": "halving"}, {"trials": 0}, {"slots": 0}, {"population": "PBT"}, {"seeds_by": "x"}],
)
def test_wrong_arguments_of_a_search_raise(make: Make, options: dict[str, Any]) -> None:
    with pytest.raises(HftaError):
        make(**{"grid": SPACE, "trials": 4, **options})


def test_an_own_sampler_joins_the_list(make: Make) -> None:
    own = optuna.samplers.RandomSampler(seed=3)
    bench = make(grid=SPACE, trials=2, sampler=own)
    assert bench.study.searcher.sampler is own
    assert "own RandomSampler" in [label for label, _ in bench.define.fields["sampler"].options]
    bench.define.fields["sampler"].value = "qmc"
    assert bench.study.searcher.sampler == "qmc"


def test_the_plan_says_what_the_search_will_do(make: Make) -> None:
    study = Study("mlp", {**SPACE, "seed": [0, 1]}, "digits", epochs=9, trials=6, slots=3, pruner="asha")
    assert plan_words(study) == (
        "6 trials of lr 0.0001 to 0.1 (log), width 8 to 32 step 8 and 2 activation, 3 at a time, proposed by tpe, "
        "pruned by asha after epochs 1 and 3. At most 108 epochs (6 trials, each with 2 members, 9 epochs each)."
    )
    assert rungs(study) == [1, 3]
    bench = make(grid={"lr": [1e-3, 3e-3, 1e-2, 1e-1]}, population=hfta.PBT(2, 0.25, {"lr": (0.8, 1.25)}))
    assert bench.plan_view.search.value == (
        "After epoch 2, in each array, the worst 25% become copies of the best 25%, with lr times 0.8 or 1.25."
    )
    assert plan_words(Study("mlp", {"lr": [1e-3]}, "digits")) == ""


def test_a_simulated_search_takes_all_of_its_trials(make: Make) -> None:
    space = {"lr": [1e-3, 1e-2, 1e-1, 1.0], "optimizer": ["sgd", "adam"]}
    first, all_of_it = (Study("mlp", space, "digits", epochs=2, trials=n, slots=4, sampler="random") for n in (4, 8))
    assert [v.config for v in first.variants] == [v.config for v in all_of_it.variants]
    found = [min(plan.makespan_s for plan in study.simulate(2).plans.values()) for study in (first, all_of_it)]
    assert found[1] == pytest.approx(2 * found[0])


def test_a_population_is_typed_and_given(make: Make) -> None:
    bench = make(grid={"lr": [1e-3, 3e-3, 1e-2, 1e-1]})
    field = bench.define.fields["population"]
    field.kind.value, field.every.value, field.perturb.value = "PBT", "2", "lr*0.8,1.25"
    assert bench.study.rounds.method == hfta.PBT(2, 0.2, {"lr": (0.8, 1.25)})
    field.exploit.value = "0.7"
    assert "exploit: not a number; got '0.7'; accepted: above 0, at most 0.5" in bench.planned()
    field.kind.value, field.every.value, field.pull.value = "Leader", "4", "0.2"
    assert bench.study.leader == hfta.Leader(0.2, every=4)
    assert plan_words(bench.study) == (
        "After every 4 steps, in each array, every member is pulled by 0.2 toward the best by train loss."
    )
    field.groups.value, field.global_pull.value = "2", "0.9"
    assert "pull, global_pull: above 1 together" in bench.planned()
    field.every.value, field.exploit.value = "2", "0.2"
    field.kind.value = "Halving"
    assert bench.study.rounds.method == hfta.Halving(2, 2, {"lr": (0.8, 1.25)})
    field.perturb.value = "width=8,16"
    assert "can&#x27;t be changed while a member trains" in bench.define.fields_problem.value
    given = hfta.PBT(3, 0.5, {"lr": [1e-3, 1e-2], "weight_decay": (0.5, 2.0)})
    assert make(population=given).study.rounds.method is given
    led = hfta.Leader(0.3, 0.2, 5, 2, "val_loss")
    assert make(population=led).study.leader is led
    text = make(population=given).define.fields["population"].perturb.value
    assert perturb_of(text) == given.perturb
    with pytest.raises(StudyError, match="not factors"):
        perturb_of("lr*x")


def test_a_search_trains_as_headless_and_comes_back(make: Make, tmp_path: Path) -> None:
    space = {"lr": SPACE["lr"], "activation": ("relu", "gelu")}
    given: dict[str, Any] = {"epochs": 2, "trials": 4, "slots": 2, "sampler": "random", "pruner": "asha"}
    given |= {"deterministic": True}
    bench = make(grid=space, executor="inline", **given)
    bench.run()
    study = Study("mlp", space, "digits", directory=tmp_path / "headless", device=bench.study.device, **given)
    study.fit(progress=False)
    columns = [*space, "state", "val_loss"]
    assert bench.study.results()[columns].equals(study.results()[columns])
    assert bench.state == "finished"
    assert Trials(4, 1, 2).counts(bench.history) in bench.train_view.progress.facts["details"]
    assert bench.train_view.progress.facts["text"].startswith("4 of 4 trials, ")
    bench.results.figures.kind.value = "best_so_far"
    assert bench.results.figures.note.value == ""
    assert bytes(bench.results.figures.image.value).startswith(b"\x89PNG")
    back = Workbench.reattach(bench.study.directory, executor="inline")
    assert back.define.row("lr").values == space["lr"]
    assert back.define.definition().options["trials"] == 4
    assert arguments_of(back.study)["grid"] == space
    assert back._planner.draft.to_code() == bench._planner.draft.to_code()
    back.close()


def searched(states: list[str], **more: Any) -> History:
    """A history whose members have these states."""
    history = History()
    history.add(run_started({"lr": [10.0**-i for i in range(len(states))]}, epochs=4))
    for number, state in enumerate(states):
        history.add(ev.MemberChanged(2.0, number, state))
    history.add(steps(1.0, len(states)))
    return history


def test_progress_counts_trials() -> None:
    history = searched([ev.COMPLETE, ev.PRUNED, ev.RUNNING, ev.WAITING])
    trials = Trials(8, 1, 4)
    assert trials.counts(history) == "trials: 1 done, 1 pruned, 1 running, 1 waiting for a slot, 4 to come"
    assert progress_text(history, RunPhase.RUNNING, trials) == "2 of 8 trials, 0:41, at most 1:31 left"
    assert trials.counts(history) in details(history, RunPhase.RUNNING, trials=trials)
    history.add(ev.RunChanged(9.0, ev.STOPPED))
    history.add(ev.MemberChanged(9.0, 2, ev.STOPPED, ev.WITH_RUN))
    assert trials.counts(history).endswith("1 stopped, 4 not begun")
    assert trials.progress(history) == "2 of 8 trials"
    history = searched([ev.COMPLETE, ev.PRUNED, ev.RUNNING, ev.WAITING])
    assert Trials(2, 2, 4).counts(history) == "trials: 1 pruned, 1 running"  # members of a trial follow one another


def test_a_row_says_of_what_it_is_a_copy() -> None:
    history = searched([ev.RUNNING] * 3)
    assert "copy of" not in [c["label"] for c in table_of(history)["columns"]]
    history.add(ev.MemberEdited(3.0, 2, "copied", 0, True, 2, 46, {"lr": 0.5}))
    table = table_of(history)
    place = [c["label"] for c in table["columns"]].index("copy of")
    assert {row["id"]: row["cells"][place] for row in table["rows"]} == {0: "", 1: "", 2: "#0 at ep 2"}


def test_perturb_needs_a_name() -> None:
    with pytest.raises((StudyError, SearchError)):
        perturb_of("0.8, 1.25")
