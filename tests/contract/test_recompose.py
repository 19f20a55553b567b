"""Members that go on in an array that was put together anew are what they are alone."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hfta_nb.engine.array import MemberGenerators, fuse, per_member
from hfta_nb.engine.array.access import fuse_preallocated, suits
from hfta_nb.engine.array.execution_schedule import schedules_of
from hfta_nb.engine.members.generators import seeded_state
from hfta_nb.engine.replay.array_call import RESULTS
from hfta_nb.errors import FusionError
from hfta_nb.models.metrics import Metric
from hfta_nb.models.training_axes import TRAINING_AXES
from hfta_nb.train.step import ArrayStep, Origin, PlainStep, Precision, editing, put_member, recomposed
from hfta_nb.train.step.recompose import fits

CPU = torch.device("cpu")
EPOCHS, LENGTH = 4, 3
DEFAULTS = {name: spec.default for name, spec in TRAINING_AXES.items()}
KINDS: dict[str, dict[str, Any]] = {
    "sgd": {"optimizer": "sgd", "momentum": 0.9},
    "adam": {"optimizer": "adam", "lr_scheduler": "cosine"},
    "adamw": {"optimizer": "adamw", "lr_scheduler": "cosine", "warmup_steps": 4, "weight_decay": 0.1},
    "nadam": {"optimizer": "nadam", "lr_scheduler": "step", "step_size": 2, "gamma": 0.5},
    "rmsprop": {"optimizer": "rmsprop", "lr_scheduler": "onecycle"},
    "adagrad": {"optimizer": "adagrad", "lr_scheduler": "linear"},
    "plateau": {"optimizer": "sgd", "lr_scheduler": "plateau", "plateau_patience": 0, "gamma": 0.5},
    "adafactor": {"optimizer": "adafactor", "lr_scheduler": "sequential", "step_size": 2},
    "clipped": {"optimizer": "adam", "max_norm": 0.05},
}


def module(width: int = 6) -> nn.Module:
    """With buffers, and random numbers drawn in training."""
    body = [nn.Linear(5, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.3), nn.Linear(width, 3)]
    return nn.Sequential(*body).double()


def row(kind: str, number: int) -> dict[str, Any]:
    return DEFAULTS | KINDS[kind] | {"lr": 0.02 / (number + 1)}


def streams(numbers: Sequence[int]) -> MemberGenerators:
    return MemberGenerators([seeded_state(100 + n, CPU) for n in numbers], CPU)


def built(numbers: Sequence[int], width: int = 6) -> nn.Module:
    torch.manual_seed(numbers[0])
    return module(width)


def fused(kind: str, numbers: Sequence[int], widths: Sequence[int] = (), rows: Sequence[Any] | None = None) -> Any:
    """The step of an array of these members, at their beginning."""
    array = fuse([built([n], w) for n, w in zip(numbers, widths or [6] * len(numbers), strict=True)])
    array.generators.states = streams(numbers).states
    array.strategy = "fixed"
    return ArrayStep(array, rows or [row(kind, n) for n in numbers], F.cross_entropy, {}, EPOCHS, Precision(), LENGTH)


def alone(kind: str, number: int, width: int = 6, epochs: int = EPOCHS, changed: Any = None) -> list[float]:
    """Losses of a member's steps, as a plain module."""
    step: Any = PlainStep(
        built([number], width), row(kind, number), F.cross_entropy, {}, EPOCHS, streams([number]), Precision(), LENGTH
    )
    return [v[0] for v in trained(step, [number], [0], epochs)]


def data(number: int, epoch: int, batch: int) -> tuple[Tensor, Tensor]:
    """A member's own mini-batch."""
    generator = torch.Generator().manual_seed(1000 * number + 10 * epoch + batch)
    x = torch.randn(8, 5, generator=generator, dtype=torch.float64)
    return x, torch.randint(3, (8,), generator=generator)


def trained(step: Any, numbers: Sequence[int], begun: Sequence[int], epochs: int, first: int = 0) -> list[list[float]]:
    """Per step the losses of all members, each on the data of its own epochs."""
    found = []
    for epoch in range(first, first + epochs):
        for batch in range(LENGTH):
            own = [data(n, epoch - b, batch) for n, b in zip(numbers, begun, strict=True)]
            x, y = (torch.stack([pair[k] for pair in own]) for k in (0, 1))
            found.append(step.train(per_member(x), per_member(y))["loss"].tolist())
        step.end_epoch()
        step.end_validation([float((n * 7 + epoch - b) % 3) for n, b in zip(numbers, begun, strict=True)])
    return found


def check(kind: str, number: int, losses: Sequence[float], width: int = 6) -> None:
    expected = alone(kind, number, width, epochs=len(losses) // LENGTH)
    assert list(losses) == pytest.approx(expected, rel=0, abs=1e-10)


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.only(kind=["sgd", "adamw", "plateau", "nadam"])
def test_a_refilled_place_is_what_it_is_alone(kind: str, in_place: bool) -> None:
    """Two epochs, then member 1 makes room for member 7, which begins; the others go on as if nothing had been."""
    step = fused(kind, [0, 1, 2])
    before = trained(step, [0, 1, 2], [0, 0, 0], 2)
    if in_place:
        put_member(step, 1, Origin(fused(kind, [7]), 0))
    else:
        step = recomposed(fused(kind, [0, 7, 2]), [Origin(step, 0), None, Origin(step, 2)])
    after = trained(step, [0, 7, 2], [0, 2, 0], 2, first=2)
    for place, number in ((0, 0), (2, 2)):
        check(kind, number, [losses[place] for losses in before + after])
    check(kind, 7, [losses[1] for losses in after])


@pytest.mark.parametrize("kind", ["adam", "sgd"])
@pytest.mark.only(kind=["adam"])
def test_members_of_two_arrays_of_other_widths_go_on_in_one(kind: str) -> None:
    """Three and one epochs of two arrays; the members that go on are padded to the wider ones."""
    first, second = fused(kind, [0, 1]), fused(kind, [2, 3], [4, 9])
    done = trained(first, [0, 1], [0, 0], 2), trained(second, [2, 3], [0, 0], 1)
    widths = [9, 6, 4, 8]
    joined = recomposed(
        fused(kind, [3, 0, 2, 5], widths), [Origin(second, 1), Origin(first, 0), Origin(second, 0), None]
    )
    after = trained(joined, [3, 0, 2, 5], [1, 0, 1, 2], 2, first=2)
    check(kind, 3, [losses[1] for losses in done[1]] + [losses[0] for losses in after], 9)
    check(kind, 0, [losses[0] for losses in done[0]] + [losses[1] for losses in after], 6)
    check(kind, 2, [losses[0] for losses in done[1]] + [losses[2] for losses in after], 4)
    check(kind, 5, [losses[3] for losses in after], 8)


@pytest.mark.parametrize("kind", ["adam", "adamw", "rmsprop", "nadam"])
@pytest.mark.only(kind=["adamw", "nadam"])
def test_a_clone_with_another_lr_has_the_schedule_of_that_lr(kind: str) -> None:
    """Weights, moments and streams are the origin's, and lr is where a schedule of the new lr would be by then."""
    step = fused(kind, [0, 1])
    trained(step, [0, 1], [0, 0], 2)
    rows = [row(kind, 0), row(kind, 1), row(kind, 0) | {"lr": 0.005}]
    made = recomposed(fused(kind, [0, 1, 0], rows=rows), [Origin(step, 0), Origin(step, 1), Origin(step, 0)])
    editing.set_values(made, 2, rows[2], editing.Span(EPOCHS, LENGTH), ("lr",))
    like = fused(kind, [0], rows=[rows[2]])
    trained(like, [0], [0], 2)
    lr = made.updates[0].optimizer.rows(0, "lr")
    assert lr[2] == like.updates[0].optimizer.rows(0, "lr")[0]
    assert lr[2] == pytest.approx(lr[0] * 0.005 / 0.02)
    state = made.updates[0].optimizer.state_of(2)["state"]
    for number, tensors in step.updates[0].optimizer.state_of(0)["state"].items():
        for name, value in tensors.items():
            torch.testing.assert_close(state[number][name], value, rtol=0, atol=0)
    for mine, theirs in zip(made.array[2].parameters(), step.array[0].parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0)
    both = trained(made, [0, 1, 0], [0, 0, 0], 1, first=2)
    assert both[0][0] == pytest.approx(both[0][2], abs=1e-12)  # lr has not had an effect yet
    assert abs(both[-1][0] - both[-1][2]) > 1e-6


def test_nothing_is_recorded_anew_for_a_member_put_in_place() -> None:
    step = fused("adam", [0, 1, 2])
    trained(step, [0, 1, 2], [0, 0, 0], 2)
    ready = step.array._calls.steps.programs()
    assert ready
    put_member(step, 1, Origin(fused("adam", [7]), 0))
    trained(step, [0, 7, 2], [0, 2, 0], 1, first=2)
    assert step.array._calls.steps.programs() == ready


@pytest.mark.parametrize(
    ("metrics", "ready_after"), [({}, 1), ({"mean": Metric(lambda output, target: output.mean())}, 3)]
)
def test_an_array_put_together_anew_is_recorded_by_its_first_calls(
    metrics: dict[str, Metric], ready_after: int
) -> None:
    """Members wider than those before need another array; it computes the same, unless other scores are asked for."""
    step = fused("adam", [0, 1])
    trained(step, [0, 1], [0, 0], 2)
    x, y = data(0, 2, 0)
    for _ in range(3):
        step.evaluate(x, y)
    fresh = fused("adam", [0, 7], [6, 9])
    fresh = ArrayStep(fresh.array, fresh.definition[0], F.cross_entropy, metrics, EPOCHS, Precision(), LENGTH)
    made = recomposed(fresh, [Origin(step, 0), None])
    ready, validated = [], []
    for _ in range(3):
        made.train(per_member(torch.stack([x, x])), per_member(torch.stack([y, y])))
        made.evaluate(x, y)
        ready.append(any(entry.ready for entry in made.array._calls.steps))
        validated.append(any(entry.ready for entry in made.array._calls.caches[RESULTS]))
    assert ready.index(True) + 1 == validated.index(True) + 1 == ready_after


def bare(number: int, width: int, activation: type[nn.Module]) -> nn.Module:
    """Without random numbers in training, which a member draws at its own sizes."""
    torch.manual_seed(number)
    body = [nn.Linear(5, width), nn.BatchNorm1d(width), activation(), nn.Linear(width, width), activation()]
    return nn.Sequential(*body, nn.Linear(width, 3)).double()


def preallocated(members: Sequence[tuple[int, int, type[nn.Module]]]) -> ArrayStep:
    """The step of an array that takes members of other sizes."""
    numbers = [number for number, *_ in members]
    array = fuse_preallocated([bare(*member) for member in members], numbers, "first")
    array.generators.states = streams(numbers).states
    array.strategy = "fixed"
    return ArrayStep(array, [row("adam", n) for n in numbers], F.cross_entropy, {}, EPOCHS, Precision(), LENGTH)


@pytest.mark.parametrize("block_size", [4, 3, 2])
@pytest.mark.only(block_size=[4, 3])
def test_members_of_other_width_and_activation_take_places_with_nothing_recorded_anew(block_size: int) -> None:
    """In blocks too: one of a single member has the sizes of the whole array."""
    members = [(0, 9, nn.ReLU), (1, 6, nn.GELU), (2, 8, nn.ReLU), (3, 4, nn.GELU)]
    step = preallocated(members)
    step.array.block_size = block_size
    trained(step, [0, 1, 2, 3], [0] * 4, 2)
    architectures = step.array._state.engine.architectures
    assert architectures is not None
    assert architectures.preallocated
    x, y = data(50, 0, 0)
    for _ in range(4):
        step.evaluate(x, y)
    ready = step.array._calls.steps.programs()
    assert ready
    fresh = preallocated([(7, 5, nn.GELU), (8, 7, nn.ReLU)])
    origins = {0: Origin(fresh, 0), 3: Origin(fresh, 1, consumed=True)}
    template = fresh.array._state.engine.architectures.templates[1]
    for place, origin in origins.items():
        assert fits(step, place, origin)
        put_member(step, place, origin)
    found = trained(step, [7, 1, 2, 8], [2, 0, 0, 2], 2, first=2)
    assert step.array._calls.steps.programs() == ready
    assert architectures.template(3) is template  # not copied
    assert architectures.template(0) is not fresh.array._state.engine.architectures.templates[0]
    losses = step.evaluate(x, y)["loss"]
    for place, member in ((0, (7, 5, nn.GELU)), (3, (8, 7, nn.ReLU))):
        number = member[0]
        alone = PlainStep(
            bare(*member), row("adam", number), F.cross_entropy, {}, EPOCHS, streams([number]), Precision(), LENGTH
        )
        expected = [v[0] for v in trained(alone, [number], [0], 2)]
        assert [v[place] for v in found] == pytest.approx(expected, rel=0, abs=1e-10)
        assert float(losses[place]) == pytest.approx(float(alone.evaluate(x, y)["loss"]), abs=1e-10)
        own = dict(step.array[place].named_parameters())
        for name, value in alone.module.named_parameters():
            torch.testing.assert_close(own[name], value, rtol=0, atol=1e-10)
    cut = step.select([0, 3])  # narrower members alone keep the layout
    assert trained(cut, [7, 8], [2, 2], 1, first=4)
    assert not fits(step, 1, Origin(preallocated([(9, 12, nn.ReLU), (4, 4, nn.GELU)]), 0))  # no room


class ByName(nn.Sequential):
    def forward(self, x: Any) -> Any:
        for module in self:
            x = module(input=x)
        return x


def test_no_other_activation_takes_a_place_where_what_runs_depends_on_which_one_it_is() -> None:
    torch.manual_seed(0)
    kinds = [nn.ReLU, nn.GELU, nn.ReLU]
    one, two, new = [ByName(nn.Linear(5, 4), kind(), nn.Linear(4, 3)).double() for kind in kinds]
    array = fuse_preallocated([one, two], [0, 1], "first")
    others = fuse_preallocated([new, copy.deepcopy(two)], [2, 1], "first")
    assert suits(array, 1, others, 0)
    array.backward(F.cross_entropy, *data(0, 0, 0))
    assert not suits(array, 1, others, 0)


def test_members_of_a_roomy_array_never_run_alone() -> None:
    widths = [9, 6, 8, 4, 7, 5]
    step = preallocated([(number, width, nn.ReLU) for number, width in enumerate(widths)])
    assert [way.block_size for way in schedules_of(step.array._state)] == [6, 4]
    alike = fused("adam", [0, 1, 2, 3, 4, 5])
    assert [way.block_size for way in schedules_of(alike.array._state)] == [6, 4, 1]


@pytest.mark.parametrize(("block_size", "expected"), [(1, 4), (2, 2), (3, 4)])
def test_an_array_put_together_anew_runs_in_the_blocks_that_were_fastest(block_size: int, expected: int) -> None:
    """Where all members ran at once they do again; one at a time may be how a single member runs."""
    step = fused("adam", [0, 1, 2])
    step.array.block_size = block_size
    fresh = fused("adam", [0, 1, 7, 8])
    assert recomposed(fresh, [Origin(step, 0), Origin(step, 1), None, None]).array.block_size == expected


def test_a_roomy_array_is_made_of_the_modules_themselves() -> None:
    modules = [bare(0, 9, nn.ReLU), bare(1, 6, nn.GELU)]
    architectures = fuse_preallocated(modules, [0, 1], "first")._state.engine.architectures
    assert architectures is not None
    assert all(a is b for a, b in zip(architectures.templates, modules, strict=True))


def test_steps_of_padded_members_are_replayed_after_a_validation() -> None:
    array = fuse([bare(0, 9, nn.ReLU), bare(1, 6, nn.GELU), bare(2, 4, nn.ReLU)])
    array.strategy = "fixed"
    step = ArrayStep(array, [row("sgd", n) for n in range(3)], F.cross_entropy, {}, EPOCHS)
    for _ in range(3):
        for _ in range(5):
            step.train(*data(0, 0, 0))
        assert [entry.reason for entry in array._calls.steps] == [""]
        assert all(entry.ready for entry in array._calls.steps)
        step.evaluate(*data(0, 1, 0))


def test_members_of_other_architecture_are_refused() -> None:
    step = fused("sgd", [0, 1])
    before = copy.deepcopy(step.array.state_dict())
    with pytest.raises(FusionError, match="members of different architecture"):
        put_member(step, 1, Origin(fused("sgd", [7], [4]), 0))
    for name, value in step.array.state_dict().items():
        assert torch.equal(value, before[name])
    with pytest.raises(FusionError, match="not one origin per member"):
        recomposed(step, [None])
