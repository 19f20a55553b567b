"""Activation checkpointing changes no result: gradients, buffers, random streams, with any block size."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hfta_nb
from hfta_nb import Study, fuse, optim
from hfta_nb.engine.array import FusedArray
from hfta_nb.engine.array.access import checkpoint
from hfta_nb.engine.eager import checkpointing
from hfta_nb.train.memory import Meter


class Blocks(nn.Module):
    """A list of blocks, each with a tensor that all share beside its input."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Dropout(0.3)) for _ in range(3))
        self.out = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = x
        for block in self.blocks:
            h = h + block(h) * x
        return self.out(h)  # type: ignore[no-any-return]


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(6, 2, 12, dropout=0.2, batch_first=True)
        self.encoder, self.out = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.encoder(x.unsqueeze(1)).squeeze(1))  # type: ignore[no-any-return]


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.ModuleList([nn.Sequential(nn.LSTM(6, 6, batch_first=True), Take()) for _ in range(2)])
        self.out = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = x.unsqueeze(1)
        for part in self.inner:
            h = part(h)
        return self.out(h.squeeze(1))  # type: ignore[no-any-return]


class Take(nn.Module):
    def forward(self, pair: Any) -> Tensor:
        return pair[0]  # type: ignore[no-any-return]


def net() -> nn.Module:
    return nn.Sequential(
        *(nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.4)),
        *(nn.Linear(8, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.4), nn.Linear(8, 3)),
    )


def tied() -> nn.Module:
    module = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3))
    module[2].weight = module[0].weight
    return module


def spectral() -> nn.Module:
    """Its normalisation changes a buffer, on which the result depends, in each forward."""
    parts = [torch.nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6)) for _ in range(2)]
    return nn.Sequential(parts[0], nn.Tanh(), parts[1], nn.Tanh(), nn.Linear(6, 3))


MODELS: list[Callable[[], nn.Module]] = [net, Blocks, Encoder, Recurrent, tied, spectral]


def arrays(make: Callable[[], nn.Module], device: torch.device) -> tuple[FusedArray, FusedArray]:
    made = []
    for again in (False, True):
        torch.manual_seed(0)
        array = fuse([make().to(device, torch.float64) for _ in range(4)], [3, 1, 4, 1])
        checkpoint(array, again)
        made.append(array)
    assert made[1].engine.segments
    return made[0], made[1]


def batch(device: torch.device) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(12, 6, generator=generator, dtype=torch.float64)
    return x.to(device), (torch.arange(12) % 3).to(device)


@pytest.mark.each("make")
@pytest.mark.parametrize("size", [4, 3, 1])
@pytest.mark.parametrize("make", MODELS)
def test_same_numbers(make: Callable[[], nn.Module], size: int, device: torch.device) -> None:
    plain, again = arrays(make, device)
    x, y = batch(device)
    optimizers = [optim.Adam(a, lr=[1e-3, 1e-2, 3e-3, 1e-1]) for a in (plain, again)]
    for _ in range(6):  # recorded and, where nothing is drawn, replayed on the way
        losses = []
        for array, optimizer in zip((plain, again), optimizers, strict=True):
            array.block_size = size
            optimizer.zero_grad()
            losses.append(array.backward(nn.functional.cross_entropy, x, y))
        torch.testing.assert_close(losses[1], losses[0], rtol=0, atol=1e-11)
        for (name, p), q in zip(plain.named_parameters(), again.parameters(), strict=True):
            torch.testing.assert_close(q.grad, p.grad, rtol=0, atol=1e-10, msg=lambda m, n=name: f"{n}: {m}")
        for b, c in zip(plain.buffers(), again.buffers(), strict=True):
            torch.testing.assert_close(c, b, rtol=0, atol=1e-11)
        for s, t in zip(plain.generators.states, again.generators.states, strict=True):
            assert all(torch.equal(s[k], t[k]) for k in s)
        for optimizer in optimizers:
            optimizer.step()


@pytest.mark.filterwarnings("ignore:an input .* that requires a gradient goes to all")
def test_the_split_form_and_the_gradient_of_the_input(device: torch.device) -> None:
    plain, again = arrays(Blocks, device)
    x, _ = batch(device)
    found = []
    for array in (plain, again):
        given = x.clone().requires_grad_()
        array(given).square().sum().backward()
        found.append([given.grad, *(p.grad for p in array.parameters())])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(b, a, rtol=0, atol=1e-10)


def test_evaluation_is_as_ever(device: torch.device) -> None:
    plain, again = arrays(net, device)
    x, _ = batch(device)
    with torch.no_grad():
        assert torch.equal(plain.eval()(x), again.eval()(x))


def test_a_nan_stays_with_its_member(device: torch.device) -> None:
    one, two = arrays(net, device)
    x, y = batch(device)
    with torch.no_grad():
        next(iter(two.parameters()))[1] = float("nan")
    losses = [a.backward(nn.functional.cross_entropy, x, y) for a in (one, two)]
    assert losses[1][1].isnan()
    rest = [0, 2, 3]
    for p, q in zip(one.parameters(), two.parameters(), strict=True):
        torch.testing.assert_close(q.grad[rest], p.grad[rest], rtol=0, atol=1e-12)  # type: ignore[index]


def test_autocast_is_the_same_the_second_time(device: torch.device) -> None:
    made = []
    for again in (False, True):
        torch.manual_seed(0)
        array = fuse([tied().to(device) for _ in range(3)], [0, 1, 2])
        checkpoint(array, again)
        made.append(array)
    x, y = batch(device)
    for array in made:
        with torch.autocast(device.type, torch.bfloat16):
            array.backward(nn.functional.cross_entropy, x.float(), y)
    for p, q in zip(*(a.parameters() for a in made), strict=True):
        assert p.grad is not None
        torch.testing.assert_close(q.grad, p.grad, rtol=2e-2, atol=2e-3)


def test_surgery_keeps_it(device: torch.device) -> None:
    _, again = arrays(net, device)
    part = again.select([2, 0])
    assert part.settings.checkpointed
    assert part.engine.segments == again.engine.segments


@pytest.mark.filterwarnings("ignore:members .* share")
def test_it_takes_less_memory(device: torch.device) -> None:
    peaks = []
    layers = [m for _ in range(16) for m in (nn.Linear(64, 64), nn.Tanh())]
    for again in (False, True):
        array = fuse([nn.Sequential(*layers).to(device) for _ in range(4)])
        checkpoint(array, again)
        x = torch.rand(4096, 64, device=device)
        with Meter(device) as meter:
            array.backward(lambda out, _: out.square().mean(), x, None)
        peaks.append(meter.peak_bytes)
    # On a GPU the peak contains memory within kernels.
    assert peaks[1] < (0.6 if device.type == "cpu" else 0.7) * peaks[0]


def test_segments_of_built_in_families() -> None:
    found = {name: checkpointing.segments(hfta_nb.family(name).build()) for name in ("mlp", "cnn", "transformer_lm")}
    assert all(found.values()), found


@pytest.mark.parametrize("how", ["always", "never"])
def test_a_study(how: str, tmp_path: Path) -> None:
    asked: dict[str, Any] = {"epochs": 2, "dtype": "float64", "device": "cpu", "dropout": 0.3}
    grid = {"lr": [1e-3, 1e-2, 1e-1]}
    plain = Study("mlp", grid, "iris", directory=tmp_path / "plain", **asked)
    study = Study("mlp", grid, "iris", directory=tmp_path / "run", checkpointing=how, **asked)
    for each in (plain, study):
        list(each.run())
    strategy = study.history.groups[0].strategy
    assert ("activations computed again" in strategy) == (how == "always")
    for i, member in study.history.members.items():
        for name, curve in member.curves.items():
            other = plain.history.members[i].curves[name].values
            assert curve.values == pytest.approx(other, rel=0, abs=1e-10)
    assert Study.load(tmp_path / "run").checkpointing == how


def test_explain_tells_what_is_computed_again_and_that_it_is_not_replayed() -> None:
    def told(array: FusedArray) -> list[str]:
        return [how for how in array.explain()["how"] if "activations" in how]

    def made(width: int, activation: type[nn.Module] = nn.ReLU) -> nn.Module:
        return nn.Sequential(nn.Linear(4, width), activation(), nn.Linear(width, width), nn.Linear(width, 2))

    array = fuse([made(5), made(5)])
    assert told(array) == []
    checkpoint(array, True)
    assert told(array) == ["activations within the model are computed again in the backward"]
    array.capture = False
    reason = "; not recorded, as a recording holds what this lets go of"
    assert told(array) == ["activations within the model are computed again in the backward" + reason]
    single = fuse([nn.Linear(4, 2), nn.Linear(4, 2)])
    checkpoint(single, True)
    assert told(single) == ["activations are kept, as the model has no segments to compute again"]
    unlike = fuse([made(5), made(4)])
    checkpoint(unlike, True)
    assert told(unlike) == ["activations are kept, as members are of different architecture"]
