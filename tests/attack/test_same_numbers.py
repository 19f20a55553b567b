"""Same code, same machine, same numbers: the first run from an empty cache, the second and the third, to the bit."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

import hfta_nb as hfta
from hfta_nb.engine.kernels.strategy import timing_cache
from hfta_nb.errors import ChoicesWarning

ROOT = Path(__file__).resolve().parents[2]
FORMS = "study", "backward", "forward"


def start(cache: Path, asked: list[str], epochs: int = 2) -> subprocess.Popen[str]:
    environment = {**os.environ, "HFTA_NB_CACHE": str(cache), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.attack.same_numbers", str(epochs), *asked]
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)


def bits(process: subprocess.Popen[str]) -> dict[str, list[str]]:
    out, _ = process.communicate(timeout=600)
    assert process.returncode == 0
    return {told["of"]: told["bits"] for told in map(json.loads, out.splitlines())}


@contextlib.contextmanager
def busy(processes: int) -> Iterator[None]:
    """Processes that do nothing but keep processors busy."""
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def test_the_first_run_of_an_mlp_and_the_second(tmp_path: Path) -> None:
    asked = ["mlp backward", "mlp study"]
    first, second = (bits(start(tmp_path / "cache", asked, epochs=1)) for _ in range(2))
    assert first == second
    assert set(first) == set(asked)


ALONE = [("mlp backward", 0), ("mlp study", 0), ("cnn forward", 2), ("cnn study", 0), ("lstm backward", 0),
         ("transformer forward", 0)]  # fmt: skip
"""What one has measured, another need not: each model and each form by itself, the one that measures most also beside
busy processes."""


@pytest.mark.long
@pytest.mark.parametrize(("asked", "load"), ALONE)
def test_three_runs_from_an_empty_cache(asked: str, load: int, tmp_path: Path) -> None:
    with busy(load):
        runs = [bits(start(tmp_path, [asked]))]
    runs += [bits(start(tmp_path, [asked])) for _ in range(2)]
    assert runs[0] == runs[1] == runs[2]


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "apart_s"),
    [("cnn", 3), ("mlp", 0)],
    ids=lambda v: f"{v} s apart" if v in (0, 3) else v,
)
def test_processes_that_start_at_once_from_an_empty_cache(name: str, apart_s: float, tmp_path: Path) -> None:
    asked, started = [f"{name} {form}" for form in FORMS], []
    for _ in range(3):
        started.append(start(tmp_path / "cache", asked))
        time.sleep(apart_s)
    found = [bits(process) for process in started]
    assert found[0] == found[1] == found[2] == bits(start(tmp_path / "cache", asked))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of one's own, and the C code off: nothing has to be compiled."""
    monkeypatch.setenv("HFTA_NB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HFTA_NB_NATIVE", "off")
    timing_cache._kept.cache_clear()
    yield tmp_path / "cache"
    timing_cache._kept.cache_clear()


def test_a_run_that_goes_on_under_other_choices_says_so(cache: Path, tmp_path: Path) -> None:
    def made() -> hfta.Study:
        given = {"epochs": 2, "device": "cpu", "dtype": "float32", "directory": tmp_path / "run", "batch_size": 4}
        return hfta.Study("mlp", {"lr": [1e-3, 1e-2]}, "iris", **given)  # type: ignore[arg-type]

    list(made().run())
    with warnings.catch_warnings():
        warnings.simplefilter("error", ChoicesWarning)
        list(made().run(epochs=3))
        made().check()
    shutil.rmtree(cache)
    timing_cache._kept.cache_clear()  # as in another process
    again = made()
    with pytest.warns(ChoicesWarning, match="chosen by other measurements"):
        again.check()
    with pytest.warns(ChoicesWarning, match="chosen by other measurements"):
        list(again.run(epochs=4))
    with warnings.catch_warnings():
        warnings.simplefilter("error", ChoicesWarning)
        again.check()


def test_where_nothing_is_chosen_by_time_nothing_is_said(cache: Path, tmp_path: Path) -> None:
    for epochs in (1, 2):
        study = hfta.Study(
            "mlp", {"lr": [1e-3, 1e-2]}, "iris", epochs=1, deterministic=True, device="cpu", directory=tmp_path / "run"
        )
        with warnings.catch_warnings():
            warnings.simplefilter("error", ChoicesWarning)
            list(study.run() if epochs == 1 else study.run(epochs=epochs))
        shutil.rmtree(cache, ignore_errors=True)
        timing_cache._kept.cache_clear()
