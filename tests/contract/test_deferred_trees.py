"""Calls put off that take keywords, return several tensors, have a tree as target, or train some parameters only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.array import FusedArray
from hfta_nb.members.tree import tensor_map
from hfta_nb.replay.deferred import Deferred
from tests.contract.replay import MEMBERS, forget, notes, pair, same
from tests.contract.serial import plain

TOGETHER = "array(x), losses, sum, backward"
CLOSE = {"atol": 1e-13, "rtol": 1e-13}
STEPS = 14
ROUNDED = 1e-11
"""What last bits may grow to in as many steps of Adam."""


class Pair(NamedTuple):
    """Outputs by name."""

    real: Tensor
    fake: Tensor


class Networks(nn.Module):
    """Two networks that train each other, in the manner of a GAN."""

    def __init__(self, kind: Callable[..., Any] = tuple) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(4, 6, bias=False), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 5))
        self.discriminator = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Dropout(0.2), nn.Linear(6, 1))
        self.kind = kind

    def forward(self, real: Tensor, noise: Tensor, phase: str = "discriminator") -> Any:
        if phase == "generator":
            return self.discriminator(self.generator(noise))
        found = self.discriminator(real), self.discriminator(self.generator(noise).detach())
        return self.kind(found)


def as_dict(found: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
    return {"real": found[0], "fake": found[1]}


def as_fields(found: tuple[Tensor, Tensor]) -> Pair:
    return Pair(*found)


def tell_apart(output: Any, _: Any) -> Tensor:
    """The discriminator's loss."""
    real, fake = output.values() if isinstance(output, dict) else output
    return F.softplus(-real).mean() + F.softplus(fake).mean()


def deceive(output: Tensor, _: Any) -> Tensor:
    """The generator's."""
    return F.softplus(-output).mean()


@pytest.fixture
def x(device: torch.device) -> Tensor:
    return torch.randn(6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(device)


@pytest.fixture
def noise(device: torch.device) -> Tensor:
    return torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).to(device)


@pytest.fixture
def y(device: torch.device) -> Tensor:
    return torch.tensor([0, 1, 2, 0, 1, 2]).to(device)


def _of(array: FusedArray, name: str) -> list[nn.Parameter]:
    return [p for n, p in array.named_parameters() if n.startswith(name)]


@pytest.mark.each
@pytest.mark.parametrize("block", [3, 1])
@pytest.mark.parametrize("kind", [tuple, list, as_dict, as_fields])
def test_networks_in_turn(kind: Callable[..., Any], block: int, x: Tensor, noise: Tensor, device: torch.device) -> None:
    if device.type != "cpu":
        pytest.skip("a GPU's random streams are not put off")
    arrays = pair(lambda: Networks(kind), device)
    arrays[0].block_size = block
    optimizers = [
        [hfta.optim.Adam(_of(a, name), lr=[0.1, 0.01, 0.03]) for name in ("discriminator", "generator")] for a in arrays
    ]
    for step in range(STEPS):
        for phase, loss in (("discriminator", tell_apart), ("generator", deceive)):
            told = []
            for a, (first, second) in zip(arrays, optimizers, strict=True):
                optimizer = first if phase == "discriminator" else second
                optimizer.zero_grad()
                out = a(x + step, noise - step, phase=phase)
                losses = a.losses(loss, out)
                losses.sum().backward(inputs=_of(a, phase))
                told.append((out, losses))
            found, wanted = told
            assert type(found[0]) is type(wanted[0])
            torch.testing.assert_close(tell(found), tell(wanted), atol=ROUNDED, rtol=ROUNDED)
            same(*arrays, within=ROUNDED, exact=False)
            for pairs in optimizers:
                pairs[phase == "generator"].step()
            torch.testing.assert_close(*[dict(a.named_parameters()) for a in arrays], atol=ROUNDED, rtol=ROUNDED)
    assert notes(arrays[0], TOGETHER)
    out = arrays[0](x, noise, phase="discriminator")
    assert all(type(v) is Deferred for v in (out.values() if isinstance(out, dict) else out))


def tell(values: Any) -> Any:
    """The same, apart from any graph."""
    return tensor_map(Tensor.detach, values)


def _begun(array: FusedArray, x: Tensor, noise: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
    forget(array)
    out = array(x, noise)
    return out, array.losses(tell_apart, out)


def _warm(arrays: tuple[FusedArray, FusedArray], x: Tensor, noise: Tensor) -> None:
    for _ in range(STEPS):
        for a in arrays:
            _begun(a, x, noise)[1].sum().backward()
        same(*arrays)
    assert notes(arrays[0], TOGETHER)


@pytest.fixture
def arrays(x: Tensor, noise: Tensor, device: torch.device) -> tuple[FusedArray, FusedArray]:
    """Of which the first puts off."""
    if device.type != "cpu":
        pytest.skip("a GPU's random streams are not put off")
    made = pair(Networks, device)
    _warm(made, x, noise)
    return made


ALSO: dict[str, Callable[[FusedArray, tuple[Tensor, Tensor]], Any]] = {
    "one of the outputs": lambda a, out: a.losses(deceive, out[1]),
    "the other way round": lambda a, out: a.losses(tell_apart, (out[1], out[0])),
    "in a list": lambda a, out: a.losses(tell_apart, list(out)),
    "twice the same": lambda a, out: a.losses(tell_apart, (out[0], out[0])),
    "another loss": lambda a, out: a.losses(lambda o, _: o[0].mean() * o[1].mean(), out),
    "a sum": lambda a, out: out[0].sum(tuple(range(1, out[0].ndim))) + out[1].mean((1, 2)),
}


@pytest.mark.each
@pytest.mark.parametrize("also", ALSO)
def test_something_else_is_done_with_the_outputs(
    also: str, x: Tensor, noise: Tensor, arrays: tuple[FusedArray, FusedArray]
) -> None:
    for shift in range(3):
        told = []
        for a in arrays:
            forget(a)
            out = a(x + shift, noise)
            losses = ALSO[also](a, out)
            losses.sum().backward()
            told.append((out[0].detach(), out[1].detach(), losses.detach()))
        torch.testing.assert_close(*told, **CLOSE)
        same(*arrays)
    _warm(arrays, x, noise)


INPUTS: dict[str, Callable[[FusedArray], Any]] = {
    "one parameter": lambda a: next(a.parameters()),
    "some": lambda a: _of(a, "discriminator"),
    "all": lambda a: list(a.parameters()),
    "one that has no gradient": lambda a: [*_of(a, "discriminator"), *_of(a, "generator")],
    "twice the same": lambda a: [*_of(a, "discriminator"), _of(a, "discriminator")[0]],
}


@pytest.mark.parametrize("inputs", INPUTS)
def test_gradients_of_some_parameters(
    inputs: str, x: Tensor, noise: Tensor, arrays: tuple[FusedArray, FusedArray]
) -> None:
    for step in range(4):
        for a in arrays:
            if step % 2:  # the others are added to what is there
                forget(a)
            losses = a.losses(tell_apart, a(x + step, noise))
            losses.sum().backward(inputs=INPUTS[inputs](a))
        same(*arrays)
    for a in arrays:
        with pytest.raises(RuntimeError, match="cannot be empty"):
            _begun(a, x, noise)[1].sum().backward(inputs=[])
    _warm(arrays, x, noise)


def test_parameters_that_can_be_gone_through_once(x: Tensor, noise: Tensor, device: torch.device) -> None:
    if device.type != "cpu":
        pytest.skip("a GPU's random streams are not put off")
    arrays = pair(Networks, device)
    for _ in range(STEPS):
        for a in arrays:
            _begun(a, x, noise)[1].sum().backward(inputs=a.parameters())
        same(*arrays)
    assert notes(arrays[0], TOGETHER)


def test_parameters_that_do_not_learn_are_refused_as_ever(x: Tensor, noise: Tensor, device: torch.device) -> None:
    if device.type != "cpu":
        pytest.skip("a GPU's random streams are not put off")
    arrays = pair(Networks, device)
    for a in arrays:
        _of(a, "discriminator")[0].requires_grad_(False)
    _warm(arrays, x, noise)
    for a in arrays:
        with pytest.raises(RuntimeError, match="requires_grad"):
            _begun(a, x, noise)[1].sum().backward(inputs=_of(a, "discriminator"))


def test_targets_that_are_trees(x: Tensor, y: Tensor, device: torch.device) -> None:
    arrays = pair(plain, device)
    weights = hfta.per_member(torch.rand(MEMBERS, 6, dtype=torch.float64).to(device))

    def loss(output: Tensor, target: dict[str, Any]) -> Tensor:
        each = F.cross_entropy(output, target["y"], reduction="none")
        return (each * target["weights"]).mean() * target["factor"]

    for step in range(2 * STEPS):
        factor = 2.0 if step < STEPS else 3.0
        given = y.clone()
        for a in arrays:
            forget(a)
            losses = a.losses(loss, a(x + step), {"y": given, "weights": weights, "factor": factor})
            if step % 5 == 4 and a is arrays[0]:
                given.add_(1).remainder_(3)  # autograd has seen the old ones
                losses = losses.clone()
                given.sub_(1).remainder_(3)
            losses.sum().backward()
        same(*arrays)
    assert notes(arrays[0], TOGETHER)


def test_settings_of_the_loss_per_member(x: Tensor, y: Tensor, device: torch.device) -> None:
    arrays = pair(plain, device)
    smoothed = hfta.losses.cross_entropy(label_smoothing=hfta.per_member([0.0, 0.1, 0.3]))
    for step in range(STEPS):
        told = []
        for a in arrays:
            forget(a)
            losses = a.losses(smoothed, a(x + step), y)
            losses.sum().backward()
            told.append(losses.detach())
        torch.testing.assert_close(*told, **CLOSE)
        same(*arrays)
    assert notes(arrays[0], TOGETHER)


def test_inputs_of_each_member(x: Tensor, y: Tensor, device: torch.device) -> None:
    arrays = pair(plain, device)
    own = torch.stack([x * (i + 1) for i in range(MEMBERS)])
    for step in range(STEPS):
        told = []
        for a in arrays:
            forget(a)
            given = own + step
            out = a(hfta.per_member(given))
            losses = a.losses(F.cross_entropy, out, y)
            if step == STEPS - 1:  # the copy is read
                given.zero_()
            else:
                losses.sum().backward()
            told.append((out.detach(), losses.detach()))
        torch.testing.assert_close(*told, **CLOSE)
        same(*arrays)


def test_an_output_put_off_as_another_array_s_keyword(x: Tensor, y: Tensor, device: torch.device) -> None:
    arrays = pair(plain, device)
    heads = [hfta.fuse([nn.Linear(3, 3, dtype=torch.float64, device=device) for _ in range(MEMBERS)]) for _ in "ab"]
    for p, q in zip(*(h.parameters() for h in heads), strict=True):
        q.data.copy_(p.data)
    for _ in range(STEPS):
        for a in arrays:
            forget(a)
            a.losses(F.cross_entropy, a(x), y).sum().backward()
    for step in range(8):
        told = []
        for a, head in zip(arrays, heads, strict=True):
            forget(a)
            out = a(x + step)
            seen = head(input=hfta.per_member(out)) if step % 2 else head(input=out[0])
            a.losses(F.cross_entropy, out, y).sum().backward()
            told.append(seen.detach())
        torch.testing.assert_close(*told, **CLOSE)
        same(*arrays)
