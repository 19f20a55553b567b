"""What a model or a loss writes into what it is given: each member's loop has an input and a target of its own."""

from __future__ import annotations

import copy
import warnings
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
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
        fused, serial, apart = study("fused"), study("serial", serial=True), study("apart", padding="never")
    for key, values in fused.items():
        assert values == pytest.approx(serial[key], abs=1e-10)
        assert values == pytest.approx(apart[key], abs=1e-10)


class Takes(nn.Module):
    """Does something with what it is given beside or as its input."""

    def __init__(self, how: Any) -> None:
        super().__init__()
        self.layer, self.how = nn.Linear(4, 2), how

    def forward(self, x: Any, *more: Any) -> Tensor:
        found: Tensor = self.layer(self.how(x, *more))
        return found


class Counter:
    def __init__(self) -> None:
        self.calls = 0


def counted(x: Tensor, counter: Counter) -> Tensor:
    counter.calls += 1
    return x * counter.calls


def by_numpy(x: Tensor) -> Tensor:
    x.numpy()[0] *= 0.9
    return x


def queued(x: Tensor, last: Any) -> Tensor:
    last.append(len(last))
    return x * len(last)


def by_data(x: Tensor) -> Tensor:
    x.data.mul_(0.9)
    return x


def replaced(x: Tensor) -> Tensor:
    x.data = x.data * 0.9
    return x


def twice(x: Tensor, same: Tensor) -> Tensor:
    x.mul_(0.9)
    return x + same


def noisy(x: Tensor, stream: torch.Generator) -> Tensor:
    return x + torch.randn(x.shape, generator=stream, dtype=x.dtype)


def scaled(x: Tensor, stream: np.random.Generator) -> Tensor:
    return x * stream.random()


def _with(make: Any) -> Any:
    return lambda: (X.clone(), make())


GIVEN: dict[str, tuple[Any, Any]] = {
    "data": (by_data, lambda: (X.clone(),)),
    "data replaced": (replaced, lambda: (X.clone(),)),
    "NumPy's view": (by_numpy, lambda: (X.clone(),)),
    "one tensor twice": (twice, lambda: (X.clone(),)),
    "torch's stream": (noisy, _with(lambda: torch.Generator().manual_seed(3))),
    "NumPy's stream": (scaled, _with(lambda: np.random.default_rng(3))),
    "object": (counted, _with(Counter)),
    "deque": (queued, _with(deque)),
}


@pytest.mark.parametrize("form", ["backward", "forward"])
@pytest.mark.parametrize("kind", GIVEN)
def test_each_call_goes_on_with_what_the_last_has_made_of_its_arguments(kind: str, form: str) -> None:
    how, make = GIVEN[kind]
    members, plain = built(lambda i: Takes(how))
    array, given = hfta.fuse(members), make()
    own = [make() for _ in plain]
    if kind == "one tensor twice":
        given, own = given * 2, [one * 2 for one in own]
    for _ in range(STEPS):
        if form == "backward":
            found = array.backward(F.mse_loss, given, Y)
        else:
            found = torch.stack([F.mse_loss(row, Y) for row in array(*given)])
            found.sum().backward()
        expected = torch.stack([F.mse_loss(module(*one), Y) for module, one in zip(plain, own, strict=True)])
        torch.testing.assert_close(found.detach(), expected.detach(), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(given[0], own[0][0])
    assert getattr(given[-1], "calls", 0) == getattr(own[0][-1], "calls", 0)


def test_arguments_of_which_members_make_something_unlike_are_told() -> None:
    counter, x = Counter(), X.clone()
    array = hfta.fuse(built(lambda i: Takes(lambda x, c: (setattr(c, "calls", float(torch.rand(()))), x)[1]))[0])
    with pytest.warns(ArrayWarning, match=r"unlike values of an object .*keep it on the model"):
        array(x, counter)
    assert counter.calls == 0


@pytest.mark.parametrize("form", ["input", "target"])
def test_a_dict_that_members_change_is_told(form: str) -> None:
    def changed(batch: dict[str, Any]) -> Tensor:
        batch["x"] = batch["x"] * 0.9
        return batch["x"]  # type: ignore[no-any-return]

    def loss(output: Tensor, y: Any) -> Tensor:
        y["calls"] = y.get("calls", 0) + 1
        return F.mse_loss(output, y["y"]) * y["calls"]

    array = hfta.fuse(built(lambda i: Takes(changed if form == "input" else lambda x: x))[0])
    with pytest.warns(ArrayWarning, match=r"replace something in it.*keep it on the model"):
        array({"x": X.clone()}) if form == "input" else array.backward(loss, X, {"y": Y})


def test_a_dict_of_which_something_is_taken_needs_no_warning() -> None:
    array = hfta.fuse(built(lambda i: Takes(lambda batch: batch.pop("x")))[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error", ArrayWarning)
        array({"x": X, "y": Y})


def test_a_target_of_another_shape_afterwards_is_told() -> None:
    def loss(output: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(output, y.squeeze_(-1))

    array, y = hfta.fuse(built(lambda i: Regressor(2))[0]), Y.clone()[..., None]
    with pytest.warns(ArrayWarning, match="left as it was"):
        array.backward(loss, X, y)
    assert y.shape == (12, 2, 1)


class Empty(dict[str, int]):
    """A loss that is false: it holds nothing yet."""

    def __call__(self, output: Tensor, y: Tensor) -> Tensor:
        self["calls"] = self.get("calls", 0) + 1
        return F.mse_loss(output, y) * self["calls"]


def test_a_study_trains_by_a_loss_that_is_false(tmp_path: Path) -> None:
    study = hfta.Study(lambda: Regressor(2), {"lr": [0.1, 0.2]}, (X, Y, X, Y), loss=Empty(), epochs=1,
                       monitor="val_loss", keep_checkpoints=["best", "last"],
                       device="cpu", dtype="float64", directory=tmp_path)  # fmt: skip
    study.fit(progress=False)
    with torch.no_grad():
        value = float(F.mse_loss(study.member(0).module(at="last").eval()(X), Y))
    assert float(study.history.members[0].curves["val_loss"].values[0]) == pytest.approx(2 * value)
