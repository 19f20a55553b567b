"""User data and families in a worker process: streams and constructors can be sent if their parts can."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import hfta_nb as hfta
from hfta_nb import events as ev
from hfta_nb.errors import WorkerError
from hfta_nb.study import executors
from tests.executors.watching import ended


class Noisy(Dataset):
    def __init__(self, extra: Any = None) -> None:
        self.x = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
        self.y = (self.x.sum(1) > 0).long()
        self.extra = extra

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        return self.x[i] + 0.1 * torch.randn(6), int(self.y[i])


def pieces(epoch: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for size in (9, 4):
        x = torch.randn(size, 6)
        yield x, (x.sum(1) > 0).long()


@pytest.mark.as_started  # a loader in a fork finds another class of its name
@pytest.mark.parametrize("kind", ["loader", "function"])
def test_a_stream_in_a_worker_gives_what_it_gives_inline(kind: str, tmp_path: Path) -> None:
    curves = {}
    for how in ("inline", "worker"):
        if kind == "loader":  # anew: its generator goes on from study to study, as from loop to loop
            loader = DataLoader(Noisy(), 16, shuffle=True, num_workers=1, generator=torch.Generator().manual_seed(3))
            data = hfta.data.from_loader(loader, Noisy())
        else:
            data = hfta.data.from_batches(pieces, pieces)
        options: dict[str, Any] = {"epochs": 2, "device": "cpu", "dtype": "float64", "directory": tmp_path / how}
        study = hfta.Study("mlp", {"lr": [1e-3, 1e-2]}, data, width=4, **options)
        handle = ended(executors.start(study, kind=how))
        assert handle.state == ev.COMPLETE, handle.error
        members = handle.history.members.values()
        curves[how] = [value for m in members for curve in m.curves.values() for value in curve.values]
    assert curves["worker"] == pytest.approx(curves["inline"], abs=1e-10)
    check = ended(executors.start(study, job="check", arguments={"members": [1]}))
    assert check.history.members[1].check.equal  # type: ignore[union-attr]


def test_what_can_not_travel_is_named(tmp_path: Path) -> None:
    data = hfta.data.from_loader(DataLoader(Noisy(threading.Lock()), 16), Noisy())
    study = hfta.Study("mlp", {"lr": [1e-3]}, data, directory=tmp_path / "run")
    with pytest.raises(WorkerError, match=r"study\.data\.training\.loader\.dataset\.extra: can't be sent"):
        executors.start(study)


def test_a_class_beside_the_notebook_is_named_and_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "from torch import nn\n\nclass Net(nn.Linear):\n    pass\n"
    (tmp_path / "beside_nets.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    study = hfta.Study("beside_nets.Net", {"bias": [True, False]}, "wine", epochs=1, directory=tmp_path / "run")
    handle = ended(executors.start(study))
    assert handle.state == ev.COMPLETE, handle.error
