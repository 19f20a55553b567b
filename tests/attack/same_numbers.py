"""Trains models in a process of its own, and tells the bits of what came out."""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb import data

LR = [1e-3, 1e-2, 1e-1, 3e-3]
MEMBERS, ROWS, BATCH = 6, 640, 64


class Mlp(nn.Module):
    """Also of what draws random numbers."""

    shape: tuple[int, ...] = (64,)

    def __init__(self) -> None:
        super().__init__()
        hidden = nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, 128), nn.ReLU()
        self.layers = nn.Sequential(*hidden, nn.Linear(128, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)  # type: ignore[no-any-return]


class Cnn(Mlp):
    """Also of what keeps statistics."""

    shape = (1, 8, 8)

    def __init__(self) -> None:
        super().__init__()
        first = nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)
        second = nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten()
        self.layers = nn.Sequential(*first, *second, nn.Linear(256, 10))


class Lstm(nn.Module):
    shape = (8, 8)

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = nn.LSTM(8, 32, batch_first=True), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.inner(x)[0][:, -1])  # type: ignore[no-any-return]


class Transformer(nn.Module):
    shape = (8, 8)

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 32), nn.Linear(32, 10)
        self.inner = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.inner(self.first(x)).mean(1))  # type: ignore[no-any-return]


MODELS: dict[str, Any] = {"mlp": Mlp, "cnn": Cnn, "lstm": Lstm, "transformer": Transformer}


def bits(tensors: Iterable[Tensor]) -> str:
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.detach().contiguous().numpy().tobytes())
    return found.hexdigest()[:16]


def batches(model: Any, rows: int) -> tuple[Tensor, Tensor]:
    drawn = torch.Generator().manual_seed(1)
    x, wanted = torch.randn(rows, 64, generator=drawn), torch.randn(64, 10, generator=drawn)
    return x.view(rows, *model.shape), (x @ wanted).argmax(1)


def study(name: str, epochs: int) -> list[str]:
    """The curves and weights of a study; those of the quickstart where there is a family of that name."""
    built_in = name in ("mlp", "cnn")
    given: Any = "digits" if built_in else data.from_tensors(*batches(MODELS[name], 1024), num_classes=10)
    space = {"lr": LR, **({"width": [8, 16]} if name == "cnn" else {})}
    with tempfile.TemporaryDirectory() as folder:
        made = hfta.Study(
            name if built_in else MODELS[name],
            space,
            given,
            epochs=epochs,
            device="cpu",
            directory=Path(folder) / "run",
        )
        list(made.run())
        members = made.history.members
        curves = [sorted((k, list(v.values)) for k, v in members[i].curves.items()) for i in sorted(members)]
        weights = [bits(v for _, v in sorted(made.store.read_weights(i).items())) for i in sorted(members)]
    return [hashlib.sha256(repr(curves).encode()).hexdigest()[:16], *weights]


def loop(name: str, form: str, epochs: int) -> list[str]:
    """The losses, results and weights of a loop of one's own."""
    torch.manual_seed(0)
    array = hfta.fuse([MODELS[name]() for _ in range(MEMBERS)], seeds=range(MEMBERS))
    optimizer = hfta.optim.Adam(array, lr=[1e-3 * (i + 1) for i in range(MEMBERS)])
    loss_fn, (x, y) = nn.functional.cross_entropy, batches(MODELS[name], ROWS)
    losses, results = [], []
    for _ in range(4 * epochs):
        array.train()
        for xb, yb in zip(x.split(BATCH), y.split(BATCH), strict=True):
            optimizer.zero_grad()
            if form == "backward":
                losses.append(array.backward(loss_fn, xb, yb))
            else:
                losses.append(array.losses(loss_fn, array(xb), yb))
                losses[-1].sum().backward()
            optimizer.step()
        array.eval()
        results.append(array.evaluate(loss_fn, x, y))
    return [bits(losses), bits(results), bits([*array.parameters(), *array.buffers()])]  # type: ignore[arg-type]


def main(epochs: int, asked: list[str]) -> None:
    """Tell, for each ``model form``, its bits and the seconds that it took."""
    torch.set_num_threads(1)
    for one in asked:
        name, form = one.split()
        begin = time.perf_counter()
        found = study(name, epochs) if form == "study" else loop(name, form, epochs)
        print(json.dumps({"of": one, "bits": found, "seconds": time.perf_counter() - begin}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
