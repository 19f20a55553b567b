"""Weights that a study keeps beside the best ones: those with which a member ended, and those at rungs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
import pytest
import torch
from search.leaving import left
from search.test_slots import study

import hfta_nb as hfta
from hfta_nb import events as ev
from hfta_nb.errors import StoreError, StudyError
from hfta_nb.search import rungs_of

ALL = ["best", "last", "rungs"]


def value(made: hfta.Study, variant: int, at: Any) -> float:
    """A member's validation loss with its weights of a moment."""
    module = made.member(variant).module(at).double()
    x, y = made.data.floats(made.data.x_validation, torch.float64).double(), made.data.y_validation
    with torch.no_grad():
        return float(torch.nn.functional.cross_entropy(module(x), y))


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> hfta.Study:
    made = study(tmp_path_factory.mktemp("keeping") / "run", keep_checkpoints=ALL)
    list(made.run())
    return made


def test_weights_are_kept_at_each_rung_and_at_the_end(ran: hfta.Study) -> None:
    """The pruner decides after epochs 1 and 3; pruned trials have the weights with which they were given up."""
    found = ran.history.members
    assert {m.state for m in found.values()} == {ev.COMPLETE, ev.PRUNED}
    for variant, member in found.items():
        losses = member.curves["val_loss"].values
        rungs = [epoch for epoch in (1, 3) if epoch <= len(losses)]
        assert ran.member(variant).checkpoints == ["best", *rungs, "last"]
        for at, epoch in [*zip(rungs, rungs, strict=True), ("last", len(losses))]:
            assert value(ran, variant, at) == pytest.approx(losses[epoch - 1], abs=1e-12)
        assert value(ran, variant, "best") == pytest.approx(losses[member.best_epoch - 1], abs=1e-12)


def test_no_more_files_than_moments(ran: hfta.Study) -> None:
    # The checkpoint before the last one has files of its own, of the same names and with other numbers.
    files = {file.name.partition(".")[0] for file in (ran.directory / "weights").iterdir()}
    assert len(files) == sum(len(ran.member(variant).checkpoints) for variant in ran.history.members)
    assert len(files) <= len(ran.history.members) * (len(rungs_of("asha", ran.epochs)) + 2)


def test_what_is_not_kept_is_named(ran: hfta.Study, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"these weights are not kept.*got 2.*'best', 1"):
        ran.member(0).module(at=2)
    made = study(tmp_path / "run", epochs=1, trials=2)
    list(made.run())
    assert made.member(0).checkpoints == ["best"]
    with pytest.raises(StoreError, match="keep_checkpoints="):
        made.member(0).module(at="last")


@pytest.mark.parametrize("after", [2, 5])
@pytest.mark.only(after=[5])
def test_a_run_that_was_left_keeps_the_same(ran: hfta.Study, tmp_path: Path, after: int) -> None:
    again = left(study(tmp_path / "run", keep_checkpoints=ALL), after)
    assert again.keep_checkpoints == ("best", "last", "rungs")
    list(again.run(resume=True))
    for variant in ran.history.members:
        mine, theirs = again.member(variant), ran.member(variant)
        assert mine.checkpoints == theirs.checkpoints
        for at in theirs.checkpoints:
            pairs = zip(mine.module(at).parameters(), theirs.module(at).parameters(), strict=True)
            assert all(torch.equal(*pair) for pair in pairs)


def test_a_population_keeps_what_its_rounds_replace(tmp_path: Path) -> None:
    grid = {"lr": [1e-3, 1e-2, 0.1, 0.3]}
    how: dict[str, Any] = {"population": hfta.Halving(every=2), "validate_every": 2, "dtype": "float64"}
    made = hfta.Study(
        "mlp", grid, "iris", epochs=4, device="cpu", directory=tmp_path / "run", keep_checkpoints=ALL, **how
    )
    list(made.run())
    assert {edit.how for edit in made.history.edits} == {"copied"}
    for variant, member in made.history.members.items():
        curve = member.curves["val_loss"]
        assert made.member(variant).checkpoints == ["best", 2, "last"]
        assert curve.epochs == [2, 4]
        assert value(made, variant, 2) == pytest.approx(curve.values[0], abs=1e-12)
        assert value(made, variant, "last") == pytest.approx(curve.values[1], abs=1e-12)


PRUNERS = optuna.pruners


@pytest.mark.parametrize(
    ("pruner", "epochs", "rungs"),
    [
        ("asha", 28, [1, 3, 9, 27]),
        ("asha", 27, [1, 3, 9]),
        ("hyperband", 27, [1, 3, 9]),
        ("median", 27, []),
        ("patient", 27, []),
        (lambda: PRUNERS.SuccessiveHalvingPruner(2, 4, 1), 40, [8, 32]),
        (lambda: PRUNERS.SuccessiveHalvingPruner(), 40, []),
        (lambda: PRUNERS.HyperbandPruner(2, 16, 2), 16, [2, 4, 8]),
        (lambda: PRUNERS.PatientPruner(PRUNERS.SuccessiveHalvingPruner(1, 2), 3), 5, [1, 2, 4]),
    ],
)
@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_the_rungs_of_pruners(pruner: Any, epochs: int, rungs: list[int]) -> None:
    assert rungs_of(pruner if isinstance(pruner, str) else pruner(), epochs) == rungs


def test_a_rung_waits_for_the_next_validation(tmp_path: Path) -> None:
    made = study(tmp_path / "run", epochs=12, validate_every=2, keep_checkpoints=["best", "rungs"])
    assert made.settings().rungs == {2, 4, 10}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["worst"], "not known"),
        (3, "not known"),
        (["last"], "the best weights are always kept"),
    ],
)
def test_what_can_not_be_kept(tmp_path: Path, given: Any, words: str) -> None:
    with pytest.raises(StudyError, match=words):
        study(tmp_path / "run", keep_checkpoints=given)


class Unmarked(PRUNERS.SuccessiveHalvingPruner):
    """As of a release that does not note at which rungs a trial was."""

    def prune(self, study: Any, trial: Any) -> bool:
        return False


def test_a_pruner_that_does_not_say_where_its_rungs_are_has_none(tmp_path: Path) -> None:
    assert rungs_of(Unmarked(1, 3), 27) == []
    with pytest.raises(StudyError, match=r"nothing decides at rungs.*numbers for min_resource"):
        study(tmp_path / "run", pruner=Unmarked(1, 3), keep_checkpoints=ALL)


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_a_wrapped_pruner_of_another_name_has_none() -> None:
    patient = PRUNERS.PatientPruner(PRUNERS.SuccessiveHalvingPruner(1, 2), 3)
    vars(patient)["_inner"] = vars(patient).pop("_wrapped_pruner")
    assert rungs_of(patient, 9) == []


def test_a_pruner_is_not_changed_by_asking_for_its_rungs() -> None:
    pruner = PRUNERS.HyperbandPruner(1, 9, 3)
    before = str(vars(pruner))
    assert rungs_of(pruner, 9) == [1, 3]
    assert str(vars(pruner)) == before


@pytest.mark.parametrize("pruner", ["none", "median", PRUNERS.SuccessiveHalvingPruner()])
def test_what_has_no_rungs_is_refused(tmp_path: Path, pruner: Any) -> None:
    with pytest.raises(StudyError, match="nothing decides at rungs"):
        study(tmp_path / "run", pruner=pruner, keep_checkpoints=ALL)
