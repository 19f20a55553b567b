"""A study whose preprocessing workers are killed at random moments, twenty times."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

from hfta_nb import data
from hfta_nb import events as ev
from hfta_nb.train.shared_batches import BatchBuffer
from tests.call_log import instances
from tests.core.test_shared_streams import HELD, Noisy, assert_same, study

KILLS = 20


class Laborious(Noisy):
    """Takes a few milliseconds for a batch, so that kills meet workers in the midst of one."""

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        x, y = super().__getitem__(i)
        noise = torch.randn(120, 120)
        return x + (noise @ noise).mean() * 1e-3, y


def given() -> Any:
    return data.from_dataset(Laborious(240), TensorDataset(*HELD))


@pytest.mark.long
def test_twenty_killed_workers_change_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    epochs = 12
    undisturbed = study(given(), tmp_path / "undisturbed", share_stream=False, epochs=epochs)
    list(undisturbed.run())
    buffers = instances(BatchBuffer, monkeypatch)
    over, killed, chosen = threading.Event(), [], random.Random(0)

    def kill() -> None:
        wanted = 1  # so many batches must be made before the next kill: no batch has to bear too many
        while len(killed) < KILLS and not over.wait(0.001):
            workers = buffers[-1].workers if buffers else None
            pids = [] if workers is None else [pid for pid in workers.processes if pid not in killed]
            if workers is None or workers.made < wanted or not pids:
                continue
            over.wait(chosen.uniform(0.0, 0.02))
            with contextlib.suppress(ProcessLookupError):
                os.kill(pids[0], signal.SIGKILL)
                killed.append(pids[0])
            wanted = workers.made + chosen.randint(1, 4)

    thread = threading.Thread(target=kill)
    thread.start()
    disturbed = study(given(), tmp_path / "disturbed", epochs=epochs)
    list(disturbed.run())
    over.set()
    thread.join()
    (buffer,) = buffers
    assert buffer.workers is not None
    assert len(killed) == KILLS
    assert buffer.workers.replaced >= KILLS - 1  # the last may have been idle, with nothing left to do
    assert disturbed.history.state == ev.COMPLETE
    assert_same(disturbed, undisturbed)
