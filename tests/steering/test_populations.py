"""Members that become copies of others while they train."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from steering.scripted import Script, equal, made

import hfta_nb as hfta
from hfta_nb import events as ev
from hfta_nb.errors import GridError, HftaError, SearchError, StudyError
from hfta_nb.search import Rounds
from hfta_nb.search.grid import AxisSpec

LRS = {"lr": [1e-5, 1e-3, 1e-2, 3e-2]}
PBT = hfta.PBT(every=1, exploit=0.5, perturb={"lr": (0.8, 1.25), "weight_decay": [0.0, 1e-3]})


def rounds(method: Any, **specs: Any) -> Rounds:
    known = {"lr": AxisSpec("lr", "float", low=0.0), "beta1": AxisSpec("beta1", "float", low=0.0, high=1.0)}
    return Rounds(method, known | {"step_size": AxisSpec("step_size", "int", low=1)}, 0)


def test_the_worst_become_copies_of_the_best() -> None:
    """As Jaderberg et al. have it: of the worst fifth each takes one of the best fifth."""
    method = hfta.PBT(every=2, exploit=0.2, perturb={"lr": (0.5, 2.0)})
    values = {v: float(v) for v in range(10)}
    rows = {v: {"lr": 10.0 + v} for v in values}
    found = rounds(method).decide(2, values, rows, maximize=True)
    assert [target for target, _, _ in found] == [1, 0]
    assert {source for _, source, _ in found} <= {8, 9}
    for _, source, changes in found:
        assert changes["lr"] / rows[source]["lr"] in (0.5, 2.0)
    assert [t for t, _, _ in rounds(method).decide(2, values, rows, maximize=False)] == [8, 9]
    assert rounds(method).decide(3, values, rows, maximize=True) == []
    assert found == rounds(method).decide(2, values, rows, maximize=True)
    assert rounds(method).decide(2, {0: 1.0, 1: 2.0}, rows, maximize=True) == []  # a fifth of two is none


def test_what_is_not_finite_is_worst_and_copied_by_nobody() -> None:
    method = hfta.PBT(exploit=0.5)
    values = {0: float("nan"), 1: 1.0, 2: float("inf"), 3: 2.0}
    found = rounds(method).decide(1, values, {v: {} for v in values}, maximize=False)
    assert {t for t, _, _ in found} == {0, 2}
    assert {s for _, s, _ in found} <= {1, 3}
    lost = dict.fromkeys(values, float("nan"))
    assert rounds(method).decide(1, lost, {v: {} for v in values}, maximize=False) == []


def test_half_of_the_members_go_on_in_all_places() -> None:
    values = {v: float(v) for v in range(5)}
    found = rounds(hfta.Halving(every=1)).decide(1, values, {v: {} for v in values}, maximize=False)
    assert [(t, s) for t, s, _ in found] == [(3, 0), (4, 1)]
    third = rounds(hfta.Halving(every=1, factor=3)).decide(1, values, {v: {} for v in values}, maximize=False)
    assert [(t, s) for t, s, _ in third] == [(2, 0), (3, 1), (4, 0)]


def test_values_stay_within_the_bounds_of_their_axis() -> None:
    method = hfta.Halving(perturb={"beta1": (1.5, 1.5), "step_size": (0.1, 0.1), "lr": [7.0]})
    [(_, _, changes)] = rounds(method).decide(
        1, {0: 1.0, 1: 2.0}, {v: {"beta1": 0.9, "step_size": 3, "lr": 1.0} for v in (0, 1)}, maximize=False
    )
    assert changes == {"beta1": 1.0, "step_size": 1, "lr": 7.0}


@pytest.mark.each
@pytest.mark.parametrize("options", [{}, {"lr_scheduler": "cosine"}, {"optimizer": "sgd", "momentum": 0.5}])
def test_every_member_equals_its_twin_that_was_copied_over(tmp_path: Path, options: dict[str, Any]) -> None:
    study = made(tmp_path, 4, LRS, population=PBT, **options)
    list(study.run())
    copied = [e for e in study.history.edits if e.how == "copied"]
    assert len(copied) == 6  # two in each of three rounds: none after the last epoch
    assert {e.epoch for e in copied} == {1, 2, 3}
    assert equal(study)
    assert list(study.lineage()["how"]) == ["copied"] * 6
    target = copied[-1].variant
    assert study.history.members[target].config["lr"] == copied[-1].changes["lr"]


def test_weights_of_a_copy_are_averaged_as_those_of_its_source(tmp_path: Path) -> None:
    rows = [{"lr": lr, "ema_decay": decay} for lr, decay in zip(LRS["lr"], (0.2, 0.4, 0.6, 0.8), strict=True)]
    study = made(tmp_path, 3, rows, population=PBT)
    list(study.run())
    assert any("ema_decay" in edit.changes for edit in study.history.edits)
    assert equal(study)


def test_a_population_that_is_resumed_decides_the_same(tmp_path: Path) -> None:
    whole = made(tmp_path / "whole", 4, LRS, population=PBT)
    list(whole.run())
    cut = made(tmp_path / "cut", 4, LRS, population=PBT)
    list(cut.run(Script({9: lambda c: c.stop()})))
    rest = hfta.Study.load(tmp_path / "cut", family=whole.family)
    assert rest.rounds == whole.rounds
    list(rest.run(resume=True))
    assert rest.lineage().equals(whole.lineage())
    for id, member in whole.history.members.items():
        assert rest.history.members[id].curves["val_loss"].values == member.curves["val_loss"].values


@pytest.mark.long
def test_another_seed_explores_otherwise(tmp_path: Path) -> None:
    found = []
    for seed in (0, 1):
        study = made(tmp_path / str(seed), 3, LRS, population=PBT, seed=seed)
        list(study.run())
        found.append([e.changes for e in study.history.edits])
    assert found[0] != found[1]


def test_members_of_unlike_arrays_are_populations_of_their_own(tmp_path: Path) -> None:
    grid = [{"lr": lr, "width": width} for width in (6, 8) for lr in (1e-5, 1e-2)]
    study = made(tmp_path, 2, grid, padding="never", population=PBT)
    list(study.run())
    group = {m.id: m.group for m in study.history.members.values()}
    assert len(study.history.edits) == 2
    assert all(group[e.variant] == group[e.parent or 0] for e in study.history.edits)
    assert equal(study)


def test_a_pinned_member_is_not_replaced(tmp_path: Path) -> None:
    study = made(tmp_path, 3, LRS, population=PBT)
    list(study.run(Script({0: lambda c: [c.pin(i) for i in range(4)]})))
    assert not study.history.edits


def test_members_that_train_alone_have_no_population(tmp_path: Path) -> None:
    study = made(tmp_path, 2, LRS, population=PBT, serial=True)
    list(study.run())
    assert not study.history.edits
    assert study.history.count(ev.COMPLETE) == 4


@pytest.mark.parametrize(
    ("make", "kind", "words"),
    [
        (lambda p: made(p, population=3), StudyError, "not a population method"),
        (lambda p: made(p, population=hfta.PBT(perturb={"width": (1.0,)})), StudyError, "can't be changed"),
        (lambda p: made(p, population=hfta.PBT(perturb={"ler": (1.0,)})), GridError, "unknown axis"),
        (lambda p: made(p, population=hfta.PBT(perturb={"nesterov": (2.0,)})), StudyError, "can't be multiplied"),
        (lambda p: made(p, population=hfta.PBT(perturb={"lr": ["fast"]})), GridError, "not a number"),
        (lambda p: made(p, population=hfta.PBT(every=3), validate_every=2), StudyError, "validation"),
        (lambda p: hfta.PBT(every=0), SearchError, "number of epochs"),
        (lambda p: hfta.PBT(exploit=0.6), SearchError, "share"),
        (lambda p: hfta.PBT(perturb={"lr": ()}), SearchError, "not factors"),
        (lambda p: hfta.PBT(perturb={"lr": (0.0,)}), SearchError, "not factors"),
        (lambda p: hfta.PBT(perturb=3), SearchError, "not axes"),
        (lambda p: hfta.Halving(factor=1), SearchError, "number of members"),
    ],
)
def test_what_is_no_population_says_so(tmp_path: Path, make: Any, kind: type[HftaError], words: str) -> None:
    with pytest.raises(kind, match=words):
        make(tmp_path)


def test_the_code_of_a_study_has_its_population(tmp_path: Path) -> None:
    study = made(tmp_path, population=PBT)
    assert "population=hfta.PBT(every=1, exploit=0.5, perturb={'lr': (0.8, 1.25)," in study.to_code()
