"""A gradient that is negated, zeroed, swapped or scaled is found, whatever its size; what only rounding makes is not.

Each comparison sees real outcomes: of a replay, of a whole step, of a plain module. They are mutated one tensor at a
time, beside others that are up to eleven orders of magnitude larger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.engine.comparison import compare
from hfta_nb.engine.distances import Change
from hfta_nb.engine.eager import verification
from hfta_nb.engine.eager.verification import MemberVerification
from hfta_nb.engine.replay import verify
from hfta_nb.engine.replay.program import Program
from hfta_nb.errors import FusionError
from hfta_nb.train.step import ArrayStep
from hfta_nb.train.step import graph as step_graph
from tests.contract.captured_steps import ROW, graph_of

MEMBERS, FAULTY = 3, 1
BRANCHES = [(1, 1e-6), (1, 1e5), (17, 1e-3), (400, 1e-6), (3000, 1e5)]
"""Widths, and sizes of the gradients: tensors of 1 to 18,000 entries."""
MUTATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "negated": lambda g: -g,
    "zeroed": torch.zeros_like,
    "scaled by 1.5": lambda g: 1.5 * g,
    "halved": lambda g: 0.5 * g,
    "doubled": lambda g: 2 * g,
}
KINDS = [torch.float64, torch.float32, torch.bfloat16]
"""The last one by autocast."""


class Branch(nn.Module):
    """Of one width; its output and gradients are scaled."""

    def __init__(self, width: int, size: float) -> None:
        super().__init__()
        self.first, self.last, self.size = nn.Linear(6, width), nn.Linear(width, 4), size

    def forward(self, x: Tensor) -> Tensor:
        return self.size * self.last(self.first(x).tanh()).tanh()  # type: ignore[no-any-return]


class Model(nn.Module):
    """Branches whose losses are added."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList([Branch(*each) for each in BRANCHES])

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([branch(x).float() if x.dtype != torch.float64 else branch(x) for branch in self.branches])


def loss(outputs: Tensor, y: Tensor) -> Tensor:
    return (outputs * y).mean((1, 2)).sum()


def mutated(value: Any) -> Iterator[tuple[str, Any]]:
    """A value with one member's part, or all of a member's own, changed."""
    before, now = value if isinstance(value, Change) else (torch.zeros_like(value), value)
    rows = [FAULTY] if len(now) == MEMBERS else slice(None)
    for name, change in MUTATIONS.items():
        other = now.clone()
        other[rows] = before[rows] + change(now[rows] - before[rows])
        yield name, Change(before, other) if isinstance(value, Change) else other
    if len(now) == MEMBERS:
        other = before + (now - before).roll(1, 0)
        yield "swapped", Change(before, other) if isinstance(value, Change) else other


class Watch:
    """Stands for a comparison: makes it, and again with each value of some kinds mutated, beside others of its kind.

    Attributes:
        missed: mutations that it has not found.
        count: of mutations.
        refused: what it says of the unchanged outcome.
    """

    def __init__(self, own: Callable[..., Any], *kinds: str) -> None:
        self.own, self.kinds = own, kinds
        self.missed, self.count, self.refused = list[str](), 0, list[str]()

    def __call__(self, found: Any, expected: Any, *more: Any, **named: Any) -> Any:
        more = tuple(cache(v) if callable(v) and getattr(v, "__name__", "") != "_must_have" else v for v in more)
        verdict = self.own(found, expected, *more, **named)
        self.refused += [str(verdict)] if verdict else []
        for kind in self.kinds if not verdict else ():
            alike = {name: value for name, value in expected.items() if name.startswith(kind)}
            for name in alike:
                for what, other in mutated(found[name]):
                    self.count += 1
                    if not self.own({**found, name: other}, alike, *more, **named):
                        self.missed.append(f"{name} {what}")
        return verdict


def batch(dtype: torch.dtype, number: int = 0) -> tuple[Tensor, Tensor]:
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    generator = torch.Generator().manual_seed(number)
    return torch.randn(32, 6, generator=generator, dtype=wide), torch.randn(32, 4, generator=generator, dtype=wide)


def models(dtype: torch.dtype, build: Callable[[], nn.Module] = Model) -> list[nn.Module]:
    torch.manual_seed(0)
    return [build().to(torch.float64 if dtype == torch.float64 else torch.float32) for _ in range(MEMBERS)]


def half(dtype: torch.dtype) -> Any:
    return torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16)


@pytest.mark.parametrize("dtype", KINDS, ids=str)
def test_each_is_found_in_a_replay(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch(verify.differing, "gradient")
    monkeypatch.setattr(verify, "differing", watch)
    array = hfta.fuse(models(dtype))
    for number in range(3):
        with half(dtype):
            array.backward(loss, *batch(dtype, number))
    assert (watch.missed, watch.refused) == ([], [])
    assert watch.count == 4 * len(BRANCHES) * (len(MUTATIONS) + 1)


@pytest.mark.parametrize("dtype", KINDS, ids=str)
def test_each_is_found_beside_a_plain_module(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch(verification.differences, "gradient")
    monkeypatch.setattr(verification, "differences", watch)
    array = hfta.fuse(models(dtype))
    array.verify = "first"
    with half(dtype):
        array.backward(loss, *batch(dtype))
    assert (watch.missed, watch.refused) == ([], [])
    assert watch.count == 4 * len(BRANCHES) * len(MUTATIONS)


def trained(array: Any, dtype: torch.dtype, optimizer: str) -> ArrayStep:
    """Steps that are captured."""
    row = {**ROW, "optimizer": optimizer, "weight_decay": 0.0, "lr": 1e-4, "momentum": 0.0}
    step = ArrayStep(array, [row] * MEMBERS, loss, {}, 10)
    step.graph = graph_of(step)
    for number in range(12):
        with half(dtype):
            step.train(*batch(dtype, number))
    return step


@pytest.mark.parametrize("dtype", [pytest.param(KINDS[0], marks=pytest.mark.long), *KINDS[1:]], ids=str)
def test_each_is_found_in_a_whole_step(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """There it is the change of a parameter, or of the optimizer's state, that tells of a gradient."""
    watch = Watch(step_graph.other_than, "parameter", "optimizer 0, exp_avg of")
    monkeypatch.setattr(step_graph, "other_than", watch)
    step = trained(hfta.fuse(models(dtype)), dtype, "adam")
    assert step.graph is not None
    assert step.graph.notes() == ["captured as one graph"]
    assert (watch.missed, watch.refused) == ([], [])
    assert watch.count == 2 * 4 * len(BRANCHES) * (len(MUTATIONS) + 1)


# What rounding makes is no difference.


class Normed(nn.Module):
    """Has a bias whose gradient is zero but for rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 32), nn.BatchNorm1d(32), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.norm(self.first(x)).relu())[None].float()  # type: ignore[no-any-return]


def rounding_otherwise(array: Any, patch: pytest.MonkeyPatch) -> None:
    """Replays round in another way: one in twenty gradients by a last bit of bfloat16, and what is noise is other."""
    own, generator = Program.run, torch.Generator().manual_seed(0)

    def run(self: Program) -> Any:
        results = own(self)
        for name, _ in array.named_parameters():
            grad = array._state.arena_of(name).grad_view(name)
            flips = torch.rand(grad.shape, generator=generator) < 0.05
            grad.mul_(1 + 2.0**-8 * flips)
            if name == "first.bias":
                grad.copy_(grad[:, torch.randperm(grad.shape[1], generator=generator)])
        return results

    patch.setattr(Program, "run", run)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_other_roundings_do_not_refuse_a_whole_step(optimizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    array = hfta.fuse(models(torch.bfloat16, Normed))
    compared, other_than = list[str](), step_graph.other_than

    def second(*given: Any, **named: Any) -> str:
        compared.append(other_than(*given, **named))
        return compared[-1]

    def captured(self: Any, part: Any) -> Any:
        made = capture(self, part)
        run = made.run

        def otherwise() -> Any:
            with monkeypatch.context() as patch:
                rounding_otherwise(array, patch)
                return run()

        made.run = otherwise
        return made

    capture = type(graph_of(ArrayStep(array, [ROW] * MEMBERS, loss, {}, 10)).backend).capture
    monkeypatch.setattr("tests.contract.captured_steps.StandIn.capture", captured)
    monkeypatch.setattr(step_graph, "other_than", second)
    step = trained(array, torch.bfloat16, optimizer)
    assert step.graph is not None
    assert (step.graph.notes(), compared) == (["captured as one graph"], [""])


def test_other_roundings_do_not_refuse_a_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    array = hfta.fuse(models(torch.bfloat16, Normed))
    rounding_otherwise(array, monkeypatch)
    for number in range(3):
        with half(torch.bfloat16):
            array.backward(loss, *batch(torch.bfloat16, number))
    assert [entry.reason for entry in array._calls.steps] == [""]


def relative(value: float) -> Callable[[Tensor], float]:
    return lambda tensor: value


def test_the_change_is_compared_not_what_was_there() -> None:
    """A parameter of 1e5 hides no step beside it, nor a large parameter its own small step."""
    generator = torch.Generator().manual_seed(0)
    before = torch.randn(8, 1000, generator=generator) * 0.05
    before[:, 0] = 1e5
    step = torch.randn(8, 1000, generator=generator) * 1e-3
    right, wrong = before + step, before + step * torch.tensor([1.0, -1.0] + [1.0] * 6)[:, None]
    expected = {"parameter": Change(before, right)}
    assert not compare(expected, expected, relative(2.0**-5), 8)
    [found] = compare({"parameter": Change(before, wrong)}, expected, relative(2.0**-5), 8)
    assert (found.name, found.member) == ("parameter", 1)


def test_a_last_bit_of_what_is_stored_is_no_change() -> None:
    before = torch.full((4,), 0.7)
    after = before + 1e-9  # less than a bit
    found = {"parameter": Change(before, torch.nextafter(after, torch.ones(4)))}
    assert not compare(found, {"parameter": Change(before, after)}, relative(1e-5))


def test_a_factor_is_found_where_rounding_is_large() -> None:
    """Rounding is no factor: of many entries it adds up to little along what is expected."""
    generator = torch.Generator().manual_seed(0)
    right = torch.randn(1000, generator=generator)

    def noisy(number: int) -> dict[str, Tensor]:
        noise = torch.randn(1000, generator=torch.Generator().manual_seed(number + 1))
        return {"gradient": right + 0.4 * noise}

    for factor, differs in ((1.0, False), (1.5, True), (0.5, True)):
        found = {"gradient": factor * noisy(7)["gradient"]}
        assert bool(compare(found, {"gradient": right}, relative(2.0**-5), again=noisy, half=True)) is differs


class Narrow(nn.Module):
    """A float64 model that computes a part in float32, or does not."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.first, self.last, self.dtype = nn.Linear(6, 8), nn.Linear(8, 4), dtype

    def forward(self, x: Tensor) -> Tensor:
        h = F.linear(x.to(self.dtype), self.first.weight.to(self.dtype), self.first.bias.to(self.dtype))
        return self.last(h.tanh().double())  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("dtype", "factor", "equal"),
    [(torch.float32, 1 + 3e-8, True), (torch.float64, 1 + 3e-8, False), (torch.float32, 1 + 1e-4, False)],
)
def test_a_model_that_casts_to_a_narrower_dtype_rounds_as_that_does(
    dtype: torch.dtype, factor: float, equal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    array, own = hfta.fuse([Narrow(dtype).double() for _ in range(3)]), MemberVerification._together
    array.verify = "first"
    x, y = torch.randn(5, 6, dtype=torch.float64), torch.tensor([0, 1, 2, 3, 0])

    def together(self: MemberVerification, result: Any) -> Any:
        found = own(self, result)
        return {**found, "gradient of first.weight": found["gradient of first.weight"] * factor}

    monkeypatch.setattr(MemberVerification, "_together", together)
    if equal:
        array.backward(F.cross_entropy, x, y)
    else:
        with pytest.raises(FusionError, match=r"comes to another gradient of first\.weight"):
            array.backward(F.cross_entropy, x, y)
