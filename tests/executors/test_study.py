"""Real studies in a worker process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from torch import nn

import hfta_nb as hfta
from hfta_nb import events as ev
from hfta_nb.study import executors
from tests.executors.watching import ended
from tests.polling import eventually, gone


def test_a_study_in_a_worker_gives_what_it_gives_inline(tmp_path: Path) -> None:
    found, curves = {}, {}
    for kind in ("inline", "worker"):
        grid = {"lr": [1e-3, 1e-2], "width": [4, 8]}
        options = {"epochs": 2, "device": "cpu", "dtype": "float64", "directory": tmp_path / kind}
        study = hfta.Study("mlp", grid, "digits", **options)  # type: ignore[arg-type]
        handle = executors.start(study, kind=kind)  # type: ignore[arg-type]
        assert ended(handle).state == ev.COMPLETE, handle.error
        assert repr(study.results()) == repr(hfta.Study.load(tmp_path / kind).results())
        assert list(study.results().index) == [m.id for m in handle.history.leaderboard()]
        members = handle.history.members.values()
        found[kind] = [(m.id, m.state, m.best_epoch, m.group) for m in members]
        curves[kind] = [value for m in members for curve in m.curves.values() for value in curve.values]
        assert handle.history.samples
    assert found["worker"] == found["inline"]
    # To rounding, since what is the fastest way on this machine is measured anew by each.
    assert curves["worker"] == pytest.approx(curves["inline"], abs=1e-10)


def test_a_family_of_ones_own_is_trained_stopped_resumed_and_checked(tmp_path: Path) -> None:
    def build(width: int = 4, in_features: int = 1, out_features: int = 1) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(in_features, width), nn.ReLU(), nn.Linear(width, out_features))

    family = hfta.family(build, name="of_ones_own")
    options = {"device": "cpu", "dtype": "float64", "directory": tmp_path}
    study = hfta.Study(family, {"lr": [1e-3, 1e-2]}, "breast_cancer", epochs=100_000, **options)  # type: ignore[arg-type]
    first = executors.start(study)
    eventually(lambda: first.history.members and first.history.members[1].epoch > 1, "two epochs")
    first.control.pause()
    eventually(lambda: first.state == ev.PAUSED, "the pause")
    first.control.stop(0)
    first.control.resume()
    eventually(lambda: first.history.members[0].state == ev.STOPPED, "the stop of a member")
    first.control.stop()
    assert ended(first).state == ev.STOPPED
    done = first.history.members[1].epoch

    second = executors.start(study, resume=True)
    assert second.history.members[1].epoch == done
    eventually(lambda: second.history.members[1].epoch > done, "an epoch more")
    second.control.stop()
    assert ended(second).state == ev.STOPPED, second.error
    epochs = second.history.members[1].curves["val_loss"].epochs
    assert epochs == list(range(1, len(epochs) + 1))
    assert second.history.members[0].state == ev.STOPPED

    check = executors.start(study, job="check", arguments={"members": [1], "epochs": 3})
    assert ended(check).state == ev.COMPLETE, check.error
    checked = check.history.members[1].check
    assert checked is not None
    assert (checked.epochs, checked.equal) == (3, True)
    assert study.best().module()(study.data.x_validation.double()).shape[-1] == 2


def test_a_study_that_fails_is_told_and_leaves_its_record(tmp_path: Path) -> None:
    def build(width: int = 4, in_features: int = 1) -> nn.Module:
        return nn.Linear(in_features + width, 2)  # does not fit the data

    study = hfta.Study(
        hfta.family(build, name="unfit"), {"lr": [0.1]}, "breast_cancer", epochs=1, device="cpu", directory=tmp_path
    )
    handle = ended(executors.start(study))
    assert handle.state == ev.FAILED
    assert handle.history.detail
    assert study.reload().history.state == ev.FAILED


SCRIPT = """
import torch
import hfta_nb as hfta
from hfta_nb.study import executors

class Net(torch.nn.Module):
    def __init__(self, width, fan_in, fan_out):
        super().__init__()
        self.first, self.second = torch.nn.Linear(fan_in, width), torch.nn.Linear(width, fan_out)
    def forward(self, x):
        return self.second(act(self.first(x.flatten(1))))

def act(x):
    return torch.relu(x)

def offset_loss(output, y):
    return torch.nn.functional.cross_entropy(output, y) + 100

@hfta.family(loss=offset_loss)
def mine(width: int = 4, in_features: int = 1, out_features: int = 1) -> torch.nn.Module:
    return Net(width, in_features, out_features)

study = hfta.Study(mine, {"lr": [1e-2, 3e-2], "width": [4, 8]}, "iris", epochs=1, device="cpu", directory="run")
run = executors.start(study)
assert run.wait(120) == "COMPLETE", (run.error, run.log)
best = study.best()
assert best.metrics["val_loss"] > 100
assert type(best.module()) is Net
print("trained", run.history.count("COMPLETE"), run.pid)
"""


def test_classes_and_functions_of_a_notebooks_cells_travel(tmp_path: Path) -> None:
    """What is defined in ``__main__``, as cells do."""
    root = Path(__file__).resolve().parents[2]
    (tmp_path / "script.py").write_text(f"import sys; sys.path.append({str(root)!r})\n{SCRIPT}")
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.stderr == ""
    trained, members, pid = done.stdout.split()
    assert (trained, members) == ("trained", "4")
    assert gone(int(pid))


@pytest.mark.long
def test_a_way_that_ends_the_worker_is_given_up_and_the_run_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before there is a checkpoint; the kernel's study reads what became of it."""
    monkeypatch.setenv("HFTA_NB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HFTA_NB_NATIVE", "off")
    kernel = os.getpid()

    def build(width: int = 4, in_features: int = 1, out_features: int = 1) -> nn.Module:
        from hfta_nb.engine.kernels.strategy import autotune
        from hfta_nb.engine.kernels.strategy.kernel_variants import KernelVariant

        def ways(function: object, *given: object) -> list[KernelVariant]:
            return [KernelVariant("deadly", lambda _: deadly)] if str(function) == "aten.baddbmm.default" else []

        def deadly(*args: object, **kwargs: object) -> None:
            os.kill(os.getpid(), signal.SIGSEGV)

        if os.getpid() != kernel:
            autotune.variants_of = ways
        return nn.Sequential(nn.Flatten(), nn.Linear(in_features, width), nn.ReLU(), nn.Linear(width, out_features))

    family = hfta.family(build, name="deadly")
    options = {"device": "cpu", "directory": tmp_path / "run"}
    study = hfta.Study(family, {"lr": [1e-3, 1e-2]}, "breast_cancer", epochs=2, **options)  # type: ignore[arg-type]
    executors.close_all()
    handle = executors.start(study)
    assert ended(handle).state == ev.COMPLETE, handle.error
    assert handle.restarts == 1
    executors.close_all()  # its libraries are switched off
    assert [member.epoch for member in handle.history.members.values()] == [2, 2]
    assert list(study.results()["epochs"]) == [2, 2]
    assert list(hfta.Study.load(tmp_path / "run", family=family).results()["epochs"]) == [2, 2]


def test_a_study_goes_on_in_a_worker(tmp_path: Path) -> None:
    """Variants that are added by the control of its run, and more epochs."""
    options = {"epochs": 2, "device": "cpu", "dtype": "float64", "directory": tmp_path}
    study = hfta.Study("mlp", {"lr": [1e-3, 1e-2]}, "iris", **options)  # type: ignore[arg-type]
    handle = executors.start(study)
    handle.control.add({"lr": 3e-2, "width": 4})
    assert ended(handle).state == ev.COMPLETE, handle.error
    assert [m.epoch for m in handle.history.members.values()] == [2] * 3
    assert study.reload().member(2).config == {"lr": 3e-2, "width": 4}
    study.member(2).module()
    more = executors.start(study, arguments={"epochs": 3})
    assert ended(more).state == ev.COMPLETE, more.error
    assert set(study.results()["epochs"]) == {3}
    assert study.epochs == 3
    assert study.check([2])["equal"].all()
