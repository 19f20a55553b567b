"""What users of Optuna do by habit: enqueue trials, prune within the space, share a storage, call back, stop."""

from __future__ import annotations

import ast
import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from torch import nn

import hfta_nb as hfta
from hfta_nb import events as ev
from hfta_nb.errors import SearchError, SearchWarning, StudyError

LR = hfta.uniform(1e-4, 1e-1, log=True)


def study(directory: Path, space: Any = None, **given: Any) -> hfta.Study:
    given = {"epochs": 1, "trials": 5, "slots": 2, "sampler": "random", "seed": 1} | given
    space = space or {"lr": LR, "width": [8, 16]}
    return hfta.Study(
        given.pop("family", "mlp"), space, "iris", directory=directory, device="cpu", strategy="fixed", **given
    )


class Net(nn.Sequential):
    def __init__(self, hidden: tuple[int, ...] = (4,), scale: float | None = None) -> None:
        sizes = [4, *hidden, 3]
        super().__init__(*(nn.Linear(a, b) for a, b in itertools.pairwise(sizes)))
        self.scale = scale or 1.0


def states(made: hfta.Study) -> list[str]:
    return [trial.state.name for trial in made.optuna.trials]


def test_enqueued_trials_are_the_first(tmp_path: Path) -> None:
    made = study(tmp_path / "run")
    assert len(made.variants) == 2  # those that would train first
    made.optuna.enqueue_trial({"lr": 0.05, "width": 8})
    made.optuna.enqueue_trial({"width": 16})
    made.fit(progress=False)
    assert states(made) == ["COMPLETE"] * 5
    assert made.member(0).config == {"lr": 0.05, "width": 8}
    assert made.member(1).config["width"] == 16
    assert [v.config for v in made.variants] == [t.params for t in made.optuna.trials]
    assert made.results()["trial"].sort_index().tolist() == list(range(5))
    assert made.check([0])["equal"].all()


def test_what_was_enqueued_is_there_again_when_a_run_goes_on(tmp_path: Path) -> None:
    made = study(tmp_path / "run", epochs=3)
    made.optuna.enqueue_trial({"lr": 0.05, "width": 8})
    for event in made.run():
        if isinstance(event, ev.EpochDone):
            break
    again = study(tmp_path / "run", epochs=3)  # made anew by the same code
    again.fit(resume=True, progress=False)
    assert states(again) == ["COMPLETE"] * 5
    assert again.member(0).config == {"lr": 0.05, "width": 8}
    assert hfta.Study.load(tmp_path / "run").member(0).config == {"lr": 0.05, "width": 8}


def test_a_trial_that_is_enqueued_during_a_run_is_next(tmp_path: Path) -> None:
    made = study(tmp_path / "run", slots=1)
    run = made.run()
    next(run)
    made.optuna.enqueue_trial({"lr": 0.05, "width": 8})
    list(run)
    assert made.member(1).config == {"lr": 0.05, "width": 8}
    assert states(made) == ["COMPLETE"] * 5


def test_variants_that_were_added_before_keep_what_they_are(tmp_path: Path) -> None:
    made = study(tmp_path / "run")
    made.add({"lr": 0.02, "width": 8})
    made.optuna.enqueue_trial({"lr": 0.05, "width": 16})
    made.fit(progress=False)
    assert made.member(0).config == {"lr": 0.05, "width": 16}
    assert made.member(2).config == {"lr": 0.02, "width": 8}
    assert made.results()["trial"][2] == -1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"lr": 0.05, "widht": 8}, "enqueue_trial: an enqueued trial has an axis that is not searched; got 'widht'"),
        ({"width": 12}, "enqueue_trial: width: an enqueued value is not in the space; got 12; accepted: 8, 16"),
        ({"lr": 7.0}, "enqueue_trial: lr: an enqueued value is not in the space; got 7.0; accepted: 0.0001 to 0.1"),
    ],
)
def test_an_enqueued_trial_that_is_none(given: dict[str, Any], message: str, tmp_path: Path) -> None:
    made = study(tmp_path / "run")
    made.optuna.enqueue_trial(given)
    with pytest.raises(SearchError, match=message):
        made.fit(progress=False)
    assert not made.store.has_events
    made.fit(progress=False)  # it has failed, and the others train
    assert states(made) == ["FAIL"] + ["COMPLETE"] * 5


def test_an_enqueued_trial_that_can_not_be_trained_is_refused(tmp_path: Path) -> None:
    def space(trial: optuna.Trial) -> dict[str, Any]:
        return {"width": trial.suggest_categorical("width", [8, 16, -3])}

    seeds = (n for n in range(99) if optuna.samplers.RandomSampler(n)._rng.rng.choice(3) < 2)
    made = study(tmp_path / "run", space, seed=next(seeds), slots=1)
    made.optuna.enqueue_trial({"width": -3})
    made.fit(progress=False)
    assert states(made)[0] == "FAIL"
    assert made.searcher is not None
    assert "width" in made.searcher.refusals[0]


def test_one_that_is_enqueued_wrongly_during_a_run_costs_nothing(tmp_path: Path) -> None:
    made = study(tmp_path / "run", slots=1, trials=3)
    run = made.run()
    next(run)
    made.optuna.enqueue_trial({"widht": 8})
    with pytest.warns(SearchWarning, match="not trained: enqueue_trial: an enqueued trial has an axis"):
        list(run)
    assert states(made) == ["COMPLETE", "FAIL", "COMPLETE", "COMPLETE"]


HIDDEN = {"hidden": [(4,), (4, 8)], "scale": [None, 2.0]}


@pytest.mark.only(sampler=["tpe", "grid"])
@pytest.mark.parametrize("sampler", ["tpe", "random", "grid", "qmc"])
def test_choices_come_back_as_themselves(sampler: str, tmp_path: Path) -> None:
    made = study(tmp_path / "run", HIDDEN, sampler=sampler, trials=3, family=Net)
    if sampler != "grid":
        made.optuna.enqueue_trial({"hidden": [4, 8], "scale": None})
    made.fit(progress=False)
    assert {trial.params["hidden"] for trial in made.optuna.trials} <= {(4,), (4, 8)}
    assert {trial.params["scale"] for trial in made.optuna.trials} <= {None, 2.0}
    assert made.optuna.best_params == made.optuna.best_trial.params
    if sampler != "grid":
        assert made.member(0).config == {"hidden": (4, 8), "scale": None}
    again = hfta.Study.load(tmp_path / "run", family=Net)
    assert [t.params for t in again.optuna.trials] == [t.params for t in made.optuna.trials]
    assert [t.distributions for t in again.optuna.trials] == [t.distributions for t in made.optuna.trials]
    larger = study(tmp_path / "run", HIDDEN, sampler=sampler, trials=4, family=Net)
    larger.fit(resume=True, progress=False)
    assert len(larger.optuna.trials) == 4


def test_a_list_stays_a_list(tmp_path: Path) -> None:
    made = study(tmp_path / "run", {"hidden": [[4], [4, 8]]}, trials=2, family=Net)
    made.fit(progress=False)
    assert made.optuna.best_params["hidden"] in ([4], [4, 8])


def test_the_spaces_function_prunes(tmp_path: Path) -> None:
    def space(trial: optuna.Trial) -> dict[str, Any]:
        if trial.number in (0, 3):
            raise optuna.TrialPruned("odd")
        return {"lr": trial.suggest_float("lr", 1e-3, 1e-1)}

    made = study(tmp_path / "run", space)
    made.fit(progress=False)
    assert states(made) == ["PRUNED", "COMPLETE", "COMPLETE", "PRUNED", "COMPLETE"]
    assert len(made.results()) == 3
    assert made.searcher is not None
    assert made.searcher.refusals == {0: "odd", 3: "odd"}
    again = study(tmp_path / "run", space, trials=6)
    again.fit(resume=True, progress=False)
    assert states(again) == ["PRUNED", "COMPLETE", "COMPLETE", "PRUNED", "COMPLETE", "COMPLETE"]


def test_a_space_that_prunes_all(tmp_path: Path) -> None:
    def space(trial: optuna.Trial) -> dict[str, Any]:
        raise optuna.TrialPruned

    with pytest.raises(SearchError, match="none of the trials can be trained: pruned by the search space's function"):
        study(tmp_path / "run", space).fit(progress=False)


def test_an_error_in_the_space_is_the_users(tmp_path: Path) -> None:
    def space(trial: optuna.Trial) -> dict[str, Any]:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        study(tmp_path / "run", space)


@pytest.mark.only(sampler="tpe")
@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_no_configuration_is_tried_twice(sampler: str, tmp_path: Path) -> None:
    axes = {"width": [4, 8], "lr": [1e-3, 1e-2], "batch_size": hfta.integers(50, 100, 50)}
    made = study(tmp_path / "run", axes, trials=20, sampler=sampler, skip_duplicates=True)
    made.fit(progress=False)
    tried = [tuple(v.config.values()) for v in made.variants]
    assert len(tried) == len(set(tried)) == 8
    assert made.history.state == ev.COMPLETE
    repeated = study(tmp_path / "again", axes, trials=20, sampler=sampler)
    repeated.fit(progress=False)
    assert len(repeated.variants) == 20


@pytest.mark.filterwarnings("ignore:BruteForceSampler is experimental")
@pytest.mark.parametrize("kind", ["GridSampler", "BruteForceSampler"])
def test_samplers_of_all_points_end_the_search(kind: str, tmp_path: Path) -> None:
    axes = {"width": [4, 8], "lr": [1e-3, 1e-2]}
    sampler = optuna.samplers.GridSampler(axes) if kind == "GridSampler" else optuna.samplers.BruteForceSampler()
    made = study(tmp_path / "run", axes, trials=9, slots=1, sampler=sampler)
    made.fit(progress=False)
    assert len(made.variants) == 4
    assert made.history.state == ev.COMPLETE


def test_what_an_enqueued_trial_leaves_open_is_drawn_anew_for_each(tmp_path: Path) -> None:
    made = study(tmp_path / "run")
    for _ in range(3):
        made.optuna.enqueue_trial({"width": 8})
    made.fit(progress=False)
    assert len({trial.params["lr"] for trial in made.optuna.trials}) == 5


def test_attributes_of_the_study_are_kept(tmp_path: Path) -> None:
    made = study(tmp_path / "run", {"lr": np.array([0.01, 0.1]), "width": (8, 16)}, trials=2)
    made.optuna.set_user_attr("author", "me")
    made.fit(progress=False, on_trial=lambda of, trial: of.set_user_attr(f"n{trial.number}", trial.value))
    assert made.optuna.user_attrs.keys() == {"author", "n0", "n1"}
    assert hfta.Study.load(tmp_path / "run").optuna.user_attrs == made.optuna.user_attrs


def test_duplicates_of_a_function_end_the_search(tmp_path: Path) -> None:
    made = study(tmp_path / "run", lambda trial: {"width": trial.suggest_categorical("width", [4, 8])}, trials=9,
                 skip_duplicates=True)  # fmt: skip
    made.fit(progress=False)
    assert sorted(v.config["width"] for v in made.variants) == [4, 8]


@pytest.mark.skipif(not hasattr(optuna.Trial, "set_constraint"), reason="Optuna 4 has none")
def test_a_trial_that_violates_a_constraint_is_not_the_best(tmp_path: Path) -> None:
    def space(trial: Any) -> dict[str, Any]:
        width = trial.suggest_categorical("width", [4, 64])
        trial.set_constraint("width", width - 32)
        return {"width": width, "lr": 1e-2 if width == 64 else 1e-5}

    made = study(tmp_path / "run", space, trials=6, epochs=4)
    made.fit(progress=False)
    table = made.results()
    assert set(table["width"]) == {4, 64}
    assert (table["feasible"] == (table["width"] == 4)).all()
    assert table.iloc[0]["width"] == 64
    assert made.best().config["width"] == 4
    assert made.optuna.best_params == {"width": 4}
    assert study(tmp_path / "run", space, trials=6, epochs=4).best().config["width"] == 4  # as it is on disk
    only = study(tmp_path / "none", lambda trial: (trial.set_constraint("c", 1.0), {"lr": 1e-3})[1], trials=1)
    only.fit(progress=False)
    with pytest.raises(StudyError, match="no member is feasible"):
        only.best()


def test_callbacks_follow_each_trial_and_stop_the_search(tmp_path: Path) -> None:
    seen = []

    def callback(trials: optuna.Study, trial: optuna.trial.FrozenTrial) -> None:
        seen.append((trial.number, trial.state.name, trial.value))
        if trial.number == 2:
            trials.stop()

    made = study(tmp_path / "run", slots=1, trials=6)
    made.fit(on_trial=callback, progress=False)
    assert [number for number, *_ in seen] == [0, 1, 2]
    assert seen == [(t.number, t.state.name, t.value) for t in made.optuna.trials]
    assert made.history.state == ev.COMPLETE
    with pytest.raises(StudyError, match="on_trial: can't be called with an Optuna study and a trial"):
        study(tmp_path / "b").fit(on_trial=3)


def test_a_time_limit_ends_the_asking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("hfta_nb.search.asking.time.monotonic", lambda: now[0])
    made = study(tmp_path / "run", slots=1, trials=6, timeout=10)
    for event in made.run():
        if isinstance(event, ev.MemberChanged) and event.variant == 1 and event.state == ev.RUNNING:
            now[0] = 10.5
    assert states(made) == ["COMPLETE"] * 2
    assert made.history.state == ev.COMPLETE
    made.fit(resume=True, progress=False)  # ten seconds more
    assert states(made) == ["COMPLETE"] * 6
    with pytest.raises(StudyError, match="timeout: not a time"):
        study(tmp_path / "b", timeout=-1)
    with pytest.raises(StudyError, match="timeout: belongs to a search"):
        hfta.Study("mlp", {"lr": [0.1]}, "iris", timeout=5, directory=tmp_path / "c")


@pytest.mark.filterwarnings("ignore:Choices for a categorical")  # where the test itself reads the trials
def test_a_storage_keeps_the_trials_and_what_was_there(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'trials.db'}"
    space = {"lr": LR, "hidden": [(4,), (4, 8)]}
    before = optuna.create_study(storage=url, study_name="mine", direction="maximize")
    before.add_trial(optuna.trial.create_trial(value=0.1, params={}, distributions={}))
    before.enqueue_trial({"lr": 0.05, "hidden": (4, 8)})
    made = study(tmp_path / "a", space, storage=url, name="mine", sampler="tpe", family=Net)
    made.fit(progress=False)
    assert made.member(0).config == {"lr": 0.05, "hidden": (4, 8)}
    there = optuna.load_study(storage=url, study_name="mine")
    assert [t.state.name for t in there.trials] == ["COMPLETE"] * 6
    assert there.best_value == pytest.approx(made.best().metrics[made.monitor])
    assert {tuple(t.params["hidden"]) for t in there.trials[1:]} <= set(space["hidden"])
    assert not (tmp_path / "a" / "optuna.log").exists()
    again = hfta.Study.load(tmp_path / "a", family=Net)
    assert again.results().equals(made.results())
    more = study(tmp_path / "a", space, storage=url, name="mine", sampler="tpe", family=Net, trials=7)
    more.fit(resume=True, progress=False)
    assert len(optuna.load_study(storage=url, study_name="mine").trials) == 8
    assert "storage='sqlite:///" in more.to_code()


def test_a_storage_is_an_object_as_well(tmp_path: Path) -> None:
    file = optuna.storages.journal.JournalFileBackend(str(tmp_path / "trials.log"))
    storage = optuna.storages.JournalStorage(file)
    made = study(tmp_path / "a", storage=storage, name="mine")
    made.fit(progress=False)
    assert len(optuna.load_study(storage=storage, study_name="mine").trials) == 5


@pytest.mark.parametrize("storage", ["nosql://nowhere", 7, "sqlite:////no/such/place/trials.db", "mysql://me:word@x/y"])
def test_a_storage_that_is_none(storage: Any, tmp_path: Path) -> None:
    with pytest.raises(SearchError, match=r"storage: can't be opened .*accepted: a URL such as sqlite") as found:
        study(tmp_path / "a", storage=storage)
    assert "word" not in str(found.value)


def test_a_storage_of_other_objectives(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'trials.db'}"
    optuna.create_study(storage=url, study_name="mine", direction="minimize")
    with pytest.raises(SearchError, match=r"storage: the study 'mine' there has other objectives; got .*minimize"):
        study(tmp_path / "a", storage=url, name="mine")


CHILD = """
import sys
import hfta_nb as hfta
made = hfta.Study("mlp", {"lr": hfta.uniform(1e-4, 1e-1, log=True)}, "iris", directory=sys.argv[1], device="cpu",
                  epochs=2, trials=4, slots=2, storage=sys.argv[2], name="both", seed=1, strategy="fixed")
made.fit(progress=False)
print(sorted(t.number for t in made.optuna.trials if t.number in set(made.searcher.numbers.values())))
"""


@pytest.mark.long
def test_two_processes_search_in_one_storage(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'trials.db'}"
    optuna.create_study(storage=url, study_name="both", direction="maximize")  # SQLite can't be created twice at once
    command = [sys.executable, "-c", CHILD]
    children = [
        subprocess.Popen([*command, str(tmp_path / name), url], stdout=subprocess.PIPE, text=True) for name in "ab"
    ]
    told = [child.communicate(timeout=300)[0] for child in children]
    assert [child.returncode for child in children] == [0, 0]
    numbers = [number for one in told for number in ast.literal_eval(one.strip().splitlines()[-1])]
    assert sorted(numbers) == list(range(8))
    trials = optuna.load_study(storage=url, study_name="both").trials
    assert [t.state.name for t in trials] == ["COMPLETE"] * 8
    assert len({t.params["lr"] for t in trials}) == 8
