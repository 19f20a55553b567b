"""What is not saved with a study has to be given again where its run goes on; names are saved."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.errors import StudyError
from tests.contract.handed_over import numbers

X, Y = numbers(24, 4), numbers(24, 1, seed=1)


def build() -> nn.Module:
    return nn.Linear(4, 1)


def absolute(output: Tensor, y: Tensor) -> Tensor:
    return F.l1_loss(output, y)


def study(place: Path, epochs: int, **own: Any) -> hfta.Study:
    return hfta.Study(build, {"lr": [0.1, 0.2]}, (X, Y, X, Y), epochs=epochs, dtype="float64", device="cpu",
                      directory=place, **own)  # fmt: skip


def values(found: hfta.Study) -> list[list[float]]:
    return [found.history.members[i].curves["val_loss"].values for i in range(2)]


OWN: list[dict[str, Any]] = [
    {"loss": absolute},
    {"loss": absolute, "metrics": {"error": absolute}, "monitor": "val_loss"},
    {"param_groups": lambda name, p: {"lr_scale": 0.5}},
]


@pytest.mark.parametrize("own", OWN, ids=lambda own: "-".join(own))
@pytest.mark.parametrize("again", [lambda place, own: hfta.Study.load(place, family=build),
                                   lambda place, own: study(place, 2)], ids=["loaded", "defined"])  # fmt: skip
def test_a_run_does_not_go_on_without_what_it_began_with(own: Any, again: Callable[..., Any], tmp_path: Path) -> None:
    first = study(tmp_path, 2, **own)
    first.fit(progress=False)
    with pytest.raises(StudyError, match=r"had loss|had param_groups.* of its own, .*loss=\.\.\.|param_groups=\.\.\."):
        again(tmp_path, own).fit(epochs=4, resume=True, progress=False)
    found = hfta.Study.load(tmp_path, family=dataclasses.replace(first.family))
    found.fit(epochs=4, resume=True, progress=False)
    whole = study(tmp_path / "whole", 4, **own)
    whole.fit(progress=False)
    assert values(found) == values(whole)


@pytest.mark.parametrize("own", [{"loss": "l1"}, {"loss": "huber", "metrics": {"off": "mae"}}])
def test_names_are_saved(own: Any, tmp_path: Path) -> None:
    study(tmp_path, 2, **own).fit(progress=False)
    found = hfta.Study.load(tmp_path, family=build)
    assert found.metrics[3:] == (("val_off",) if "metrics" in own else ("val_mae",))
    found.fit(epochs=4, resume=True, progress=False)
    whole = study(tmp_path / "whole", 4, **own)
    whole.fit(progress=False)
    assert values(found) == values(whole)


def test_labels_that_the_loss_ignores_are_read_again(tmp_path: Path) -> None:
    marked = torch.where(torch.arange(24) % 4 == 0, -1, torch.arange(24) % 3)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, marked), batch_size=8)
    first = hfta.Study(lambda: nn.Linear(4, 3), {"lr": [0.1]}, (loader, loader), epochs=1, device="cpu",
                       loss=nn.CrossEntropyLoss(ignore_index=-1), directory=tmp_path)  # fmt: skip
    first.fit(progress=False)
    found = hfta.Study.load(tmp_path, family=first.family, data=(loader, loader))
    assert found.data.facts["num_classes"] == 3
