"""Losses and metrics that hold parameters or keep something: checkpoints, what is taken home, members that move, and
the user's own reads and writes between calls."""

from __future__ import annotations

import functools
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.errors import ArrayWarning, FusionError
from hfta_nb.models.recipes import Family
from tests.contract.handed.loss_memory import Balanced, Counting, dict_of_tensors
from tests.contract.handed.loss_parameters import CentreLoss, Uncertainty, two
from tests.contract.handed_over import Regressor, numbers

X, Y = numbers(12, 4, seed=4).float().double(), numbers(12, 2, seed=2).float().double()
ONE = Y[:, :1].clone()
CLASSES = torch.arange(12) % 3
CLOSE = {"rtol": 1e-10, "atol": 1e-10}


def study_of(loss: Any, place: Path, epochs: int, y: Tensor = Y, build: Any = two, **options: Any) -> hfta.Study:
    options = {"optimizer": "adam", "lr": 0.01, "monitor": "val_loss", "keep_checkpoints": ["best", "last"], **options}
    return hfta.Study(build, {"seed": [0, 1, 2]}, (X, y, X, y), epochs=epochs, loss=loss, batch_size=12, device="cpu",
                      dtype="float64", directory=place, **options)  # fmt: skip


def alone(seed: int, loss: Any, steps: int, y: Tensor, clip: float = 1e9, lr: float = 0.01) -> nn.Module:
    """The user's own loop, with a validation after each step."""
    torch.manual_seed(seed)
    model = two().double() if y is not ONE else Regressor().double()
    own = list(loss.parameters()) if isinstance(loss, nn.Module) else []
    groups = [{"params": list(model.parameters()), "lr": 0.01}, *([{"params": own, "lr": lr}] if own else [])]
    optimizer = torch.optim.Adam(groups)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(model(X), y).backward()
        nn.utils.clip_grad_norm_([*model.parameters(), *own], clip)
        optimizer.step()
        with torch.no_grad():
            loss(model(X), y)
    return model


def same(found: nn.Module, expected: nn.Module) -> None:
    assert found.state_dict().keys() == expected.state_dict().keys()
    for name, value in found.state_dict().items():
        torch.testing.assert_close(value, expected.state_dict()[name], **CLOSE)


@pytest.mark.parametrize("serial", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_trained_loss_is_clipped_resumed_and_taken_home(tmp_path: Path, serial: bool) -> None:
    given = CentreLoss()
    study = study_of(given, tmp_path, 3, CLASSES, max_norm=0.1, serial=serial)
    study.fit(progress=False)
    study = hfta.Study.load(tmp_path, family=study.family)
    study.fit(epochs=6, resume=True, progress=False)
    for i in range(3):
        own = CentreLoss().double()
        model = alone(i, own, 6, CLASSES, clip=0.1)
        member = study.member(i)
        assert type(member.module(at="last")) is Regressor
        same(member.module(at="last"), model)
        assert type(member.loss(at="last")) is CentreLoss
        same(member.loss(at="last"), own)
    assert given.calls == 0
    assert not given.centres.weight.any()  # what was given is left alone


def test_members_of_unlike_length_hold_a_trained_loss(tmp_path: Path) -> None:
    def build(depth: int = 1) -> nn.Module:
        hidden = [m for _ in range(depth) for m in (nn.Linear(4, 4), nn.Tanh())]
        return nn.Sequential(*hidden, nn.Linear(4, 2))

    study = hfta.Study(build, {"depth": [0, 1, 2]}, (X, Y, X, Y), epochs=3, loss=Uncertainty(), batch_size=12, lr=0.01,
                       device="cpu", dtype="float64", padding=0.9, directory=tmp_path)  # fmt: skip
    assert len(study.plan()) == 1
    study.fit(progress=False)
    for i in range(3):
        torch.manual_seed(0)
        model, own = build(i).double(), Uncertainty().double()
        optimizer = torch.optim.Adam([*model.parameters(), *own.parameters()], lr=0.01)
        for _ in range(3):
            optimizer.zero_grad()
            own(model(X), Y).backward()
            optimizer.step()
        same(study.member(i).module(), model)
        same(study.member(i).loss(), own)


def test_param_groups_see_the_loss(tmp_path: Path) -> None:
    seen = set()

    def groups(name: str, parameter: Tensor) -> dict[str, float]:
        seen.add((name, tuple(parameter.shape)))
        return {"lr_scale": 5.0} if name.startswith("loss.") else {}

    study = study_of(Uncertainty(), tmp_path, 4, param_groups=groups)
    study.fit(progress=False)
    assert ("loss.log_sigma", (2,)) in seen
    own = Uncertainty().double()
    same(study.member(1).module(at="last"), alone(1, own, 4, Y, lr=0.05))
    same(study.member(1).loss(at="last"), own)
    assert study.check(members=[1])["equal"].all()


class Two(nn.Module):
    """Two networks, each trained by a phase of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, x: Tensor, phase: str | None = None) -> Tensor:
        found: Tensor = self.second(x) if phase == "b" else self.first(x)
        return found


def test_each_phase_trains_its_own_loss(tmp_path: Path) -> None:
    phases = [hfta.Phase("a", ["first"], Uncertainty()), hfta.Phase("b", ["second"], Uncertainty())]
    recipe = Family("two", Two, {}, phases=tuple(phases), metrics={}, direct=True)
    study = study_of(None, tmp_path, 4, build=recipe)
    study.fit(progress=False)
    torch.manual_seed(2)
    model, losses = Two().double(), {name: Uncertainty().double() for name in "ab"}
    for name, net in (("a", model.first), ("b", model.second)):
        optimizer = torch.optim.Adam([*net.parameters(), *losses[name].parameters()], lr=0.01)
        for _ in range(4):
            optimizer.zero_grad()
            losses[name](net(X), Y).backward()
            optimizer.step()
    same(study.member(2).module(at="last"), model)
    for name, loss in study.member(2).loss(at="last").items():
        same(loss, losses[name])


@pytest.mark.parametrize(
    "make",
    [pytest.param(Counting, marks=pytest.mark.long), pytest.param(Balanced, marks=pytest.mark.long), dict_of_tensors],
)
@pytest.mark.parametrize("serial", [False, pytest.param(True, marks=pytest.mark.long)])
def test_what_a_loss_keeps_is_resumed(make: Any, serial: bool, tmp_path: Path) -> None:
    study = study_of(make(), tmp_path, 3, ONE, Regressor, serial=serial)
    study.fit(progress=False)
    study = hfta.Study.load(tmp_path, family=study.family)
    study.fit(epochs=6, resume=True, progress=False)
    same(study.member(2).module(at="last"), alone(2, make(), 6, ONE))


class Opaque:
    """Keeps what no checkpoint holds."""

    def __init__(self) -> None:
        self.seen: Any = frozenset()

    def __call__(self, output: Tensor, y: Tensor) -> Tensor:
        self.seen = frozenset({*self.seen, len(self.seen)})
        return F.mse_loss(output, y) * len(self.seen)


def test_what_no_checkpoint_holds_is_told(tmp_path: Path) -> None:
    study = study_of(Opaque(), tmp_path, 2, ONE, Regressor)
    study.fit(progress=False)
    with pytest.raises(FusionError, match=r"seen: .*no checkpoint holds"):
        hfta.Study.load(tmp_path, family=study.family).fit(epochs=4, resume=True, progress=False)


# In a loop of the user's own.


def members(count: int = 3) -> list[nn.Module]:
    found = []
    for seed in range(count):
        torch.manual_seed(seed)
        found.append(Regressor().double())
    return found


@pytest.mark.usefixtures("verified", "self_tuning")
def test_losses_that_count_are_called_once_a_step_while_schedules_are_tried() -> None:
    array, loss, steps = hfta.fuse(members()), Counting(), 30
    for _ in range(steps):
        array.backward(loss, X, ONE)
    assert loss.calls == steps  # between calls the first member's
    assert "keeps a value for each member: Counting.calls" in " ".join(array.explain()["how"])


def test_what_the_user_writes_is_all_members() -> None:
    array, other, loss = hfta.fuse(members()), hfta.fuse(members(2)), Counting()
    for a in (array, other, array, other):
        a.backward(loss, X, ONE)
    assert loss.calls == 2
    loss.calls = 7
    expected = array.backward(lambda o, y: F.mse_loss(o, y) + 0.8 * o.square().mean(), X, ONE)
    torch.testing.assert_close(array.backward(loss, X, ONE), expected)
    torch.testing.assert_close(other.backward(loss, X, ONE), expected[:2])
    assert loss.calls == 8


def test_what_losses_keep_moves_with_the_members() -> None:
    built, loss = members(), Balanced()
    array = hfta.fuse(built)
    array.backward(loss, X, ONE)
    own = [F.mse_loss(m(X), ONE) for m in built]
    few, both = array[[2, 0]], hfta.join(array[[1]], array[[0]])
    again = [0.9 * v + 0.1 * v for v in own]
    for part, chosen in ((few, (2, 0)), (both, (1, 0))):
        expected = torch.stack([own[i] / again[i] for i in chosen])
        torch.testing.assert_close(part.backward(loss, X, ONE * 1), expected.detach(), **CLOSE)
    array.copy_member(2, 0)
    found = array.backward(loss, X, ONE)
    torch.testing.assert_close(found[0], found[2])


def test_an_error_within_the_loss_leaves_what_it_keeps() -> None:
    class Failing(Counting):
        def __call__(self, output: Tensor, y: Tensor) -> Tensor:
            if self.calls == 2:
                self.calls += 5
                raise ValueError("now")
            return super().__call__(output, y)

    array, loss = hfta.fuse(members()), Failing()
    for _ in range(2):
        array.backward(loss, X, ONE)
    with pytest.raises(hfta.errors.MemberError, match="now"):
        array.backward(loss, X, ONE)
    assert loss.calls == 2


def test_a_generator_is_told() -> None:
    def weights() -> Iterator[float]:
        weight = 1.0
        while True:
            yield weight
            weight *= 0.5

    source = weights()
    with pytest.raises(FusionError, match=r"source: .*can't be kept for each"):
        hfta.fuse(members()).backward(lambda o, y: F.mse_loss(o, y) * next(source), X, ONE)


def test_losses_of_another_number_are_refused() -> None:
    losses = hfta.fuse([Uncertainty() for _ in range(2)])
    with pytest.raises(FusionError, match=r"another number of members"):
        hfta.fuse([two().float() for _ in range(3)]).backward(losses, X.float(), Y.float())


@pytest.mark.usefixtures("verified")
def test_a_fused_loss_takes_scales_and_names() -> None:
    built, losses = [two().double() for _ in range(2)], [Uncertainty().double() for _ in range(2)]
    array, own = hfta.fuse(built), hfta.fuse(losses)
    scale = torch.tensor([1.0, 3.0], dtype=torch.float64)
    values, aux = array.backward(hfta.fuse([WithAux().double() for _ in range(2)]), X, Y, has_aux=True)
    assert aux.shape == (2, 12, 2)
    array.zero_grad()
    values = array.backward(own, X, Y, scale=scale, only=["layers.0.weight"])
    for i, (model, loss) in enumerate(zip(built, losses, strict=True)):
        value = loss(model(X), Y)
        torch.testing.assert_close(values[i], value.detach(), **CLOSE)
        (value * scale[i]).backward()
        torch.testing.assert_close(own.log_sigma.grad[i], loss.log_sigma.grad, **CLOSE)
        weight = array.get_parameter("layers.0.weight").grad
        torch.testing.assert_close(weight[i], model.layers[0].weight.grad, **CLOSE)
    assert array.get_parameter("layers.0.bias").grad is None
    torch.testing.assert_close(array.evaluate(own, X, Y), values, **CLOSE)
    assert array.tune(own, X, Y) == {}


class WithAux(Uncertainty):
    def forward(self, output: Tensor, y: Tensor) -> Any:
        return super().forward(output, y), output


class SteppedWithin(nn.Module):
    """Steps its parameter by an optimizer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones((), dtype=torch.float64))
        self.optimizer: Any = torch.optim.SGD([self.scale], lr=0.1)

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        self.optimizer.step()
        return F.mse_loss(output * self.scale, target)


class SteppedFromList(SteppedWithin):
    def __init__(self) -> None:
        super().__init__()
        self.optimizer = [self.optimizer]

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        for optimizer in self.optimizer:
            optimizer.step()
        return F.mse_loss(output * self.scale, target)


class SteppedByClosure(SteppedWithin):
    def __init__(self) -> None:
        super().__init__()
        optimizer, self.optimizer = self.optimizer, None
        self.step = lambda: optimizer.step()

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        self.step()
        return F.mse_loss(output * self.scale, target)


@pytest.mark.parametrize("kind", [SteppedWithin, SteppedFromList, SteppedByClosure])
def test_a_loss_that_steps_its_own_parameters_is_refused_by_a_study(kind: Any, tmp_path: Path) -> None:
    x, y = numbers(12, 4), numbers(12, 1, seed=1)
    with pytest.raises(FusionError, match=r"steps its parameters itself; .*loss"):
        hfta.Study(Regressor, {"lr": [0.1, 0.2]}, (x, y, x, y), loss=kind(), monitor="val_loss",
                   device="cpu", dtype="float64", directory=tmp_path).fit(progress=False)  # fmt: skip


def _by_environment() -> Callable[[Tensor, Tensor], Tensor]:
    os.environ["HFTA_NB_TEST_STEPS"] = "0"

    def loss(output: Tensor, y: Tensor) -> Tensor:
        steps = int(os.environ["HFTA_NB_TEST_STEPS"]) + 1
        os.environ["HFTA_NB_TEST_STEPS"] = str(steps)
        return F.mse_loss(output, y) * steps

    return loss


def _by_cache() -> Callable[[Tensor, Tensor], Tensor]:
    @functools.cache
    def kept() -> dict[str, int]:
        return {"steps": 0}

    def loss(output: Tensor, y: Tensor) -> Tensor:
        kept()["steps"] += 1
        return F.mse_loss(output, y) * kept()["steps"]

    return loss


def _by_table() -> Callable[[Tensor, Tensor], Tensor]:
    table = sqlite3.connect(":memory:")
    table.execute("create table steps (step)")

    def loss(output: Tensor, y: Tensor) -> Tensor:
        table.execute("insert into steps values (1)")
        return F.mse_loss(output, y) * table.execute("select count(*) from steps").fetchone()[0]

    return loss


def _by_clock() -> Callable[[Tensor, Tensor], Tensor]:
    return lambda output, y: F.mse_loss(output, y) * (time.perf_counter() % 60)


@pytest.mark.parametrize("make", [_by_environment, _by_cache, _by_table, _by_clock])
@pytest.mark.parametrize("form", ["backward", "losses"])
def test_what_nobody_can_put_back_is_told(form: str, make: Callable[[], Any], verified: None) -> None:
    """The plain module's own loss is another one each time: that it differs is no matter of rounding."""
    array = hfta.fuse([Regressor().double() for _ in range(3)])
    x, y, loss = numbers(12, 4), numbers(12, 1, seed=1), make()

    def step() -> None:
        array.backward(loss, x, y) if form == "backward" else array.losses(loss, array(x), y)

    with pytest.warns(ArrayWarning, match=r"each time that the same call is repeated alone.*beside its inputs"):
        step()
    step()  # once
