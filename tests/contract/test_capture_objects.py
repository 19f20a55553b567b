"""Losses that are methods of objects, and models that hold objects: replayed, and what the code reads is watched."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.contract.replay import REPLAYED, compare_backward, mlp, notes, pair, warm_backward
from tests.contract.serial import loss_of


def _draw() -> Tensor:
    return torch.rand(2, generator=torch.Generator().manual_seed(0))


@dataclass(frozen=True)
class Frozen:
    """A job: what its method does not read is not analysed."""

    weight: Any = 1.0
    draw: Callable[[], Tensor] = _draw

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return self.weight * loss_of(output, target)


@dataclass(frozen=True, slots=True)
class Slotted:
    weight: float = 1.0
    draw: Callable[[], Tensor] = _draw

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return self.weight * loss_of(output, target)


class Trainer:
    """With all that a trainer has; its configuration has the weight."""

    weight = 1.0

    def __init__(self) -> None:
        self.config = argparse.Namespace(weights=[1.0], stream=_draw)
        self.stream, self.steps, self.history = torch.Generator(), 0, list[float]()

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return self.weight * self.config.weights[0] * loss_of(output, target)


class Alike(Frozen):
    """Equal to any other."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Alike)

    __hash__ = Frozen.__hash__


class Nested(Trainer):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Alike()

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return self.inner.loss(output, target)


CHANGES: dict[str, tuple[type, Callable[[Any], Any]]] = {
    "a field": (Frozen, lambda o: object.__setattr__(o, "weight", 3.0)),
    "a field's type": (Frozen, lambda o: object.__setattr__(o, "weight", torch.tensor(3.0))),
    "a slot": (Slotted, lambda o: object.__setattr__(o, "weight", 3.0)),
    "an attribute in place of the class's": (Trainer, lambda o: setattr(o, "weight", 3.0)),
    "an attribute of the class": (Trainer, lambda o: setattr(type(o), "weight", type(o).weight + 1)),
    "a value deep within": (Trainer, lambda o: o.config.weights.__setitem__(0, 3.0)),
    "a configuration": (Trainer, lambda o: setattr(o, "config", argparse.Namespace(weights=[5.0]))),
    "an equal object": (Nested, lambda o: setattr(o, "inner", Alike(5.0))),
    "the method": (Trainer, lambda o: setattr(o, "loss", loss_of)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_what_a_method_reads_is_obeyed(change: str, x: Tensor, y: Tensor) -> None:
    array, other = pair(mlp, x.device)
    kind, changed = CHANGES[change]
    held = kind()
    warm_backward(array, other, held.loss, x, y)
    changed(held)
    warm_backward(array, other, held.loss, x, y)


def test_what_a_method_does_not_read_may_change(x: Tensor, y: Tensor) -> None:
    array, other = pair(mlp, x.device)
    held = Trainer()
    warm_backward(array, other, held.loss, x, y)
    recorded = array._calls.steps.programs()
    for _ in range(3):
        held.steps, held.extra = held.steps + 1, object()
        held.history.append(0.0)
        compare_backward(array, other, held.loss, x, y)
    assert array._calls.steps.programs() == recorded


class Held(nn.Module):
    """A model with an object in which there is more than it reads."""

    def __init__(self, scale: argparse.Namespace) -> None:
        super().__init__()
        self.arguments, self.inner = scale, nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * self.arguments.scale  # type: ignore[no-any-return]


def test_a_model_with_an_object_is_replayed(x: Tensor, y: Tensor) -> None:
    array, other = pair(lambda: Held(argparse.Namespace(scale=2.0, stream=_draw)), x.device)
    warm_backward(array, other, loss_of, x, y)
    for a in (array, other):
        a._skeleton.arguments.scale = 5.0
    warm_backward(array, other, loss_of, x, y)


@dataclass
class Tried:
    """Reads its fields in ways that do not name them, or writes them."""

    draw: Callable[..., Tensor]
    weight: float = 1.0
    parts: list[float] = field(default_factory=lambda: [1.0])

    def computed(self, output: Tensor, target: Tensor) -> Tensor:
        return getattr(self, "wei" + "ght") * loss_of(output, target)  # type: ignore[no-any-return]

    def matched(self, output: Tensor, target: Tensor) -> Tensor:
        match self:
            case Tried(weight=found):
                return found * loss_of(output, target)
        raise AssertionError

    def formatted(self, output: Tensor, target: Tensor) -> Tensor:
        return len(f"{self}") * loss_of(output, target)

    def compared(self, output: Tensor, target: Tensor) -> Tensor:
        return (2.0 if self == _ORIGINAL else 1.0) * loss_of(output, target)

    def counted(self, output: Tensor, target: Tensor) -> Tensor:
        self.weight += 1.0
        return loss_of(output, target)

    def written(self, output: Tensor, target: Tensor) -> Tensor:
        object.__setattr__(self, "weight", 2.0 if self.parts[0] < 2 else 3.0)
        return loss_of(output, target)


_ORIGINAL = Tried(torch.sum)
REFUSED = "not recorded: `_draw` uses Generator"
TOLD = dict.fromkeys(["computed", "matched", "formatted", "compared"], (REPLAYED, REFUSED)) | {
    way: (f"not recorded: a loss, metric or hook keeps a value for each member: Tried.{way}.weight",) * 2
    for way in ("counted", "written")
}
"""By what a method does: how it runs where all fields are clear, and where one is not."""


@pytest.mark.parametrize("way", TOLD)
def test_fields_that_are_read_without_their_names_are_watched(way: str, x: Tensor, y: Tensor) -> None:
    for draw, told in zip((torch.sum, _draw), TOLD[way], strict=True):
        array, other = pair(mlp, x.device)
        held = Tried(draw)
        for weight in (1.0, 20.0):
            held.weight = weight
            compare_backward(array, other, getattr(held, way), x, y)
        assert notes(array, "backward") == told
