"""Tasks: architectures with their batches and losses, at sizes for a CPU and for a GPU."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.profiler import record_function

import hfta_nb as hfta
from benchmarks.suite.adversaries import GivenNoise
from benchmarks.suite.recurrence import WrittenOutLSTM
from hfta_nb.models.phases import Phase

Loss = Callable[[Any, Any], Tensor]
Draw = Callable[[int], tuple[Any, Tensor]]

BATCHES = 16
"""Batches in the data set, which is on the device as a whole and is used cyclically."""

DATA = "suite::data"
"""The name of batch drawing in torch's profiler."""


@dataclass(frozen=True)
class Update:
    """One forward pass, its gradients, and a step of the optimizer.

    Attributes:
        words: keywords for the module.
        loss: from one member's output and y to its loss.
        trains: names of the parameters that the optimizer steps.
    """

    words: dict[str, str]
    loss: Loss
    trains: list[str]

    def loss_of(self, module: Callable[..., Any], x: Any, y: Any) -> Tensor:
        """The loss of a module or its replacement."""
        return self.loss(module(*inputs(x), **self.words), y)


@dataclass(frozen=True)
class Task:
    """An architecture and its training data.

    Attributes:
        name: on the command line.
        build: creates a member, initialised by torch's default generator.
        draw: from a number of samples to x, a tensor or a tuple of several, and y.
        batch: samples in a mini-batch.
        loss: from one member's output and y to its loss; not used with phases.
        size: the size in words.
        fallback: creates an equal module of plain operations, if `build`'s uses a kernel that `torch.func.vmap` and the
            counter of operations do not support; otherwise None.
        phases: of a step, for several networks with an optimizer each (see `hfta_nb.models.phases.Phase`).
    """

    name: str
    build: Callable[[], nn.Module]
    draw: Draw
    batch: int
    loss: Loss
    size: str
    fallback: Callable[[], nn.Module] | None = None
    phases: tuple[Phase, ...] = ()

    def updates(self, names: Iterable[str]) -> list[Update]:
        """The updates of a step, given the names of all parameters."""
        known = list(names)
        if not self.phases:
            return [Update({}, self.loss, known)]
        return [Update({"phase": p.name}, p.loss, [n for n in known if p.has(n)]) for p in self.phases]

    def member(self, seed: int) -> nn.Module:
        """The member with this seed; torch's default generator is left unchanged."""
        return _seeded(self.build, seed)

    def plain_member(self, seed: int) -> nn.Module:
        """The same in plain operations."""
        module = _seeded(self.fallback or self.build, seed)
        module.load_state_dict(self.member(seed).state_dict())
        return module

    def data(self) -> tuple[Any, Tensor]:
        """The whole data set: `BATCHES` batches of random samples, the same in every process."""
        return _seeded(lambda: self.draw(BATCHES * self.batch), 12345)


class Feed:
    """Batches of the data set, selected by index on the device, in the same order for all modes.

    Args:
        task: the task.
        device: of the data set.
    """

    marked = False
    """Whether batch drawing is marked for torch's profiler."""

    def __init__(self, task: Task, device: torch.device) -> None:
        x, y = task.data()
        self.one = isinstance(x, Tensor)
        self.x, self.y = [part.to(device) for part in inputs(x)], y.to(device)
        order = _seeded(lambda: torch.randperm(len(y)), 54321)
        self.rows = list(order.view(BATCHES, task.batch).to(device))

    def __call__(self, step: int) -> tuple[Any, Tensor]:
        """The batch of a step."""
        if not Feed.marked:
            return self._drawn(step)
        with record_function(DATA):
            return self._drawn(step)

    def _drawn(self, step: int) -> tuple[Any, Tensor]:
        rows = self.rows[step % BATCHES]
        parts = tuple(part.index_select(0, rows) for part in self.x)
        return parts[0] if self.one else parts, self.y.index_select(0, rows)


def inputs(x: Any) -> tuple[Any, ...]:
    """The positional inputs that x stands for."""
    return x if isinstance(x, tuple) else (x,)


def tasks() -> list[str]:
    """Names of all tasks."""
    return list(_TASKS)


def task(name: str, device: str, quick: bool = False) -> Task:
    """A task at the size for a device; `quick`, the smallest one."""
    scale = "quick" if quick else "gpu" if device.startswith("cuda") else "cpu"
    return _TASKS[name](name, scale)


def _seeded(make: Callable[[], Any], seed: int) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


def _images(channels: int, size: int, classes: int = 10) -> Callable[[int], tuple[Tensor, Tensor]]:
    return lambda n: (torch.randn(n, channels, size, size), torch.randint(0, classes, (n,)))


def _tokens(vocabulary: int, length: int) -> Callable[[int], tuple[Tensor, Tensor]]:
    def draw(n: int) -> tuple[Tensor, Tensor]:
        text = torch.randint(0, vocabulary, (n, length + 1))
        return text[:, :-1].contiguous(), text[:, 1:].contiguous()

    return draw


def _points(points: int, classes: int, each: bool) -> Callable[[int], tuple[Tensor, Tensor]]:
    return lambda n: (torch.randn(n, points, 3), torch.randint(0, classes, (n, points) if each else (n,)))


def _mlp(name: str, scale: str) -> Task:
    wide = 16 if scale == "quick" else 128

    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(64, wide), nn.ReLU(), nn.Linear(wide, wide), nn.ReLU(), nn.Linear(wide, 10))

    batch = 8 if scale == "quick" else 64
    size = f"64-{wide}-{wide}-10 with ReLU, batches of {batch}"
    return Task(name, build, lambda n: (torch.randn(n, 64), torch.randint(0, 10, (n,))), batch, F.cross_entropy, size)


def _cnn(name: str, scale: str) -> Task:
    side, batch, wide = (12, 4, 8) if scale == "quick" else (28, 32, 16)

    def build() -> nn.Module:
        first = [nn.Conv2d(1, wide, 3, padding=1), nn.GroupNorm(4, wide), nn.ReLU(), nn.MaxPool2d(2)]
        second = [nn.Conv2d(wide, 2 * wide, 3, padding=1), nn.GroupNorm(4, 2 * wide), nn.ReLU(), nn.MaxPool2d(2)]
        return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(2 * wide * (side // 4) ** 2, 10))

    size = f"two 3x3 convolutions ({wide} and {2 * wide} channels) with group norm, {side}x{side}, batches of {batch}"
    return Task(name, build, _images(1, side), batch, F.cross_entropy, size)


def _lstm(name: str, scale: str) -> Task:
    wide, length, batch = {"quick": (8, 5, 2), "cpu": (64, 32, 16), "gpu": (256, 32, 32)}[scale]
    words = 16 if scale == "quick" else 64
    family = hfta.family("lstm_lm")
    build = functools.partial(family.build, width=wide, dropout=0.0, vocab_size=words)

    def plain() -> nn.Module:
        module = build()
        module.recurrent = WrittenOutLSTM(wide, wide)
        return module

    size = f"lstm_lm, width {wide}, {words} words, {batch} sequences of {length}"
    return Task(name, build, _tokens(words, length), batch, hfta.losses.for_task("language_model"), size, plain)


def _transformer(name: str, scale: str) -> Task:
    sizes = {"quick": (16, 5, 2, 1, 16), "cpu": (64, 32, 16, 2, 64), "gpu": (128, 32, 32, 2, 33278)}
    wide, length, batch, depth, words = sizes[scale]
    family = hfta.family("transformer_lm")
    build = functools.partial(
        family.build,
        **{"width": wide, "depth": depth, "heads": 2, "mlp_ratio": 1.0 if scale == "gpu" else 2.0},
        **{"dropout": 0.0, "vocab_size": words, "context": length},
    )
    size = f"transformer_lm, width {wide}, depth {depth}, {words} words, {batch} sequences of {length}"
    return Task(name, build, _tokens(words, length), batch, hfta.losses.for_task("language_model"), size)


def _bert(name: str, scale: str) -> Task:
    wide, length, batch, depth, words = {
        "quick": (16, 5, 2, 1, 16),
        "cpu": (64, 32, 8, 2, 64),
        "gpu": (512, 32, 32, 8, 33278),
    }[scale]
    build = functools.partial(
        hfta.family("bert").build,
        **{"size": "own", "width": wide, "depth": depth, "heads": 8 if scale == "gpu" else 2},
        **{"dropout": 0.0, "vocab_size": words, "context": length},
    )
    size = f"bert, width {wide}, depth {depth}, {words} words, {batch} sequences of {length}"
    return Task(name, build, _tokens(words, length), batch, hfta.losses.for_task("language_model"), size)


def _resnet(name: str, scale: str) -> Task:
    wide, side, batch = {"quick": (4, 8, 2), "cpu": (8, 32, 8), "gpu": (64, 32, 1000)}[scale]
    build = functools.partial(hfta.family(name).build, width=wide)
    return Task(
        name, build, _images(3, side), batch, F.cross_entropy, f"{name}, width {wide}, {batch} of {side}x{side}"
    )


def _mobilenet(name: str, scale: str) -> Task:
    wide, side, batch = {"quick": (0.25, 8, 8), "cpu": (0.25, 32, 8), "gpu": (1.0, 32, 1024)}[scale]
    build = functools.partial(hfta.family(name).build, width_multiplier=wide, dropout=0.0)
    size = f"{name}, width multiplier {wide}, {batch} of {side}x{side}, no dropout"
    return Task(name, build, _images(3, side), batch, F.cross_entropy, size)


def _pointnet(name: str, scale: str) -> Task:
    wide, points, batch = {"quick": (4, 8, 4), "cpu": (16, 128, 8), "gpu": (64, 2500, 32)}[scale]
    each = name.endswith("seg")
    family, classes = hfta.family(name), 16 if each else 40
    build = functools.partial(family.build, width=wide, num_classes=classes, **({} if each else {"dropout": 0.0}))
    loss = family.loss or hfta.losses.for_task("segmentation" if each else "classification")
    size = f"{name}, width {wide}, {batch} clouds of {points} points" + ("" if each else ", no dropout")
    return Task(name, build, _points(points, classes, each), batch, loss, size)


def _dcgan(name: str, scale: str) -> Task:
    wide, side, latent, batch = {"quick": (4, 16, 8, 4), "cpu": (8, 32, 32, 16), "gpu": (64, 64, 100, 64)}[scale]
    family = hfta.family(name)
    sizes = {"generator_width": wide, "discriminator_width": wide, "latent": latent, "image_size": side}

    def draw(n: int) -> tuple[Any, Tensor]:
        noise = [torch.randn(n, latent, 1, 1) for _ in range(2)]
        return (torch.rand(n, 3, side, side) * 2 - 1, *noise), torch.zeros(n)

    size = f"{name}, width {wide}, {batch} of {side}x{side}, noise of {latent} given"
    build = functools.partial(_given_noise, family, sizes)
    return Task(name, build, draw, batch, family.phases[0].loss, size, phases=tuple(family.phases))


def _given_noise(family: Any, sizes: dict[str, int]) -> nn.Module:
    return GivenNoise(family.build(**sizes))


_TASKS: dict[str, Callable[[str, str], Task]] = {
    "mlp": _mlp,
    "cnn": _cnn,
    "lstm": _lstm,
    "transformer": _transformer,
    "resnet18": _resnet,
    "mobilenet_v3_large": _mobilenet,
    "pointnet_cls": _pointnet,
    "pointnet_seg": _pointnet,
    "dcgan": _dcgan,
    "bert": _bert,
}
