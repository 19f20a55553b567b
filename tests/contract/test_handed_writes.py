"""What a model or a loss writes into what it is given: each member's loop has an input and a target of its own."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.errors import ArrayWarning
from tests.contract.handed_over import Regressor, numbers

STEPS, MEMBERS = 12, 3
X, Y = numbers(12, 4, seed=4), numbers(12, 2, seed=2)


class Scales(nn.Module):
    """Writes into its input, by a number of its own or by the same as all."""

    def __init__(self, width: int = 5, own: bool = False) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 2))
        self.factor = float(torch.rand(())) if own else 0.9
        self.register_buffer("scale", torch.full((), self.factor))

    def forward(self, x: Tensor) -> Tensor:
        x.mul_(self.scale)  # type: ignore[arg-type]
        found: Tensor = self.layers(x)
        return found


def halving(output: Tensor, y: Tensor) -> Tensor:
    y.mul_(0.9)
    return F.mse_loss(output, y)


KINDS: dict[str, tuple[Any, Any]] = {
    "input": (lambda i: Scales(), F.mse_loss),
    "target": (lambda i: Regressor(2), halving),
    "both, of unlike widths": (lambda i: Scales(4 + i), halving),
}


def built(make: Any) -> tuple[list[nn.Module], list[nn.Module]]:
    torch.manual_seed(0)
    members = [make(i).double() for i in range(MEMBERS)]
    return members, copy.deepcopy(members)


def called(array: hfta.FusedArray, form: str, loss: Any, x: Tensor, y: Tensor) -> Tensor:
    if form == "backward":
        return array.backward(loss, x, y)
    if form == "per member":
        return array.backward(loss, hfta.per_member(x), hfta.per_member(y))
    if form == "evaluate":
        found: Tensor = array.evaluate(loss, x, y)
        return found
    losses = array.losses(loss, array(x), y)
    losses.sum().backward()
    return losses


def differences(form: str, make: Any, loss: Any) -> tuple[float, float]:
    """Between members and plain modules with an input and target each: of losses, and of what was written."""
    members, plain = built(make)
    array = hfta.fuse(members)
    optimizer = hfta.optim.SGD(array, lr=0.1)
    alone = [torch.optim.SGD(m.parameters(), lr=0.1) for m in plain]
    own = [(X.clone(), Y.clone()) for _ in plain]
    x, y = (torch.stack([v] * MEMBERS) if form == "per member" else v.clone() for v in (X, Y))
    off = written = 0.0
    for _ in range(STEPS):
        optimizer.zero_grad()
        found = called(array, form, loss, x, y).detach()
        if form != "evaluate":
            optimizer.step()
        for i, (module, own_optimizer, (mine, target)) in enumerate(zip(plain, alone, own, strict=True)):
            own_optimizer.zero_grad()
            value = loss(module(mine), target)
            if form != "evaluate":
                value.backward()
                own_optimizer.step()
            off = max(off, float((value.detach() - found[i]).abs()))
            pair = (x[i], y[i]) if form == "per member" else (x, y)
            written = max(written, *(float((a - b).abs().max()) for a, b in zip(pair, (mine, target), strict=True)))
    return off, written


@pytest.mark.parametrize("form", ["backward", "per member", "losses", "evaluate"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_each_member_writes_is_there_afterwards(kind: str, form: str) -> None:
    assert max(differences(form, *KINDS[kind])) < 1e-10


def test_members_that_write_unlike_values_into_what_they_share_are_told() -> None:
    array, x = hfta.fuse(built(lambda i: Scales(own=True))[0]), X.clone()
    with pytest.warns(ArrayWarning, match=r"members write unlike values .*per_member"):
        array(x)
    assert torch.equal(x, X)
    assert max(differences("per member", lambda i: Scales(own=True), F.mse_loss)) < 1e-10


@pytest.mark.parametrize("given", ["tensors", "batches"])
def test_a_study_leaves_its_data_alone(given: str, tmp_path: Path) -> None:
    """Fused or one by one, of one size or several: each step and each validation gets the data as it was given."""

    def study(name: str, **more: Any) -> dict[tuple[float, int], tuple[float, float]]:
        batches = [(X.clone(), Y.clone())]
        data: Any = (X, Y, X, Y) if given == "tensors" else hfta.data.from_batches(lambda: batches, lambda: batches)
        found = hfta.Study(Scales, {"lr": [0.1, 0.2], "width": [4, 5]}, data, loss=halving, optimizer="sgd", seed=0,
                           monitor="val_loss", epochs=3, device="cpu", dtype="float64",
                           directory=tmp_path / name, **more)  # fmt: skip
        found.fit(progress=False)
        with torch.no_grad():  # as its own loop would validate it
            value = float(halving(found.best().module().eval()(X.clone()), Y.clone()))
        assert value == pytest.approx(found.results()["val_loss"].min(), abs=1e-10)
        rows = found.results()[["lr", "width", "train_loss", "val_loss"]]
        return {(lr, width): (train, val) for lr, width, train, val in rows.itertuples(index=False)}

    with warnings.catch_warnings():
        warnings.simplefilter("error", ArrayWarning)
        fused, serial, apart = study("fused"), study("serial", serial=True), study("apart", across="never")
    for key, values in fused.items():
        assert values == pytest.approx(serial[key], abs=1e-10)
        assert values == pytest.approx(apart[key], abs=1e-10)
