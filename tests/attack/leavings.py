"""Studies of which members leave at random moments, in ways that people and members have, beside undisturbed ones."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb import events as ev
from hfta_nb.records.events import Request

EPOCHS, STEPS, SAMPLES = 4, 3, 48
OPTIMIZERS = ("adadelta", "adagrad", "adam", "adamax", "adamw", "nadam", "rmsprop", "rprop", "sgd")
BEYOND = 1e37
"""A rate with which every optimizer diverges, sooner or later."""


class Middle(nn.Module):
    """An LSTM's or GRU's last output."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x)[0][:, -1]
        return out


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x, x, x, need_weights=False)[0].mean(1)
        return out


class Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


def _vectors(*inner: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(8, 7), *inner, nn.ReLU(), nn.Linear(7, 3))


def _images(*inner: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), *inner, nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 3))


def _series(*inner: nn.Module) -> nn.Module:
    return nn.Sequential(*inner, nn.Linear(4, 3))


def _transformer() -> nn.Module:
    return _series(nn.TransformerEncoderLayer(4, 2, 9, dropout=0.1, batch_first=True), Mean())


MODELS: Mapping[str, tuple[str, Callable[[], nn.Module]]] = {
    "linear": ("vectors", lambda: nn.Linear(8, 3)),
    "mlp": ("vectors", _vectors),
    "batch norm": ("vectors", lambda: _vectors(nn.BatchNorm1d(7))),
    "layer norm": ("vectors", lambda: _vectors(nn.LayerNorm(7))),
    "dropout": ("vectors", lambda: _vectors(nn.Dropout(0.3))),
    "convolution": ("images", _images),
    "batch norm of images": ("images", lambda: _images(nn.BatchNorm2d(4))),
    "group norm": ("images", lambda: _images(nn.GroupNorm(2, 4))),
    "lstm": ("series", lambda: _series(Middle(nn.LSTM(4, 4, batch_first=True)))),
    "gru": ("series", lambda: _series(Middle(nn.GRU(4, 4, batch_first=True)))),
    "attention": ("series", lambda: _series(Attention())),
    "transformer": ("series", _transformer),
}
"""By name, the data and the model."""

SHAPES = {"vectors": (8,), "images": (1, 6, 6), "series": (5, 4)}


class Unlucky(nn.Module):
    """A model that raises where its outputs are not finite."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x)
        if self.training and not x.is_meta and not out.isfinite().all():
            raise ValueError("no luck")
        return out


def data(kind: str) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(3)
    x = torch.randn(SAMPLES + 16, *SHAPES[kind], generator=draw)
    return x, torch.randint(0, 3, (len(x),), generator=draw)


@dataclass(frozen=True)
class Case:
    """Who leaves a study, when and how.

    Attributes:
        leaves: by member, the step and what is asked: a request, or "diverge" or "fail", which the member does itself.
        breaks: the step before which the run is left, to be resumed from its directory.
        orders: whether each member has the data in an order of its own.
    """

    model: str
    optimizer: str
    members: int
    leaves: Mapping[int, tuple[int, str]]
    breaks: int | None = None
    orders: bool = False

    @classmethod
    def drawn(cls, number: int) -> Case:
        """A case by its number: all models, with the optimizers in turn."""
        draw, names = random.Random(number), list(MODELS)
        model, optimizer = names[number % len(names)], OPTIMIZERS[(number + number // len(names)) % len(OPTIMIZERS)]
        members = draw.choice((2, 3, 4, 5, 6))
        ways = ["stop", "stop", "prune", "delete", "pause", "diverge", "fail"]
        gone = draw.sample(range(members), draw.randint(1, members - 1))
        last = EPOCHS * STEPS - 1
        leaves = {member: (draw.randint(0, last), draw.choice(ways)) for member in gone}
        breaks = draw.choice((None, None, draw.randint(1, last)))
        return cls(model, optimizer, members, leaves, breaks, draw.random() < 0.25)

    def study(self, place: Path, calm: bool, **more: Any) -> hfta.Study:
        """The study; a calm one has the same members, none of which diverges or fails."""
        kind, build = MODELS[self.model]
        failing = any(way == "fail" for _, way in self.leaves.values())

        def made() -> nn.Module:
            return Unlucky(build()) if failing else build()

        lr = 0.5 if self.optimizer == "adadelta" else 0.02
        grid: list[dict[str, Any]] = [{"lr": lr / (1 + m), "seed": m} for m in range(self.members)]
        if self.orders:
            for member, row in enumerate(grid):
                row["data_seed"] = member
        for member, (_, way) in self.leaves.items():
            if way in ("diverge", "fail") and not calm:
                grid[member]["lr"] = BEYOND
        options = {"deterministic": True, "device": "cpu", "batch_size": SAMPLES // STEPS, "padding": 0.9, **more}
        options["keep_checkpoints"] = ["best", "last"]
        x, y = data(kind)
        sets = (x[:SAMPLES], y[:SAMPLES]), (x[SAMPLES:], y[SAMPLES:])
        train, held = (torch.utils.data.TensorDataset(*part) for part in sets)
        return hfta.Study(
            made, grid, data=(train, held), epochs=EPOCHS, optimizer=self.optimizer, directory=place, **options
        )


class Leavings(hfta.Control):
    """Asks for what a case has, before the steps of the array that is first; a pause ends when nothing else is left."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.case, self.steps = case, -1

    def poll(self) -> list[Request]:
        self.steps += 1
        for member, (step, way) in self.case.leaves.items():
            if step == self.steps:
                if way == "prune":
                    self.put(ev.Prune(member, "pruned"))
                elif way in ("stop", "delete", "pause"):
                    getattr(self, way)(member)
        return super().poll()

    def wait(self, timeout_s: float) -> list[Request]:
        for member, (_, way) in self.case.leaves.items():
            if way == "pause":
                self.put(ev.Resume(member))
        return super().poll()


def run(study: hfta.Study, case: Case) -> hfta.Study:
    """Train a study in which members leave; the one that was at the end of it."""
    control = Leavings(case)
    if case.breaks is not None:
        for _ in study.run(control):
            if control.steps >= case.breaks:
                break
        if study.history.state == ev.COMPLETE:
            return study
        study = hfta.Study.load(study.directory, study.family, study.data)
    list(study.run(control, resume=case.breaks is not None))
    return study


def found(study: hfta.Study, members: list[int]) -> dict[int, Any]:
    """What a run has found: by member, its curves and its last weights."""
    every = study.history.members
    curves = {m: {name: (c.epochs, c.values) for name, c in every[m].curves.items()} for m in members}
    return {m: (curves[m], study.member(m).module(at="last").state_dict()) for m in members}


def changed(case: Case, place: Path, **more: Any) -> list[int]:
    """The members that stay whose numbers are others because members have left."""
    calm, left = case.study(place / "calm", True, **more), case.study(place / "left", False, **more)
    list(calm.run())
    left = run(left, case)
    paused = [m for m, (_, way) in case.leaves.items() if way == "pause"]
    stay = [m for m in range(case.members) if m not in case.leaves or m in paused]
    states = {m: left.history.members[m].state for m in stay}
    assert set(states.values()) <= {ev.COMPLETE}, (case, states)
    a, b = found(calm, stay), found(left, stay)
    return [m for m in stay if not _equal(a[m], b[m])]


def _equal(a: Any, b: Any) -> bool:
    (one, weights), (other, others) = a, b
    same = one.keys() == other.keys() and all(tuple(one[k][1]) == tuple(other[k][1]) for k in one)
    return same and all(torch.equal(weights[k], others[k]) for k in weights)
