"""What a user hands over beside the model: one table of situations, each against the user's own plain loop.

The reference is written here as a user writes it: a plain module, torch's optimizer, the loss and the data as they are.
It shares no conversion with the package. A situation is trained for `STEPS` steps, which are enough to be recorded and
replayed, in each of its forms:

- ``backward``: ``array.backward(loss, x, y)``
- ``member``: the same, where the loss reads its model by `hfta.member`
- ``losses``: ``array.losses(loss, array(x), y)``
- ``forward``: ``array(x)``, and the user's loss of each member's row
- ``study``: `Study`, one step an epoch; it has the validation's curves as well

Rows are in ``tests/contract/handed/``, one file a kind, each with a list ``SITUATIONS``.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hfta_nb as hfta
from tests.contract import handed

STEPS = 12
SEEDS = (0, 1, 2)
LR = 0.01
TOLERANCE = 1e-10


def numbers(*shape: int, seed: int = 0) -> Tensor:
    """Float64 from a normal distribution."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Regressor(nn.Module):
    """``[N, 4]`` to ``[N, outputs]``, or to ``[N]`` with no outputs."""

    def __init__(self, outputs: int = 1) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, max(outputs, 1)))
        self.flat = outputs == 0

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layers(x)
        return found.squeeze(-1) if self.flat else found


def macro_f1(output: Tensor, y: Tensor) -> float:
    """Of three classes, without scikit-learn, which takes long to import."""
    found = output.argmax(-1).numpy()
    both = [2 * ((found == k) & (y.numpy() == k)).sum() / ((found == k).sum() + (y.numpy() == k).sum())
            for k in range(3)]  # fmt: skip
    return float(np.mean(both))


@dataclass(frozen=True)
class Situation:
    """Something that a user hands over.

    Attributes:
        kind: number of the kind of situation.
        name: of the test.
        loss: makes the loss as the user writes it, anew for each training; it may hold parameters and state.
        build: makes the model.
        x, y: the one batch, which is also what is validated; `y` may be any tree.
        reads: in place of `loss`, computes the loss of a model, its output and the target.
        outside: computes the M losses of an array, ``array(x)`` and the target in the form ``forward``.
        metrics: makes the metrics of a study; None for the family's.
        forms: in which it is trained.
        refused: by form, the class of the error of the first call and a pattern of its message.
        handed: from the M members' losses to what the array's loop is given: the first of them, which is for all
            members, or `hfta.fuse`.
        options: further arguments of the study.
        long: those of the forms that are tested in the tier of long tests.
    """

    kind: int
    name: str
    loss: Callable[[], Any] = lambda: F.mse_loss
    build: Callable[[], nn.Module] = Regressor
    x: Any = field(default_factory=lambda: numbers(12, 4))
    y: Any = field(default_factory=lambda: numbers(12, 1, seed=1))
    reads: Callable[[Any, Any, Any], Tensor] | None = None
    outside: Callable[[Any, Any, Any], Tensor] | None = None
    metrics: Callable[[], dict[str, Any]] | None = None
    forms: Sequence[str] = ("backward", "losses", "forward", "study")
    refused: Mapping[str, tuple[type[Exception], str]] = field(default_factory=dict)
    handed: Callable[[list[Any]], Any] = lambda losses: losses[0]
    options: Mapping[str, Any] = field(default_factory=dict)
    long: Sequence[str] = ()

    def __repr__(self) -> str:
        return f"{self.kind}-{self.name}"


@dataclass
class Trained:
    """What came of a training.

    Attributes:
        losses: one per step.
        weights: of the model, and those of the loss with names that begin with ``loss.``.
        validation: of each step, the loss and the metrics after it.
    """

    losses: list[float] = field(default_factory=list)
    weights: dict[str, Tensor] = field(default_factory=dict)
    validation: dict[str, list[float]] = field(default_factory=dict)


def built(situation: Situation, seed: int) -> nn.Module:
    """A member's plain module in float64."""
    torch.manual_seed(seed)
    return situation.build().double()


def made_loss(situation: Situation, model: Any = None) -> Any:
    """A loss of the user's, in float64 where it is a module; one that reads reads this model, or `hfta.member`."""
    if situation.reads is not None:
        reads = situation.reads
        return lambda o, y: reads(hfta.member() if model is None else model, o, y)
    loss = situation.loss()
    return loss.double() if isinstance(loss, nn.Module) else loss


def weights_of(model: nn.Module, loss: Any) -> dict[str, Tensor]:
    """Of a plain module and its loss."""
    own = loss.state_dict() if isinstance(loss, nn.Module) else {}
    found = {**model.state_dict(), **{f"loss.{k}": v for k, v in own.items()}}
    return {k: v.detach().clone() for k, v in found.items() if isinstance(v, Tensor)}


def alone(situation: Situation, seed: int, validated: bool = True) -> Trained:
    """The user's own loop for one member, with a validation after each step or without."""
    model, metrics = built(situation, seed), (situation.metrics or dict)()
    loss = made_loss(situation, model)
    own = list(loss.parameters()) if isinstance(loss, nn.Module) else []
    optimizer = torch.optim.Adam([*model.parameters(), *own], lr=LR)
    found = Trained()
    for _ in range(STEPS):
        model.train()
        optimizer.zero_grad()
        value = loss(model(situation.x), situation.y)
        value.backward()
        optimizer.step()
        found.losses.append(value.item())
        if validated:
            model.eval()
            with torch.no_grad():
                out = model(situation.x)
                scores = {"loss": loss(out, situation.y)} | {k: m(out, situation.y) for k, m in metrics.items()}
            for name, score in scores.items():
                found.validation.setdefault(name, []).append(float(score))
    found.weights = weights_of(model, loss)
    return found


def by_array(situation: Situation, form: str, seeds: Sequence[int] = SEEDS) -> list[Trained]:
    """All members by an array, in a loop of the user's own."""
    array = hfta.fuse([built(situation, seed) for seed in seeds])
    losses = [made_loss(situation) for _ in seeds]
    loss = situation.handed(losses)
    if situation.reads is not None and form != "member":
        loss = made_loss(situation, array)
    optimizers = [hfta.optim.Adam(array, lr=LR)]
    if isinstance(loss, hfta.FusedArray) and next(loss.parameters(), None) is not None:
        optimizers.append(hfta.optim.Adam(loss, lr=LR))
    found = [Trained() for _ in seeds]
    for _ in range(STEPS):
        for optimizer in optimizers:
            optimizer.zero_grad()
        if form in ("backward", "member"):
            values = array.backward(loss, situation.x, situation.y)
        else:
            out = array(situation.x)
            if situation.outside is not None and form == "forward":
                values = situation.outside(array, out, situation.y)
            elif form == "losses":
                values = array.losses(loss, out, situation.y)
            else:
                values = torch.stack([own(out[i], situation.y) for i, own in enumerate(losses)])
            values.sum().backward()
        for optimizer in optimizers:
            optimizer.step()
        for member, value in zip(found, values.tolist(), strict=True):
            member.losses.append(value)
    for i, member in enumerate(found):
        own = loss[i] if isinstance(loss, hfta.FusedArray) else losses[i]
        # In "backward" and "losses", one loss object is given for all; its state is compared where it is fused.
        member.weights = weights_of(array[i], own if form == "forward" or isinstance(loss, hfta.FusedArray) else None)
    return found


def by_study(situation: Situation, place: Path, seeds: Sequence[int] = SEEDS) -> tuple[hfta.Study, list[Trained]]:
    """All members by a study, one step an epoch."""
    data = (situation.x, situation.y, situation.x, situation.y)
    options = {"monitor": "val_loss", "batch_size": 12, "optimizer": "adam", "lr": LR, **situation.options}
    if situation.metrics is not None:
        options["metrics"] = situation.metrics()
    study = hfta.Study(situation.build, {"seed": list(seeds)}, data, epochs=STEPS, loss=made_loss(situation),
                       device="cpu", dtype="float64", keep_checkpoints=["best", "last"], directory=place,
                       **options)  # fmt: skip
    study.fit(progress=False)
    found = []
    for variant in study.variants:
        curves = study.history.members[variant.id].curves
        validation = {k.removeprefix("val_"): v.values for k, v in curves.items() if k.startswith("val_")}
        weights = weights_of(study.member(variant.id).module(at="last"), None)
        found.append(Trained(curves["train_loss"].values, weights, validation))
    return study, found


def compare(found: Trained, expected: Trained) -> None:
    """Assert that two trainings are equal up to rounding."""
    torch.testing.assert_close(_tensor(found.losses), _tensor(expected.losses), rtol=TOLERANCE, atol=TOLERANCE)
    for name, value in found.weights.items():
        torch.testing.assert_close(value, expected.weights[name], rtol=TOLERANCE, atol=TOLERANCE)
    for name, values in found.validation.items():
        if name in expected.validation:
            own = _tensor(expected.validation[name])
            torch.testing.assert_close(_tensor(values), own, rtol=TOLERANCE, atol=TOLERANCE)


def _tensor(values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def situations() -> list[Situation]:
    """All rows, by kind."""
    modules = [importlib.import_module(f"{handed.__name__}.{m.name}") for m in pkgutil.iter_modules(handed.__path__)]
    return sorted((row for module in modules for row in module.SITUATIONS), key=lambda row: row.kind)
