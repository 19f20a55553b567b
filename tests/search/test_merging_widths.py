"""Arrays of members of different widths that have both begun and become one: each member equals its serial twin."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from search.leaving import left
from search.test_merging import side_by_side
from search.test_slots import LR, curves, study
from steering.scripted import Script
from steering.twins import Twins, data, net

import hfta_nb as hfta
from hfta_nb import events as ev
from hfta_nb.train import rebuild

ASKED = dict[int, Callable[[hfta.Control], Any]]
WIDTHS = [9, 5, 12]
"""By member; a twin has three steps an epoch, in front of each of which requests are read, and twice after the last."""


def space(trial: Any) -> dict[str, Any]:
    lr = trial.suggest_float("lr", 1e-3, 1e-1, log=True)
    return {"width": WIDTHS[trial.number % 3], "lr": lr, "data_seed": trial.number % 2}


def made(directory: Path, **given: Any) -> hfta.Study:
    how: dict[str, Any] = {"batch_size": 16, "dtype": "float64", "device": "cpu", "lr_scheduler": "cosine"}
    how |= {"sampler": "random", "trials": 3, "slots": 3, "epochs": 5, "seed": 1, "strategy": "fixed", "p": 0.0}
    return hfta.Study(net, space, data(), directory=directory, **(how | given))


def run(made: hfta.Study, script: ASKED) -> list[set[int]]:
    """Run a study; the members that trained each epoch together."""
    list(made.run(Script(script)))
    assert all(m.state == ev.COMPLETE for m in made.history.members.values())
    return side_by_side(made)


def equal(made: hfta.Study) -> bool:
    """Whether all members have the curves of their twins, and best weights of their own shapes with the best loss."""
    assert max(Twins(made).differences().values()) < 1e-10
    source = made.data
    for variant, member in made.history.members.items():
        module = made.member(variant).module()
        assert module[0].out_features == member.config["width"]  # type: ignore[index]
        with torch.no_grad():
            loss = torch.nn.functional.cross_entropy(module(source.x_validation.double()), source.y_validation)
        curve = member.curves["val_loss"]
        assert float(loss) == pytest.approx(curve.values[curve.epochs.index(member.best_epoch)], abs=1e-10)
    return True


@pytest.mark.parametrize("p", [0.0, 0.2], ids=["preallocated", "tagged"])
@pytest.mark.parametrize("variant", [0, 1, 2], ids=["between", "narrowest", "widest"])
@pytest.mark.each
def test_a_member_of_another_width_joins_the_others_again(tmp_path: Path, variant: int, p: float) -> None:
    found = made(tmp_path, p=p)
    parts = run(found, {4: lambda c: c.pause(variant), 12: lambda c: c.resume(variant)})
    others = {0, 1, 2} - {variant}
    assert parts == [{0, 1, 2}, others, others, {0, 1, 2}, {0, 1, 2}, {variant}, {variant}]
    assert equal(found)


@pytest.mark.parametrize("variant", [1, 2], ids=["narrowest", "widest"])
@pytest.mark.each
def test_others_step_aside_for_one_of_another_width(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variant: int
) -> None:
    """Clipped gradients and momentum are of the member's own size."""
    monkeypatch.setattr(rebuild, "RECORDING_STEPS", 0.0)
    found = made(tmp_path, max_norm=0.5, weight_decay=1e-2)
    parts = run(found, {6: lambda c: c.pause(variant), 13: lambda c: c.resume(variant)})
    assert {variant} in parts
    assert {0, 1, 2} in parts[2:]
    assert equal(found)


def test_a_member_takes_the_place_of_one_of_another_width(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Member 0 is pruned at the end of the epoch after which member 1, which is narrower, joins the others again."""
    built, kept = rebuild.built, list[bool]()

    def followed(run: Any, *given: Any) -> Any:
        found = built(run, *given)
        kept.append(found.step is run.step)
        return found

    monkeypatch.setattr(rebuild, "built", followed)
    found = made(tmp_path, strategy="measured")
    list(found.run(Script({4: lambda c: c.pause(1), 8: lambda c: c.resume(1), 9: lambda c: c.put(ev.Prune(0, "why"))})))
    assert [m.state for m in found.history.members.values()] == [ev.PRUNED, ev.COMPLETE, ev.COMPLETE]
    assert {1, 2} in side_by_side(found)
    assert kept == [True]
    assert equal(found)


def test_clones_of_two_widths_share_an_array(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebuild, "RECORDING_STEPS", 0.0)
    found = made(tmp_path)
    parts = run(found, {5: lambda c: (c.clone(1, batch_size=24), c.clone(2, batch_size=24))})
    assert {3, 4} in parts
    assert equal(found)


def test_widths_that_would_be_padding_for_the_most_part_stay_apart(tmp_path: Path) -> None:
    """Member 2 is twice as wide as the others."""
    found = made(tmp_path, padding=0.2)
    parts = run(found, {4: lambda c: c.pause(0), 10: lambda c: c.resume(0)})
    assert all(not {1, 2} <= together for together in parts)
    assert equal(found)


@pytest.mark.parametrize("after", [3, 6])
@pytest.mark.only(after=[6])
def test_a_run_of_several_widths_that_was_left_merges_the_same_arrays(tmp_path: Path, after: int) -> None:
    def search(name: str) -> hfta.Study:
        axes = {"lr": LR, "width": hfta.integers(5, 12)}
        return study(tmp_path / name, axes, pruner="none", trials=3, epochs=5, dropout=0.0, seed=2)

    script: ASKED = {5: lambda c: c.pause(1), 13: lambda c: c.resume(1)}
    whole = search("whole")
    assert {0, 1, 2} in run(whole, script)[2:]
    assert len({variant.config["width"] for variant in whole.variants}) == 3
    again = left(search("run"), after, Script(script))
    list(again.run(resume=True))
    assert {0, 1, 2} in side_by_side(again)
    assert curves(again) == curves(whole)
