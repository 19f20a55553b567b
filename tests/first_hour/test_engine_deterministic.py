"""`deterministic=True`: two runs give the same bits, whatever was timed before."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.engine.kernels.native import build
from hfta_nb.engine.kernels.strategy import autotune, timing_cache
from hfta_nb.errors import StudyError

EPOCHS = 2
ROOT = Path(__file__).parents[2]


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
    list(study.run())
    curves = {
        m.id: {name: (curve.steps, curve.values) for name, curve in m.curves.items()}
        for m in study.history.members.values()
    }
    weights = {v.id: study.member(v.id).module().state_dict() for v in study.variants}
    return {"curves": curves, "weights": weights}


SCRIPT = """
import hashlib, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from hfta_nb.engine.eager.execution_settings import ExecutionSettings
from tests.first_hour.test_engine_deterministic import studies, trained
ExecutionSettings.recorded_from = 0  # as in tests: these studies have few steps
place, names = Path(sys.argv[1]), sys.argv[2].split(",")
for name in names:
    for run in sys.argv[3:]:
        found = trained(studies()[name](place / (name + run), deterministic=run != "usual"))
        weights = [(k, v.numpy().tobytes()) for i in sorted(found["weights"]) for k, v in found["weights"][i].items()]
        told = hashlib.sha256(repr((found["curves"], weights)).encode()).hexdigest()
        print("" if run == "usual" else told)
"""


@pytest.mark.long
def test_two_runs_with_a_cold_and_a_warm_cache(tmp_path: Path) -> None:
    """In processes without the checks of shapes that tests run with, which keep steps from being replayed."""

    def run(*runs: str) -> list[str]:
        environment = {**os.environ, "HFTA_NB_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-c", SCRIPT, str(tmp_path), ",".join(studies()), *runs]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert not done.returncode, done.stderr
        return done.stdout.split()

    first = run("first", "usual")  # the usual run times kernels, and keeps that; own kernels are compiled meanwhile
    assert any((tmp_path / "cache").glob("kernels-*.json"))
    assert first == run("second")
    assert len(set(first)) == len(studies())


class Words(nn.Module):
    """An LSTM whose hidden size the package's own kernel takes."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.out = nn.LSTM(8, 16, batch_first=True), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.lstm(x)[0][:, -1])  # type: ignore[no-any-return]


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)), (12, 8)),
    "cnn": (lambda: nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 3)), (12, 1, 8, 8)),
    "lstm": (Words, (12, 5, 8)),
}


@pytest.mark.parametrize("name", MODELS)
def test_nothing_is_timed_or_compiled(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("something depends on time")

    monkeypatch.setattr(autotune, "choose", never)
    monkeypatch.setattr(timing_cache.Kept, "get", never)
    monkeypatch.setattr(build, "_library", never)
    monkeypatch.setattr(build, "_loaded", {})
    make, shape = MODELS[name]
    array = hfta.fuse([make() for _ in range(3)])
    array.strategy = "fixed"
    optimizer = hfta.optim.AdamW(array, lr=[1e-3, 3e-3, 1e-2], fused=True)
    x, y = torch.randn(shape), torch.randint(0, 3, (12,))
    for _ in range(6):
        optimizer.zero_grad()
        array.backward(nn.functional.cross_entropy, x, y)
        optimizer.step()
        array.evaluate(nn.functional.cross_entropy, x, y)
    how = array.explain()
    assert "recorded" in list(how["how"][how["function"] == "backward"])
    assert array.block_size == 3


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
        ({"deterministic": 1}, "not True or False; got 1"),
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
