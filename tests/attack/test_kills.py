"""A search that is killed at random moments and followed by another process meanwhile ends as if nothing had been."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
import torch
from torch import Tensor

import hfta_nb as hfta
from hfta_nb import events as ev
from hfta_nb.records.store import Store
from tests.attack import kills
from tests.frames import steady

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
LONGEST_S = 30.0
"""A look at a run takes less, also on a busy machine."""


def _weights(study: hfta.Study) -> dict[str, Tensor]:
    """The kept weights of all trials, by trial, moment and name."""
    moments = [(v.id, at) for v in study.variants for at in ("best", "last")]
    states = {(m, at): study.member(m).module(at=at).state_dict() for m, at in moments}
    return {f"{m} {at} {name}": value for (m, at), state in states.items() for name, value in state.items()}


def test_a_search_that_is_killed_and_followed(tmp_path: Path) -> None:
    count, epochs, seed = 25, 50, 1
    whole, place, looks = kills.make(tmp_path / "whole", epochs), tmp_path / "run", 0
    list(whole.run())
    command = [sys.executable, "-m", "tests.attack.kills", str(place), str(count), str(epochs), str(seed)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True) as running:
        while running.poll() is None:
            if Store(place).exists:
                begin_s = time.monotonic()
                seen = hfta.Study.load(place)
                if seen.history.members:  # without, the run has been written down and has not begun
                    assert len(seen.results()) <= len(seen.variants)
                assert all(m.state for m in seen.history.members.values())
                assert time.monotonic() - begin_s < LONGEST_S
                looks += 1
            time.sleep(0.2)
        told, errors = running.communicate()
    assert errors == ""
    assert int(told) >= count // 2  # some meet a search that has ended
    assert looks >= count
    found = hfta.Study.load(place)
    assert found.history.state == ev.COMPLETE
    assert [t.params for t in found.optuna.trials] == [t.params for t in whole.optuna.trials]
    assert [t.state for t in found.optuna.trials] == [t.state for t in whole.optuna.trials]
    pd.testing.assert_frame_equal(steady(found.results()), steady(whole.results()), check_exact=True)
    kept, undisturbed = _weights(found), _weights(whole)
    assert kept.keys() == undisturbed.keys()
    assert len({name.split()[0] for name in kept}) == len(found.optuna.trials)
    assert [name for name, value in kept.items() if not torch.equal(value, undisturbed[name])] == []
