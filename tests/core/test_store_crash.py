"""A study whose process is killed at random times ends with the same results."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest
import torch

import hfta_nb as hfta
from hfta_nb import events as ev
from hfta_nb.errors import StoreError
from hfta_nb.records.store import Store
from tests.core import crashing
from tests.frames import steady

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> hfta.Study:
    study = crashing.make(tmp_path_factory.mktemp("crash") / "whole")
    list(study.run())
    return study


def same(study: hfta.Study, whole: hfta.Study) -> None:
    """Bit for bit, and nothing is there twice."""
    pd.testing.assert_frame_equal(steady(study.results()), steady(whole.results()), check_exact=True)
    for variant in range(len(whole.variants)):
        ours, theirs = study.history.members[variant], whole.history.members[variant]
        assert {k: c.values for k, c in ours.curves.items()} == {k: c.values for k, c in theirs.curves.items()}
        weights = study.store.read_weights(variant)
        assert all(torch.equal(weights[k], v) for k, v in whole.store.read_weights(variant).items())
    events = [event for event, _ in study.store.events()]
    epochs = Counter((v, e.epoch) for e in events if isinstance(e, ev.EpochDone) for v in e.variants)
    assert set(epochs.values()) == {1}
    ends = Counter(e.variant for e in events if isinstance(e, ev.MemberChanged) and e.state == ev.COMPLETE)
    assert ends == dict.fromkeys(range(len(whole.variants)), 1)


@pytest.mark.long
def test_a_study_that_is_killed_again_and_again(tmp_path: Path) -> None:
    kills, epochs = 50, 30
    whole = crashing.make(tmp_path / "whole", epochs)
    list(whole.run())
    command = [sys.executable, "-m", "tests.core.crashing", str(tmp_path / "run"), str(kills), str(epochs), "0"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.stderr == ""
    assert int(done.stdout) >= kills // 2  # some meet a study that has ended
    study = hfta.Study.load(tmp_path / "run")
    assert study.history.state == ev.COMPLETE
    same(study, whole)


class Killed(BaseException):
    """Ends a run as a kill does: nothing that is to happen at the end of a run happens."""


def killed_at(study: hfta.Study, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run until the event of a number, and leave no more on disk than is there by then."""
    append = Store.append

    def dies(store: Store, event: ev.Event) -> int:
        if append(store, event) >= number:
            monkeypatch.setattr(Store, "append", refused)
            raise Killed
        return 0

    def refused(store: Store, event: ev.Event) -> int:
        raise StoreError("the process is gone")

    monkeypatch.setattr(Store, "append", dies)
    with pytest.raises(Killed):
        list(study.run())
    monkeypatch.undo()


@pytest.mark.parametrize("number", [1, pytest.param(9, marks=pytest.mark.long)])
def test_a_run_that_was_killed_before_its_first_checkpoint_begins_again(
    tmp_path: Path, number: int, whole: hfta.Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_at(crashing.make(tmp_path), number, monkeypatch)
    study = hfta.Study.load(tmp_path)
    assert not study.store.has_checkpoint
    assert study.history.state == ev.INTERRUPTED
    list(study.run(resume=True))
    same(study, whole)
    same(hfta.Study.load(tmp_path), whole)


def test_a_run_that_was_killed_before_its_first_event_begins(tmp_path: Path, whole: hfta.Study) -> None:
    crashing.make(tmp_path).save(tmp_path)
    study = hfta.Study.load(tmp_path)
    list(study.run(resume=True))
    same(study, whole)


def test_checkpoints_come_within_an_epoch(tmp_path: Path, whole: hfta.Study, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a run that is killed in the midst of one goes on from there."""
    monkeypatch.setattr("hfta_nb.train.schedule.Schedule.save_due", property(lambda self: True))
    study = crashing.make(tmp_path)
    steps = study.settings().data.batches(16)
    assert steps is not None
    saved = 0
    for event in study.run():
        saved += isinstance(event, ev.CheckpointSaved)
        if isinstance(event, ev.EpochDone) and (event.group, event.epoch) == (0, 1):
            assert saved == steps
            break
    monkeypatch.undo()
    rest = hfta.Study.load(tmp_path)
    list(rest.run(resume=True))
    same(rest, whole)
