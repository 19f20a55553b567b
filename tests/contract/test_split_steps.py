"""Steps of the split form, `array.losses(loss_fn, array(x), y).sum().backward()`, replayed: the same as run eagerly."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.engine.array import FusedArray
from hfta_nb.engine.members.tree import tensor_map
from tests.contract.replay import MEMBERS, REPLAYED, SEEDS, by_losses, forget, loss_of_all, mlp, notes, pair, same
from tests.contract.serial import plain

CLOSE = {"atol": 1e-13, "rtol": 1e-13}
STEPS = 8
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
        return self.kind((self.discriminator(real), self.discriminator(self.generator(noise).detach())))


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
def noise(device: torch.device) -> Tensor:
    return torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).to(device)


@pytest.fixture
def y(device: torch.device) -> Tensor:
    return torch.tensor([0, 1, 2, 0, 1, 2]).to(device)


def _of(array: FusedArray, name: str) -> list[nn.Parameter]:
    return [p for n, p in array.named_parameters() if n.startswith(name)]


@pytest.mark.pairs
@pytest.mark.each("kind")
@pytest.mark.parametrize("threads", ["kernels", "blocks"])
@pytest.mark.parametrize("block", [3, 1])
@pytest.mark.parametrize("kind", [plain, mlp])
def test_an_output_is_a_tensor_and_can_be_looked_at_at_any_time(
    kind: Callable[[], nn.Module], block: int, threads: str, x: Tensor, y: Tensor, device: torch.device
) -> None:
    arrays = pair(kind, device)
    for a in arrays:
        a.block_size, a.threads = block, threads
    for step in range(STEPS):
        seen = []
        for a in arrays:
            forget(a)
            given = x + step
            out = a(given)
            assert type(out) is Tensor
            assert all(type(b) is Tensor for b in a.buffers())
            first = out.detach().clone()
            losses = a.losses(F.cross_entropy, out, y)
            assert type(losses) is Tensor
            seen.append((first, losses.detach().clone(), [b.clone() for b in a.buffers()]))
            losses.sum().backward()
            torch.testing.assert_close(out.detach(), first, atol=0, rtol=0)
        torch.testing.assert_close(*seen, **CLOSE)
        same(*arrays)
    assert notes(arrays[0]) == notes(arrays[0], "losses") == REPLAYED


@pytest.mark.each
@pytest.mark.parametrize("kind", [tuple, list, as_dict, as_fields])
def test_networks_in_turn(kind: Callable[..., Any], x: Tensor, noise: Tensor, device: torch.device) -> None:
    arrays = pair(lambda: Networks(kind), device)
    optimizers = [
        {name: hfta.optim.Adam(_of(a, name), lr=[0.1, 0.01, 0.03]) for name in ("discriminator", "generator")}
        for a in arrays
    ]
    for step in range(STEPS):
        for phase, loss in (("discriminator", tell_apart), ("generator", deceive)):
            told = []
            for a, of_phase in zip(arrays, optimizers, strict=True):
                of_phase[phase].zero_grad()
                out = a(x + step, noise - step, phase=phase)
                losses = a.losses(loss, out)
                losses.sum().backward(inputs=_of(a, phase))
                told.append((out, losses))
            assert type(told[0][0]) is type(told[1][0])
            torch.testing.assert_close(*tensor_map(Tensor.detach, told), atol=ROUNDED, rtol=ROUNDED)
            same(*arrays, within=ROUNDED, exact=False)
            for of_phase in optimizers:
                of_phase[phase].step()
            torch.testing.assert_close(*[dict(a.named_parameters()) for a in arrays], atol=ROUNDED, rtol=ROUNDED)
    assert notes(arrays[0]) == REPLAYED


INPUTS: dict[str, Callable[[FusedArray], Any]] = {
    "one parameter": lambda a: next(a.parameters()),
    "some": lambda a: _of(a, "discriminator"),
    "all": lambda a: a.parameters(),  # which can be gone through once
    "one that has no gradient": lambda a: [*_of(a, "discriminator"), *_of(a, "generator")],
    "twice the same": lambda a: [*_of(a, "discriminator"), _of(a, "discriminator")[0]],
}


@pytest.mark.parametrize("inputs", INPUTS)
def test_gradients_of_some_parameters(inputs: str, x: Tensor, noise: Tensor, device: torch.device) -> None:
    arrays = pair(Networks, device)
    for step in range(STEPS):
        for a in arrays:
            if step % 2:  # the others are added to what is there
                forget(a)
            a.losses(tell_apart, a(x + step, noise)).sum().backward(inputs=INPUTS[inputs](a))
        same(*arrays)
    assert notes(arrays[0]) == REPLAYED


def test_one_array_s_output_is_another_s_input(x: Tensor, y: Tensor, device: torch.device) -> None:
    arrays = pair(plain, device)
    heads = [hfta.fuse([nn.Linear(3, 3, dtype=torch.float64, device=device) for _ in range(MEMBERS)]) for _ in "ab"]
    for p, q in zip(*(h.parameters() for h in heads), strict=True):
        q.data.copy_(p.data)
    for step in range(STEPS):
        told = []
        for a, head in zip(arrays, heads, strict=True):
            forget(a)
            out = a(x + step)
            seen = head(input=hfta.per_member(out)) if step % 2 else head(out[0])
            (seen.square().sum() + a.losses(F.cross_entropy, out, y).sum()).backward()
            told.append(seen.detach())
        torch.testing.assert_close(*told, **CLOSE)
        same(*arrays)


def test_what_is_done_to_the_array_in_between(x: Tensor, y: Tensor, device: torch.device) -> None:
    arrays = pair(mlp, device)
    optimizers = [hfta.optim.SGD(a, lr=[0.1, 0.01, 0.03]) for a in arrays]
    changes: list[Callable[[FusedArray], Any]] = [
        lambda a: a.eval(),
        lambda a: a.load_member(1, a[0].state_dict()),
        lambda a: a.copy_member(0, 2),
        lambda a: a.to(torch.float64),
        lambda a: optimizers[a is arrays[1]].step(),
        lambda a: a.evaluate(F.cross_entropy, x, y),
    ]
    for change in changes:
        for _ in range(4):
            torch.testing.assert_close(*[by_losses(a, F.cross_entropy, x, y) for a in arrays], **CLOSE)
            same(*arrays)
        told = []
        for a in arrays:
            out = a(x + 1)
            losses = a.losses(F.cross_entropy, out, y)
            change(a)
            told.append((out.detach(), losses.detach()))
            a.train()
        torch.testing.assert_close(*told, **CLOSE)
        same(*arrays)


KINDS = {
    "one width": [6, 6, 6],
    "two widths": [6, 4, 6],
}


def build(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(5, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 3)).double()


@pytest.mark.parametrize("sizes", list(product((1, 2, 3), repeat=2)), ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("verified")
def test_two_forwards_in_blocks_of_other_sizes(kind: str, sizes: tuple[int, int], device: torch.device) -> None:
    torch.manual_seed(0)
    members = [build(width).to(device) for width in KINDS[kind]]
    array = hfta.fuse(members, SEEDS)
    array.self_tuning = False
    optimizer = hfta.optim.SGD(array, lr=0.1)
    own = [torch.optim.SGD(member.parameters(), lr=0.1) for member in members]
    batches = [torch.randn(6, 5, dtype=torch.float64, device=device) for _ in sizes]
    for _ in range(5):
        optimizer.zero_grad()
        total = torch.zeros((), dtype=torch.float64, device=device)
        outputs = []
        for x, size in zip(batches, sizes, strict=True):
            array.block_size = size
            outputs.append(array(x))
        for output in outputs:
            total = total + sum(loss_of_all(out) for out in output)
        total.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        for member, alone in zip(members, own, strict=True):
            alone.zero_grad()
            losses = [loss_of_all(out) for out in [member(x) for x in batches]]
            torch.stack(losses).sum().backward()  # type: ignore[no-untyped-call]
            alone.step()
    for i, member in enumerate(members):
        for (name, mine), (_, value) in zip(array[i].state_dict().items(), member.state_dict().items(), strict=True):
            torch.testing.assert_close(mine, value, atol=1e-10, rtol=1e-10, msg=lambda m, name=name: f"{name}: {m}")
