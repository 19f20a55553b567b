"""Common parts of tests of replayed steps: two arrays of the same members, only the first of which may replay."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.engine.array import FusedArray
from hfta_nb.engine.replay.node import Replayed
from tests.contract.rows import ModuleRow
from tests.contract.serial import make, target_for
from tests.contract.zoo.agree import row_of

MEMBERS, SEEDS = 3, [1, 2, 3]
REPLAYED = "recorded"
EXACT = 1e-15
TIGHT = {"atol": 1e-14, "rtol": 1e-14}
NOT = {"control flow on values"}
"""Rows of `rows.MODULES` whose way depends on values."""


def pair(
    build: Any, device: torch.device, dtype: torch.dtype = torch.float64, block: int | None = None
) -> tuple[FusedArray, FusedArray]:
    """The same array twice, of which the first may replay."""
    arrays = [hfta.fuse(make(build, MEMBERS, dtype, device), SEEDS) for _ in range(2)]
    arrays[1].capture = False
    for array in arrays if block else ():
        array.block_size = block
    return arrays[0], arrays[1]


def pair_of(row: ModuleRow, block: int, device: torch.device) -> tuple[FusedArray, FusedArray, Tensor]:
    """The same of a row of `rows.MODULES`, and a target."""
    arrays = pair(row.build, device, block=block)
    return *arrays, target_for(row.build().to(device, torch.float64), row.x().to(device))


def mlp() -> nn.Module:
    """Layers that keep statistics and draw random numbers."""
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))


def notes(array: FusedArray, what: str = "array(x)") -> str:
    """How `explain` says that calls run."""
    table = array.explain()
    return "; ".join(table["how"][table["function"] == what])


def forget(array: FusedArray) -> None:
    """Set gradients to None."""
    for p in array.parameters():
        p.grad = None


def loss_of_all(outputs: Any) -> Tensor:
    """A loss of all outputs, which sees every entry."""
    tensors = outputs if isinstance(outputs, tuple | list) else [outputs]
    return sum((t.square().mean() + t.sin().sum() for t in tensors), torch.zeros(()))


def one_step(array: FusedArray, x: Any, keep: bool = False) -> Tensor:
    """Forward and backward; returns the outputs."""
    if not keep:
        forget(array)
    out = array(x)
    loss_of_all(out).backward()
    return out  # type: ignore[no-any-return]


def backward(array: FusedArray, loss: Any, x: Any, y: Any, **more: Any) -> Any:
    """What `array.backward` gives, from no gradients on."""
    forget(array)
    return array.backward(loss, x, y, **more)


def by_backward(array: FusedArray, loss: Any, x: Any, y: Any) -> Any:
    """By `array.backward`."""
    return backward(array, loss, x, y)


def by_losses(array: FusedArray, loss: Any, x: Any, y: Any) -> Tensor:
    """By `array.losses` of an output."""
    forget(array)
    losses = array.losses(loss, array(x), y)
    losses.sum().backward()
    return losses.detach()


def by_output(array: FusedArray, loss: Any, x: Any, y: Any) -> Tensor:
    """By `array(x)`, and the loss of each member's row."""
    forget(array)
    out = array(x)
    losses = torch.stack([loss(row_of(out, i), y) for i in range(len(array))])
    losses.sum().backward()
    return losses.detach()


def by_results(array: FusedArray, loss: Any, x: Any, y: Any) -> Any:
    """By `array.evaluate`: no gradients."""
    forget(array)
    return array.evaluate(loss, x, y)


ENTRIES = {"backward": by_backward, "losses": by_losses, "array(x)": by_output, "without gradients": by_results}
"""Ways into an array, by how `explain` calls them."""


def same(a: FusedArray, b: FusedArray, within: float = 1e-13, exact: bool = True) -> None:
    """See that both have the same gradients, up to so much, random streams, and buffers: to the bit, if `exact`."""
    for (name, p), (_, q) in zip(a.named_parameters(), b.named_parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None), name
        if p.grad is not None:
            torch.testing.assert_close(
                p.grad, q.grad, atol=within, rtol=within, msg=lambda m, name=name: f"{name}: {m}"
            )
    for p, q in zip(a.buffers(), b.buffers(), strict=True):
        assert torch.equal(p, q) or not exact
        torch.testing.assert_close(p, q, atol=within, rtol=within)
    for s, t in zip(a.generators.states, b.generators.states, strict=True):
        assert all(torch.equal(s[k], t[k]) for k in s)


def compare(array: FusedArray, other: FusedArray, x: Any, times: int = 4) -> None:
    """Run both so many times, and see that outputs are the same, and what `same` looks at."""
    for _ in range(times):
        torch.testing.assert_close(one_step(array, x), one_step(other, x), **TIGHT)
        same(array, other)


def compare_backward(
    array: FusedArray, other: FusedArray, loss: Any, x: Any, y: Any, times: int = 4, **more: Any
) -> None:
    """Run both by `array.backward` so many times, and see that results are the same, and to the bit the rest."""
    for _ in range(times):
        told = [backward(a, loss, x, y, **more) for a in (array, other)]
        torch.testing.assert_close(*told, **TIGHT)
        same(array, other, EXACT)


def warm(array: FusedArray, other: FusedArray, x: Any) -> None:
    """Run both until the first replays."""
    compare(array, other, x)
    assert notes(array) == REPLAYED


def warm_backward(array: FusedArray, other: FusedArray, loss: Any, x: Any, y: Any) -> None:
    """Run both by `array.backward` until the first replays."""
    compare_backward(array, other, loss, x, y)
    assert notes(array, "backward") == REPLAYED


def replayed(out: Tensor) -> bool:
    """Whether an output comes from a replayed forward."""
    return type(out.grad_fn).__name__ == f"{Replayed.__name__}Backward"
