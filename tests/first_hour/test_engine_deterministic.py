"""`deterministic=True`: two runs give the same bits, whatever was timed before."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import hfta_nb as hfta
from hfta_nb.array.native import build
from hfta_nb.array.strategy import kept, measuring
from hfta_nb.errors import StudyError

EPOCHS = 2


def images() -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    return torch.randn(96, 1, 8, 8, generator=draw), torch.randint(0, 4, (96,), generator=draw)


def studies() -> dict[str, Callable[..., hfta.Study]]:
    grid = {"lr": [1e-3, 1e-2], "seed": [0, 1]}
    return {
        "cnn": lambda where, **more: hfta.Study(
            "cnn", grid, images(), epochs=EPOCHS, batch_size=16, directory=where, device="cpu", **more
        ),
        "mlp": lambda where, **more: hfta.Study(
            "mlp", grid, images(), epochs=EPOCHS, batch_size=16, directory=where, device="cpu", **more
        ),
        "lstm": lambda where, **more: hfta.Study(
            "lstm_lm", grid, epochs=1, steps_per_epoch=6, directory=where, device="cpu", **more
        ),
    }


def trained(study: hfta.Study) -> dict[Any, Any]:
    for _ in study.run():
        pass
    curves = {m.id: {name: list(values) for name, values in m.curves.items()} for m in study.history.members.values()}
    weights = {v.id: study.member(v.id).module().state_dict() for v in study.variants}
    return {"curves": curves, "weights": weights}


def equal(a: dict[Any, Any], b: dict[Any, Any]) -> bool:
    pairs = [(a["weights"][i][k], b["weights"][i][k]) for i in a["weights"] for k in a["weights"][i]]
    return bool(a["curves"] == b["curves"] and all(torch.equal(p, q) for p, q in pairs))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache of timings."""
    monkeypatch.setenv("HFTA_NB_CACHE", str(tmp_path / "cache"))
    kept._kept.cache_clear()
    yield tmp_path / "cache"
    kept._kept.cache_clear()


@pytest.mark.parametrize("name", studies())
def test_two_runs_with_a_cold_and_a_warm_cache(name: str, tmp_path: Path, cache: Path) -> None:
    make = studies()[name]
    first = trained(make(tmp_path / "first", deterministic=True))
    trained(make(tmp_path / "usual"))  # times its kernels, and keeps that
    assert any(cache.glob("kernels-*.json"))
    kept._kept.cache_clear()
    assert equal(first, trained(make(tmp_path / "second", deterministic=True)))


@pytest.mark.parametrize("name", studies())
def test_nothing_is_timed_or_compiled(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("something depends on time")

    monkeypatch.setattr(measuring, "choose", never)
    monkeypatch.setattr(kept.Kept, "get", never)
    monkeypatch.setattr(build, "_library", never)
    monkeypatch.setattr(build, "_loaded", {})
    study = studies()[name](tmp_path / "run", deterministic=True)
    assert len(trained(study)["curves"]) == 4


def test_it_is_saved_with_the_study_and_in_its_code(tmp_path: Path) -> None:
    study = studies()["mlp"](tmp_path / "run", deterministic=True)
    study.save(tmp_path / "run")
    assert hfta.Study.load(tmp_path / "run").deterministic
    assert "deterministic=True" in study.to_code()
    fixed = studies()["mlp"](tmp_path / "other", strategy="fixed")
    fixed.save(tmp_path / "other")
    assert hfta.Study.load(tmp_path / "other").strategy == "fixed"
    assert "strategy='fixed'" in fixed.to_code()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"strategy": "quick"}, "measured, fixed"),
        ({"deterministic": 1}, "neither on nor off"),
        ({"deterministic": True, "strategy": "measured"}, "strategy.*rules out"),
        ({"deterministic": True, "capacity": "auto"}, "capacity.*rules out"),
        ({"deterministic": True, "compile": "always"}, "compile.*rules out"),
    ],
)
def test_what_can_t_be_asked_together(more: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=message):
        studies()["mlp"](tmp_path / "run", **more)


def test_the_switch_is_documented() -> None:
    told = inspect.getdoc(hfta.Study) or ""
    assert "deterministic: choose nothing by time" in told
