"""`Study(compile=...)`: rejected, stored and passed on, with unchanged results."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from torch import nn

import hfta_nb as hfta
from hfta_nb.cli.options import parse
from hfta_nb.engine.replay.inductor import decide as inductor
from hfta_nb.errors import StudyError
from hfta_nb.records.events import SpeedMeasured
from hfta_nb.ui.saved_run import arguments_of


@hfta.family(loss=nn.functional.cross_entropy, metrics={}, data="digits")
def bare(in_features: int = 64, out_features: int = 10) -> nn.Module:
    """Whose loss is torch's own: the package's losses and metrics are watched in tests, and so not replayed."""
    return nn.Sequential(nn.Flatten(), nn.Linear(in_features, out_features))


def _study(tmp_path: Path, family: object = "mlp", **options: object) -> hfta.Study:
    settings = {"epochs": 1, "dtype": "float64", "device": "cpu", "directory": tmp_path / "run", **options}
    return hfta.Study(family, {"lr": [1e-3, 1e-2]}, "digits", **settings)


def test_an_unknown_choice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="auto, never, always"):
        _study(tmp_path, compile="sometimes")
    with pytest.raises(SystemExit):
        parse(["run", "--family", "mlp", "--compile", "sometimes"])


def test_it_is_kept_with_the_study(tmp_path: Path) -> None:
    study = _study(tmp_path, compile="never")
    study.save(tmp_path / "kept")
    found = hfta.Study.load(tmp_path / "kept")
    assert found.compile == found.settings().compiling == "never"
    assert 'compile="never"' in study.to_code() or "compile='never'" in study.to_code()
    assert arguments_of(found)["compile"] == "never"
    assert _study(tmp_path).compile == "auto"
    assert parse(["run", "--family", "mlp", "--compile", "always"]).compile == "always"


@pytest.mark.parametrize("way", ["auto", "never", "always"])
def test_the_steps_are_told(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def noted(program, how, steps, *_):
        asked.append((how, steps))

    monkeypatch.setattr("hfta_nb.engine.replay.calls.decide", noted)
    study = _study(tmp_path, bare, compile=way, epochs=2)
    (measured,) = [event for event in study.run() if isinstance(event, SpeedMeasured)]
    assert measured.strategy.endswith("recorded steps")
    if way == "never":
        assert not asked
    else:
        assert set(asked) == {(way, 2.0 * study.data.batches(64))}


@pytest.mark.long
@pytest.mark.skipif(not any(map(shutil.which, ("g++", "clang++", "c++"))), reason="no compiler")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_compiled_members_are_what_they_are_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HFTA_NB_CACHE", str(tmp_path / "times"))
    decisions = []
    decide = inductor.decide

    def watched(program, *given):
        decide(program, *given)
        decisions.append(program.decision)

    monkeypatch.setattr("hfta_nb.engine.replay.calls.decide", watched)
    study = _study(tmp_path, bare, compile="always")
    told = [event.strategy for event in study.run() if isinstance(event, SpeedMeasured)]
    assert len(told) == 1
    assert re.search(r"compiled in [\d.]+ s: [\d.e-]+ ms, not compiled [\d.e-]+ ms$", told[0])
    assert any(d.compiled is not None for d in decisions), [d.note for d in decisions]
    assert study.check(members=[0, 1])["equal"].all()


def test_it_is_told_why_a_step_is_not_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hfta_nb.engine.replay.inductor.compile.shutil.which", lambda name: None)
    for way, more in (("always", ", not compiled: there is no C++ compiler"), ("auto", "")):
        study = _study(tmp_path / way, bare, compile=way)
        (measured,) = [event for event in study.run() if isinstance(event, SpeedMeasured)]
        assert measured.strategy.endswith(f"recorded steps{more}")


@hfta.family(loss=nn.functional.cross_entropy, metrics={}, data="digits")
def noisy(in_features: int = 64, out_features: int = 10) -> nn.Module:
    """Batch norm and dropout."""
    norm = nn.Linear(in_features, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3)
    return nn.Sequential(nn.Flatten(), *norm, nn.Linear(16, out_features))


def test_members_that_draw_are_what_they_are_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HFTA_NB_CACHE", str(tmp_path / "times"))
    monkeypatch.setattr("hfta_nb.engine.replay.inductor.compile.shutil.which", lambda name: name)
    # It takes long.
    monkeypatch.setattr("hfta_nb.engine.replay.inductor.compile._compiled", lambda module, examples: module)
    study = _study(tmp_path, noisy, compile="always", epochs=2)
    (measured,) = [event for event in study.run() if isinstance(event, SpeedMeasured)]
    assert "compiled in " in measured.strategy
    assert study.check(members=[0, 1])["equal"].all()
