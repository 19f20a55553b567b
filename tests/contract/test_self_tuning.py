"""User loops find the fastest schedule in their first calls, with unchanged results."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.engine.array import FusedArray, schedule_trial
from hfta_nb.engine.array.access import tuning_of
from hfta_nb.engine.array.schedule_tuner import ended
from hfta_nb.engine.kernels.strategy import timing_cache
from hfta_nb.engine.replay.calls import Calls
from hfta_nb.errors import FusionError
from tests.contract.replay import SEEDS, by_backward, by_losses, forget, loss_of_all, mlp, notes, one_step, pair, same
from tests.contract.rows import MODULES
from tests.contract.serial import loss_of, make, target_for

pytestmark = pytest.mark.usefixtures("self_tuning")
CPU = torch.device("cpu")
CALLS = 35
ROWS = ("batch norm", "lstm", "convolution, batch norm, 2d dropout", "control flow on values")


@pytest.fixture(autouse=True)
def _nothing_known() -> Iterator[None]:
    """No array takes over what another has found."""
    timing_cache._kept.cache_clear()
    yield
    timing_cache._kept.cache_clear()


@pytest.fixture
def costs(monkeypatch: pytest.MonkeyPatch) -> dict[int, float]:
    """Seconds of a call by block size; the clock is faked. At first all cost the same."""
    found: dict[int, float] = {}
    init = schedule_trial.Trial.__init__

    def watched(self: Any, calls: Calls, *args: Any, **kwargs: Any) -> None:
        init(self, calls, *args, **kwargs)
        now = [0.0]

        def clock() -> float:
            now[0] += found.get(calls.state.settings.block_size, 1.0)
            return now[0]

        self.clock = clock

    monkeypatch.setattr(schedule_trial.Trial, "__init__", watched)
    return found


def backward(array: FusedArray, x: Tensor, y: Any) -> Tensor:
    return by_backward(array, loss_of, x, y)  # type: ignore[no-any-return]


def split(array: FusedArray, x: Tensor, y: Any) -> Tensor:
    return one_step(array, x)


def losses(array: FusedArray, x: Tensor, y: Any) -> Tensor:
    return by_losses(array, loss_of, x, y)


def evaluate(array: FusedArray, x: Tensor, y: Any) -> Tensor:
    return array.evaluate(loss_of, x, y)  # type: ignore[no-any-return]


def quietly(array: FusedArray, x: Tensor, y: Any) -> Tensor:
    with torch.no_grad():
        return array(x)  # type: ignore[no-any-return]


FORMS = (backward, split, losses, evaluate, quietly)
Form = Callable[[FusedArray, Tensor, Any], Tensor]


def rows() -> list[Any]:
    named = {row.name: row for row in MODULES}
    return [named[name] for name in ROWS if name in named]


@pytest.mark.each("form")
@pytest.mark.parametrize("form", FORMS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("build", [mlp, *[row.build for row in rows()]], ids=["mlp", *[row.name for row in rows()]])
def test_what_is_computed_does_not_depend_on_what_is_tried(build: Any, form: Form) -> None:
    array, other = pair(build, CPU)
    other.self_tuning = False
    x = torch.randn(6, 5, dtype=torch.float64) if build is mlp else next(r for r in rows() if r.build is build).x()
    y = target_for(build().double(), x)
    for _ in range(CALLS):
        torch.testing.assert_close(form(array, x, y), form(other, x, y), atol=1e-10, rtol=1e-10)
        same(array, other, 1e-10, exact=False)


class ByFirstBatch(nn.Module):
    """The first batch decides a parameter, and puts a tensor of another dtype in place of a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.shift = mlp(), nn.Parameter(torch.zeros(1, 5))
        self.done: Tensor
        self.register_buffer("done", torch.tensor(0.0))

    def forward(self, x: Tensor) -> Tensor:
        if not self.done > 0:
            self.shift.data = x.mean(0, keepdim=True).data
            self.done = torch.tensor(1.0)
        return self.inner(x - self.shift)  # type: ignore[no-any-return]


@pytest.mark.parametrize("form", FORMS, ids=lambda f: f.__name__)
def test_what_is_tried_leaves_a_first_call_to_the_caller(form: Form) -> None:
    array, other = pair(ByFirstBatch, CPU)
    other.self_tuning = False
    x = torch.randn(6, 5, dtype=torch.float64) + 2
    y = target_for(mlp().double(), x)
    for _ in range(4):
        torch.testing.assert_close(form(array, x, y), form(other, x, y), atol=1e-10, rtol=1e-10)
        same(array, other, 1e-10, exact=False)


@pytest.mark.each("form")
@pytest.mark.parametrize(
    ("form", "name"), [(backward, "backward"), (split, "array(x)"), (evaluate, "without gradients")]
)
@pytest.mark.parametrize("fastest", [4, 1, 6])
def test_each_form_takes_its_fastest_way(form: Form, name: str, fastest: int, costs: dict[int, float]) -> None:
    array = hfta.fuse(make(mlp, 6, torch.float64, CPU), range(6))
    x, y = torch.randn(6, 5, dtype=torch.float64), torch.randn(6, 3, dtype=torch.float64)
    costs.update({6: 1.2, 4: 1.2, 1: 1.2} | {fastest: 0.7})
    for _ in range(CALLS):
        form(array, x, y)
    (found,) = array._tuning._forms.values()
    assert found.way is not None
    assert found.way.block_size == fastest
    assert "recorded" in notes(array, name).split("; ")
    assert array.block_size == (6 if form is evaluate else fastest)  # evaluation leaves training as it is
    assert any(f"block size {fastest}" in how for how in array.explain()["how"])


def test_forms_have_ways_of_their_own(costs: dict[int, float]) -> None:
    array = hfta.fuse(make(mlp, 6, torch.float64, CPU), range(6))
    x, y = torch.randn(6, 5, dtype=torch.float64), torch.randn(6, 3, dtype=torch.float64)
    costs.update({6: 1.2, 4: 1.2, 1: 0.7})
    for _ in range(CALLS):
        backward(array, x, y)
    costs.update({6: 0.5, 4: 1.0, 1: 1.0})
    for _ in range(CALLS):
        backward(array, x, y)
        split(array, x, y)
        evaluate(array, x, y)
    sizes = {name: form.way and form.way.block_size for name, form in array._tuning._forms.items()}
    assert sizes == {"backward": 1, "forward": 6, "results": 6}
    assert len(array.select([0, 1, 2])) == array.select([0, 1, 2]).block_size == 3


@pytest.mark.parametrize("form", FORMS, ids=lambda f: f.__name__)
def test_shapes_that_change_from_call_to_call(form: Form) -> None:
    array, other = pair(mlp, CPU)
    other.self_tuning = False
    for call in range(CALLS):
        size = 6 if call % 3 == 0 else 3 + call % 5
        x, y = torch.randn(size, 5, dtype=torch.float64), torch.randn(size, 3, dtype=torch.float64)
        torch.testing.assert_close(form(array, x, y), form(other, x, y), atol=1e-10, rtol=1e-10)
        same(array, other, 1e-10, exact=False)


@pytest.mark.parametrize("form", FORMS, ids=lambda f: f.__name__)
def test_an_array_begins_as_one_that_takes_what_was_found(form: Form) -> None:
    """Schedules round otherwise, so what the first array does to find the fastest must not be seen in its results."""
    x, y = torch.randn(6, 5), torch.randn(6, 3)
    found = []
    for _ in range(2):
        module = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 3))
        array = hfta.fuse([copy.deepcopy(module).float() for _ in range(6)], range(6))
        with torch.no_grad():
            for n, p in enumerate(array.parameters()):
                p.copy_(torch.randn(p.shape, generator=torch.Generator().manual_seed(n)))
        outs = [form(array, x, y).detach().clone() for _ in range(8)]
        gradients = [p.grad for p in array.parameters() if p.grad is not None]
        found.append([*outs, *gradients, *array.buffers()])
    assert all(map(torch.equal, *found))
    assert all(form.way is not None for form in array._tuning._forms.values())


def test_a_result_that_is_asked_for_once_costs_one_call() -> None:
    array = hfta.fuse(make(mlp, 3, torch.float64, CPU), SEEDS)
    x, y = torch.randn(6, 5, dtype=torch.float64), torch.randn(6, 3, dtype=torch.float64)
    calls = []
    array.evaluate(lambda out, y: calls.append(1) or loss_of(out, y), x, y)  # type: ignore[func-returns-value]
    assert len(calls) == 1
    assert array._tuning._forms["results"].way is None


def test_a_way_that_is_set_by_hand_stays(costs: dict[int, float]) -> None:
    array = hfta.fuse(make(mlp, 6, torch.float64, CPU), range(6))
    x, y = torch.randn(6, 5, dtype=torch.float64), torch.randn(6, 3, dtype=torch.float64)
    costs.update({6: 1.0, 4: 1.0, 1: 0.1})
    for _ in range(3):
        backward(array, x, y)
    array.block_size = 2
    assert not array.self_tuning
    for _ in range(CALLS):
        backward(array, x, y)
        split(array, x, y)
    assert array.block_size == 2
    assert notes(array, "backward") == "recorded"
    with pytest.raises(FusionError, match="neither on nor off"):
        array.self_tuning = 1  # type: ignore[assignment]


def test_nothing_is_tried_where_kernels_are_fixed(costs: dict[int, float]) -> None:
    array = hfta.fuse(make(mlp, 6, torch.float64, CPU), range(6))
    x, y = torch.randn(6, 5, dtype=torch.float64), torch.randn(6, 3, dtype=torch.float64)
    costs.update({6: 1.0, 4: 1.0, 1: 0.1})
    for _ in range(2):
        backward(array, x, y)
    array.strategy = "fixed"
    for _ in range(CALLS):
        backward(array, x, y)
        evaluate(array, x, y)
    assert array.block_size == 6
    assert not array._tuning._forms


def test_tune_chooses_for_backward(costs: dict[int, float]) -> None:
    array = hfta.fuse(make(mlp, 6, torch.float64, CPU), range(6))
    x, y = torch.randn(6, 5, dtype=torch.float64), torch.randn(6, 3, dtype=torch.float64)
    costs.update({6: 1.0, 4: 1.0, 1: 0.1})
    backward(array, x, y)
    assert array.tune(loss_of, x, y) == pytest.approx({6: 1.0, 4: 1.0, 1: 0.1})
    assert array.block_size == 1
    costs.update({6: 0.01})
    for _ in range(CALLS):
        backward(array, x, y)
    assert array.block_size == 1


def test_what_somebody_watches_is_not_timed() -> None:
    array = hfta.fuse(make(mlp, 3, torch.float64, CPU), SEEDS)
    x, y = torch.randn(6, 5, dtype=torch.float64), torch.randn(6, 3, dtype=torch.float64)
    with torch.autograd.set_detect_anomaly(True):
        for form in (backward, split, evaluate) * 3:
            form(array, x, y)
    assert all(form.way is None for form in array._tuning._forms.values())


def test_an_error_within_what_is_tried(costs: dict[int, float]) -> None:
    array = hfta.fuse(make(mlp, 3, torch.float64, CPU), SEEDS)
    x, y = torch.randn(6, 5, dtype=torch.float64), torch.randn(6, 3, dtype=torch.float64)
    costs.update({3: 1.0, 1: 0.1})
    for call in range(CALLS):
        for form in (backward, split, evaluate):
            if call % 4 == 1:
                with pytest.raises(Exception, match=r"shapes|size"):
                    form(array, torch.randn(6, 4, dtype=torch.float64), y)
            form(array, x, y)
    assert {form.way and form.way.block_size for form in array._tuning._forms.values()} == {1}


@pytest.mark.parametrize("before", range(3), ids=lambda n: f"{n} calls before")
def test_a_forward_without_a_backward_and_two_with_one(before: int) -> None:
    array, other = pair(mlp, CPU)
    other.self_tuning = False
    x = torch.randn(6, 5, dtype=torch.float64)
    for one in (array, other):
        for _ in range(before):
            forget(one)
            loss_of_all(one(x)).backward()
    for call in range(CALLS):
        outs = []
        for one in (array, other):
            forget(one)
            first, second = one(x), one(x)
            (loss_of_all(first) + (loss_of_all(second) if call % 2 else 0)).backward()
            outs.append(first.detach() + second.detach())
        torch.testing.assert_close(*outs, atol=1e-10, rtol=1e-10)
        same(array, other, 1e-10, exact=False)


def test_a_metric_that_vmap_can_t_follow_leaves_training_as_it_is() -> None:
    array = hfta.fuse(make(mlp, 3, torch.float64, CPU), SEEDS)
    x, y = torch.randn(6, 5, dtype=torch.float64), torch.randn(6, 3, dtype=torch.float64)

    def metric(out: Tensor, y: Tensor) -> Tensor:
        return torch.tensor(float(out.sum() > 0))  # control flow on values

    for _ in range(12):
        backward(array, x, y)
        evaluate(array, x, y)
        assert array.evaluate(metric, x, y).shape == (3,)
    assert len(array.notes) <= 2


def test_a_module_that_is_lazy_yet() -> None:
    array = hfta.fuse([nn.Sequential(nn.LazyLinear(4), nn.Dropout(0.1)) for _ in range(3)])
    x = torch.randn(6, 5)
    for _ in range(CALLS):
        assert array(x).shape == (3, 6, 4)
        array.backward(lambda out, _: out.square().mean(), x)


def test_a_study_does_not_try_convolutions_in_float64_together(self_tuning: None) -> None:
    array = hfta.fuse([nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten()).double() for _ in range(3)])
    x, y = torch.randn(2, 1, 5, 5, dtype=torch.float64), torch.randn(2, 18, dtype=torch.float64)
    tuning, sizes = tuning_of(array, "step"), set()
    ended(tuning.choose((x, y), lambda: sizes.add(array.block_size) or array.backward(nn.functional.mse_loss, x, y)))
    assert sizes <= {1}
    assert array.block_size == 1
