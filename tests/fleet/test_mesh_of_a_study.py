"""Studies whose arrays lie in blocks on four processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from hfta_nb import events as ev
from hfta_nb.data.samples import Data
from hfta_nb.errors import DistributedError, StudyError
from hfta_nb.study import Study


def data() -> Data:
    """Tokens and the next ones; mini-batches of five, which two rows of devices share unevenly."""
    text = torch.randint(0, 12, (22, 7), generator=torch.Generator().manual_seed(3))
    x, y = text[:, :-1], text[:, 1:]
    return Data("tiny", "language_model", x[:15], y[:15], x[15:], y[15:], {"vocab_size": 12, "context": 6})


def study(place: Path, **given: Any) -> Study:
    sizes = {"width": 8, "heads": 2, "depth": 1, "dropout": 0.0}
    how = {"epochs": 2, "batch_size": 5, "dtype": "float64", "device": "cpu", "optimizer": "adamw", **sizes, **given}
    return Study("transformer_lm", {"lr": [1e-3, 1e-2]}, data(), directory=place, **how)


def test_wrong_use_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="no square"):
        study(tmp_path / "a", devices=2, layout="mesh")
    with pytest.raises(StudyError, match="no square"):
        study(tmp_path / "b", layout="mesh")
    with pytest.raises(StudyError, match="a family without blocks"):
        Study("mlp", {"lr": [0.1]}, "iris", devices=4, layout="mesh", directory=tmp_path / "c")


def test_the_layout_is_saved(tmp_path: Path) -> None:
    made = study(tmp_path, devices=4, layout="mesh")
    made.save(tmp_path)
    assert Study.load(tmp_path, data=data()).layout == "mesh"
    assert "layout='mesh'" in made.to_code()


def test_blocks_train_in_the_process_of_the_run(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="executor"):
        list(study(tmp_path, devices=4, layout="mesh").run(executor="processes", workers=1))


def equal(made: Study, other: Study) -> None:
    for mine, theirs in zip(made.history.members.values(), other.history.members.values(), strict=True):
        assert mine.curves.keys() == theirs.curves.keys()
        for name in ("train_loss", "val_loss", "val_accuracy"):
            values, others = (torch.tensor(m.curves[name].values) for m in (mine, theirs))
            assert len(values) == made.epochs
            torch.testing.assert_close(values, others, rtol=0, atol=1e-10)
    for variant in made.variants:
        weights = [s.member(variant.id).module().state_dict() for s in (made, other)]
        torch.testing.assert_close(*weights, rtol=0, atol=1e-10)


@pytest.mark.long
def test_four_devices_come_to_what_one_comes_to(tmp_path: Path) -> None:
    """From the start, and where one goes on with what the other has left."""
    whole = study(tmp_path / "one")
    list(whole.run())
    mesh = study(tmp_path / "four", devices=4, layout="mesh")
    list(mesh.run())
    equal(mesh, whole)
    for number, (first, then) in enumerate((("mesh", "samples"), ("samples", "mesh"))):
        made = study(tmp_path / f"left {number}", devices=4 if first == "mesh" else 1, layout=first)
        for event in made.run():
            if isinstance(event, ev.EpochDone):
                break
        made.devices, made.layout = 4 if then == "mesh" else 1, then
        list(made.run(resume=True))
        equal(made, whole)


@pytest.mark.long
@pytest.mark.parametrize(
    "wrong", [{"max_norm": 1.0}, {"optimizer": "muon"}, {"dropout": 0.1}, {"width": 9, "heads": 3}]
)
def test_what_needs_more_than_blocks_is_refused(wrong: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(DistributedError):
        list(study(tmp_path, devices=4, layout="mesh", **wrong).run())
