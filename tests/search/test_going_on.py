"""Searches over widths, depths, dropout and optimizers end, and go on: what arrays recompose is rebuilt by members."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from search.leaving import left
from search.random_operations import accounted_for, differences, net
from search.test_slots import curves
from steering.twins import CLASSES, FEATURES, data
from torch import nn

import hfta_nb as hfta
from hfta_nb import events as ev
from hfta_nb.engine.array.access import fuse_preallocated
from hfta_nb.errors import StoreWarning

LR = hfta.uniform(1e-3, 3e-2, log=True)


def search(directory: Path, space: dict[str, Any], family: Any = net, **given: Any) -> hfta.Study:
    how: dict[str, Any] = {"batch_size": 16, "dtype": "float64", "device": "cpu", "sampler": "random", "seed": 1}
    how |= {"strategy": "fixed", "verify": "never", "epochs": 2, "trials": 4, "slots": 3}
    return hfta.Study(family, {"lr": LR, **space}, data(), directory=directory, **(how | given))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.only(seed=[1, 4])
def test_a_search_over_widths_and_dropout_ends(tmp_path: Path, seed: int) -> None:
    """Members without dropout have fewer modules: their layers have other numbers in the sequence."""
    space = {"width": [4, 8], "p": [0.0, 0.2, 0.5]}
    made = search(tmp_path / "run", space, pruner="asha", seed=seed, trials=8, epochs=3)
    list(made.run())
    assert accounted_for(made, 8)
    assert max(differences(made).values()) < 1e-10


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.only(seed=[1, 3])
def test_a_search_over_widths_trains_on(tmp_path: Path, seed: int) -> None:
    made = search(tmp_path / "run", {"width": [8, 16]}, seed=seed, lr_scheduler="cosine")
    list(made.run())
    again = search(tmp_path / "run", {"width": [8, 16]}, seed=seed, lr_scheduler="cosine")
    again.fit(epochs=4, resume=True, progress=False)
    assert accounted_for(again, 4)
    assert all(member.epoch == 4 for member in again.history.members.values())
    assert max(differences(again).values()) < 1e-10


def test_a_trial_of_several_seeds_ends_though_one_of_them_ended_before_a_kill(tmp_path: Path) -> None:
    made = search(tmp_path / "run", {"seed": [0, 1]}, trials=2, slots=2, epochs=4)
    control = hfta.Control()
    for event in made.run(control):
        if isinstance(event, ev.EpochDone) and event.epoch == 1:
            control.stop(0)
        if isinstance(event, ev.EpochDone) and event.epoch == 3:
            break
    again = search(tmp_path / "run", {"seed": [0, 1]}, trials=2, slots=2, epochs=4)
    list(again.run(resume=True))
    assert accounted_for(again, 2)


def test_members_that_wait_for_more_epochs_than_are_wanted_after_all_are_complete(tmp_path: Path) -> None:
    space = {"optimizer": ["sgd", "adam"]}
    made = search(tmp_path / "run", space, trials=5)
    list(made.run())
    control = hfta.Control()
    for event in search(tmp_path / "run", space, trials=5).run(control, resume=True, epochs=3):
        if isinstance(event, ev.MemberChanged) and event.state == ev.COMPLETE:
            control.extend(2)
        if isinstance(event, ev.MemberEdited):
            break
    again = search(tmp_path / "run", space, trials=5)
    list(again.run(resume=True, epochs=3))
    assert accounted_for(again, 5)


def test_best_weights_suit_an_array_that_is_padded_otherwise(tmp_path: Path) -> None:
    """The widest member has gone when the run is left; members that go on improve in a narrower array."""
    space = {"width": [4, 9], "p": [0.2]}
    made = search(tmp_path / "run", space, trials=4, slots=4, epochs=3)
    control, widest = hfta.Control(), {v.id for v in made.variants if v.config["width"] == 9}
    assert 0 < len(widest) < 4
    for event in made.run(control):
        if isinstance(event, ev.EpochDone) and event.epoch == 1:
            for variant in widest:
                control.stop(variant)
        if isinstance(event, ev.EpochDone) and event.epoch == 2:
            break
    again = search(tmp_path / "run", space, trials=4, slots=4, epochs=3)
    list(again.run(resume=True))
    assert accounted_for(again, 4)
    assert max(differences(again).values()) < 1e-10


def test_a_search_with_more_trials_waiting_than_slots_ends(tmp_path: Path) -> None:
    """The trials whose optimizer is another one wait for an array of their own, beside those that train."""
    made = search(tmp_path / "run", {"depth": [1, 2, 3], "optimizer": ["sgd", "adam"]}, trials=7, slots=2, seed=3)
    crowd = 0
    for event in made.run():
        searcher = made.searcher
        assert searcher is not None
        assert searcher.free >= 0
        crowd = max(crowd, sum(not trial.ended for trial in searcher._trials.values()))
        if isinstance(event, ev.EpochDone) and event.epoch == 1 and made.run_state.trainer is not None:
            made.run_state.trainer.control.put(ev.Prune(event.variants[0], "at random"))
    assert crowd > 2
    assert accounted_for(made, 7)


def sequence(width: int, depth: int, p: float, norm: bool) -> nn.Module:
    return net(width, depth, p, norm)


@pytest.mark.parametrize("keep", [[0], [1], [3], [0, 3], [1, 2], [3, 1]], ids=str)
def test_members_that_are_selected_are_the_same(keep: list[int]) -> None:
    """Each member's layers have places in the array that depend on all members."""
    members = [(9, 1, 0.0, False), (4, 3, 0.2, False), (6, 2, 0.0, True), (9, 1, 0.3, True)]
    array = fuse_preallocated([sequence(*member) for member in members], [0, 1, 2, 3], "never")
    part = array.select(keep)
    for place, index in enumerate(keep):
        mine, theirs = part[place].state_dict(), array[index].state_dict()
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
    x = torch.randn(5, FEATURES)
    torch.testing.assert_close(part.eval()(x), array.eval()(x)[keep])


class Annealed(nn.Module):
    """A model that counts its calls, in several kinds of attributes."""

    def __init__(self, width: int, inputs: int, classes: int) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(inputs, width), nn.Linear(width, classes)
        self.calls, self.seen = 0, {"mean": torch.zeros(()), "at": (0, [0])}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(self.a(x))
        if self.training:
            self.calls = self.calls + 1
            self.seen = {"mean": 0.9 * self.seen["mean"] + 0.1 * h.detach().mean(), "at": (self.calls, [1])}
        return self.b(h) * (1 + 1 / (1 + self.seen["at"][0])) + self.seen["mean"]  # type: ignore[index,operator]


def annealed(width: int = 6, inputs: int = FEATURES, classes: int = CLASSES) -> nn.Module:
    return Annealed(width, inputs, classes)


@pytest.mark.parametrize("how", [{}, {"serial": True}, {"trials": 3, "slots": 2}], ids=["array", "serial", "search"])
def test_a_resumed_run_has_the_attributes_that_models_have_set(tmp_path: Path, how: dict[str, Any]) -> None:
    def made(name: str) -> hfta.Study:
        if "trials" in how:
            return search(tmp_path / name, {"width": [4, 6]}, annealed, epochs=3, **how)
        given: dict[str, Any] = {"batch_size": 16, "dtype": "float64", "device": "cpu", "strategy": "fixed"}
        return hfta.Study(annealed, {"lr": [1e-3, 1e-2]}, data(), epochs=3, directory=tmp_path / name, **given, **how)

    whole = made("whole")
    list(whole.run())
    left(made("run"), 2, family=annealed)
    again = made("run")
    list(again.run(resume=True))
    mine, theirs = curves(again), curves(whole)
    for variant, named in theirs.items():
        for name, values in named.items():
            assert mine[variant][name] == pytest.approx(values, abs=1e-12), (variant, name)


class Unkept(nn.Module):
    """A model that makes something that no checkpoint can have."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.a, self.memory = nn.Linear(inputs, classes), None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.memory = frozenset({1, 2})
        return self.a(x)


def unkept(inputs: int = FEATURES, classes: int = CLASSES) -> nn.Module:
    return Unkept(inputs, classes)


def test_an_attribute_that_is_not_in_checkpoints_is_told_of(tmp_path: Path) -> None:
    def made() -> hfta.Study:
        return hfta.Study(unkept, {"lr": [1e-3, 1e-2]}, data(), epochs=2, directory=tmp_path / "run", device="cpu")

    for event in made().run():  # a run from the start has nothing to tell
        if isinstance(event, ev.EpochDone):
            break
    with pytest.warns(StoreWarning, match="memory: a frozenset that the model has set is not in checkpoints"):
        list(made().run(resume=True))


@pytest.mark.parametrize("serial", [False, True])
@pytest.mark.parametrize("lr_scheduler", ["multistep", "cyclic", "onecycle", "sequential"])
@pytest.mark.only(lr_scheduler=["multistep"])
def test_a_resumed_run_keeps_its_milestones(tmp_path: Path, lr_scheduler: str, serial: bool) -> None:
    """torch keeps milestones as a mapping from numbers."""

    def made(name: str) -> hfta.Study:
        given: dict[str, Any] = {"batch_size": 16, "dtype": "float64", "device": "cpu", "strategy": "fixed"}
        given |= {"lr_scheduler": lr_scheduler, "serial": serial, "epochs": 4, "verify": "never"}
        return hfta.Study(net, {"lr": [1e-3, 1e-2]}, data(), directory=tmp_path / name, **given)

    whole = made("whole")
    list(whole.run())
    left(made("run"), 1, family=net)
    again = made("run")
    list(again.run(resume=True))
    assert curves(again) == curves(whole)


def by_name(name: str, parameter: torch.Tensor) -> dict[str, float]:
    return {"weight_decay": 0.1} if name == "0.weight" else {"lr_scale": 0.5} if name == "2.weight" else {}


def test_groups_are_chosen_by_the_names_of_members_alone(tmp_path: Path) -> None:
    """In an array with a deeper member, the last layer of the others would have another name."""
    made = search(tmp_path / "run", {"depth": [1, 2]}, param_groups=by_name, optimizer="sgd")
    list(made.run())
    assert {variant.config["depth"] for variant in made.variants} == {1, 2}
    assert made.check(list(made.history.members))["equal"].all()
