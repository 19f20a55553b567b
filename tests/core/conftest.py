"""Fixtures of studies that run out of memory, and of the package's own kernels."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hfta_nb import events as ev
from hfta_nb.engine.kernels.native import build
from hfta_nb.engine.kernels.strategy import autotune
from hfta_nb.engine.kernels.strategy.kernel_variants import COMPILED
from hfta_nb.train.speed import SpeedProbe
from hfta_nb.train.step import ArrayStep
from tests.core.compiled import compiled
from tests.core.hungry import backward, curves, forward, made
from tests.widths import NARROWER, NATIVE, choose


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """No calls of the model but those of training, in an order that is known."""
    forward.set(0, 0)
    backward.set(0, 0)
    monkeypatch.setattr(ArrayStep, "tune_at_first", lambda self: None)
    monkeypatch.setattr(SpeedProbe, "alone", lambda self, x, y: False)


@pytest.fixture
def undisturbed(tmp_path: Path, quiet: None) -> dict[int, dict[str, list[float]]]:
    study = made(tmp_path / "undisturbed")
    list(study.run())
    assert study.history.state == ev.COMPLETE
    return curves(study)


@pytest.fixture
def libraries_anew() -> Iterator[None]:
    """No library of the package's own is loaded."""
    before = dict(build._loaded)
    build._loaded.clear()
    yield
    build._loaded.clear()
    build._loaded.update(before)


@pytest.fixture(params=[NATIVE, *(pytest.param(name, marks=pytest.mark.long) for name in NARROWER)])
def width(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Kernels are compiled for this processor, and for each narrower width that it can run."""
    name: str = request.param
    choose(name, monkeypatch)
    return name


@pytest.fixture
def own_libraries(width: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The modules that a test file lists as `OWN` have their libraries, each of the module's name."""
    made = compiled(*(module.__name__.rpartition(".")[2] for module in request.module.OWN))
    for module in request.module.OWN:
        monkeypatch.setattr(module, "library", lambda name: made[name])


@pytest.fixture
def own_kernels_preferred(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all ways to compute something, the package's own library, if its numbers are right."""
    cost = autotune.cost
    monkeypatch.setattr(autotune, "cost", lambda name, times: cost(name, times) / (1e6 if name == COMPILED else 1))
