"""Every lr scheduler of torch, compared for each member."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import hfta_nb as hfta
from hfta_nb.errors import OptimError
from hfta_nb.optim import lr_scheduler
from hfta_nb.optim.member_values import advanced
from tests.contract.optim_rows import COMPOSED, LR_SCHEDULERS, OptimizerRow, torch_schedulers
from tests.contract.optim_serial import setup, through_file, train_array, train_member
from tests.contract.serial import largest

lr_schedulers = pytest.mark.parametrize("row", LR_SCHEDULERS, ids=lambda r: f"{r.name} {'-'.join(r.settings)}")
SEEDS = [1, 2, 3]
CPU = torch.device("cpu")
reference = torch.optim.lr_scheduler


def _groups(module: nn.Module, lr) -> list[dict]:
    first, last = list(module.parameters())[:2], list(module.parameters())[2:]
    return [{"params": first, "lr": lr}, {"params": last}]


def _member(value, i: int):
    return value[i] if isinstance(value, list) else value


OPTIMIZERS = [
    ("SGD", {"lr": 0.1, "momentum": 0.9}, 0.1),
    ("SGD", {"lr": [0.1, 0.01, 0.3], "momentum": [0.9, 0.5, 0.1]}, [0.2, 0.1, 0.05]),
    ("AdamW", {"lr": [0.1, 0.01, 0.03], "betas": [(0.9, 0.99), (0.8, 0.9), (0.5, 0.999)]}, 0.02),
]


@pytest.mark.each("row")
@lr_schedulers
@pytest.mark.parametrize(("name", "settings", "lr"), OPTIMIZERS, ids=["one", "sgd", "adamw"])
def test_twenty_steps(row: OptimizerRow, name: str, settings: dict, lr, device: torch.device) -> None:
    modules, x, y = setup(device)
    array = hfta.fuse(modules)
    optimizer = getattr(hfta.optim, name)(_groups(array, lr), **settings)
    scheduler = getattr(lr_scheduler, row.name)(optimizer, **row.settings)
    alone = []
    for i, module in enumerate(modules):
        values = {k: _member(v, i) for k, v in settings.items()}
        own = getattr(torch.optim, name)(_groups(module, _member(lr, i)), **values)
        alone.append((own, getattr(reference, row.name)(own, **row.alone(i))))
    for _ in range(20):
        train_array(array, optimizer, x, y, 1, scheduler)
        for i, (module, (own, theirs)) in enumerate(zip(modules, alone, strict=True)):
            train_member(module, None, own, x, y, 1, theirs)
            for k, group in enumerate(own.param_groups):
                mine = optimizer.param_groups[k]
                for key in ("lr", "initial_lr", "momentum", "betas", "max_lr", "max_momentum"):
                    assert (optimizer.rows(k, key)[i] if key in mine else None) == group.get(key)
                assert scheduler.get_last_lr()[k][i] == theirs.get_last_lr()[k]
    assert largest(array, modules) <= 1e-10


def test_there_is_every_scheduler_that_torch_has() -> None:
    tested = {r.name for r in LR_SCHEDULERS} | set(COMPOSED)
    assert {"StepLR", "OneCycleLR"} <= set(torch_schedulers())
    for name in torch_schedulers():
        assert name in tested
        assert getattr(lr_scheduler, name).how == "torch's own, one per member"


def _out_and_in(fresh, x, y, before: int, after: int):
    """Steps with a file in between are those without; gives the scheduler that was loaded."""
    through, half, rest = fresh(), fresh(), fresh()
    train_array(*through[:2], x, y, before + after, through[2])
    train_array(*half[:2], x, y, before, half[2])
    rest[0].load_state_dict(half[0].state_dict())
    for k in (1, 2):
        rest[k].load_state_dict(through_file(half[k].state_dict()))
    train_array(*rest[:2], x, y, after, rest[2])
    for p, q in zip(through[0].parameters(), rest[0].parameters(), strict=True):
        assert torch.equal(p, q)
    return rest[2]


@pytest.mark.only(row=LR_SCHEDULERS[::4])
@lr_schedulers
def test_state_goes_out_and_in(row: OptimizerRow) -> None:
    modules, x, y = setup()

    def fresh():
        array = hfta.fuse(modules)
        optimizer = hfta.optim.SGD(_groups(array, [0.2, 0.1, 0.05]), lr=0.1, momentum=0.9)
        return array, optimizer, getattr(lr_scheduler, row.name)(optimizer, **row.settings)

    rest = _out_and_in(fresh, x, y, 7, 9)
    with pytest.raises(OptimError, match="another number of members"):
        rest.load_state_dict({"members": []})


def _surgery(build) -> None:
    """Members selected, joined and copied go on as they did; a member that is reset begins anew."""
    modules, x, y = setup()
    array = hfta.fuse(modules)
    optimizer = hfta.optim.SGD(_groups(array, [0.2, 0.1, 0.05]), lr=0.1, momentum=[0.9, 0.5, 0.1])
    scheduler = build(optimizer)
    train_array(array, optimizer, x, y, 6, scheduler)

    part = array.select([2, 0])
    few = optimizer.select([2, 0], part)
    fewer = scheduler.select([2, 0], few)
    other = array.select([1])
    one = optimizer.select([1], other)
    lone = scheduler.select([1], one)
    both = hfta.join(part, other)
    joined = few.join(one, both)
    schedule = fewer.join(lone, joined)
    for a, o, s in ((array, optimizer, scheduler), (part, few, fewer), (both, joined, schedule)):
        train_array(a, o, x, y, 6, s)
    for p, q, r in zip(array.parameters(), part.parameters(), both.parameters(), strict=True):
        torch.testing.assert_close(p[[2, 0]], q, atol=1e-12, rtol=0)
        torch.testing.assert_close(p[[2, 0, 1]], r, atol=1e-12, rtol=0)
    assert [g[i] for g in optimizer_lrs(optimizer) for i in (2, 0, 1)] == [v for g in optimizer_lrs(joined) for v in g]

    array.copy_member(0, 1)
    train_array(array, optimizer, x, y, 4, scheduler)
    for p in array.parameters():
        assert torch.equal(p[0], p[1])
    for lrs in optimizer_lrs(optimizer):
        assert lrs[0] == lrs[1]

    again = hfta.fuse(modules)
    fresh = hfta.optim.SGD(_groups(again, [0.2, 0.1, 0.05]), lr=0.1, momentum=[0.9, 0.5, 0.1])
    schedule = build(fresh)
    array.load_member(2, modules[2].state_dict())
    for a, o, s in ((array, optimizer, scheduler), (again, fresh, schedule)):
        train_array(a, o, x, y, 5, s)
    for p, q in zip(array.parameters(), again.parameters(), strict=True):
        assert torch.equal(p[2], q[2])


def optimizer_lrs(optimizer) -> list[list[float]]:
    return [optimizer.rows(k, "lr") for k in range(len(optimizer.param_groups))]


@pytest.mark.only(row=LR_SCHEDULERS[::4])
@lr_schedulers
def test_surgery(row: OptimizerRow) -> None:
    _surgery(lambda o: getattr(lr_scheduler, row.name)(o, **row.settings))


def test_a_copied_member_begins_anew_with_the_schedule_that_it_took() -> None:
    array = hfta.fuse(setup()[0])
    optimizer = hfta.optim.SGD(array, lr=[0.8, 0.1, 0.1])
    scheduler = lr_scheduler.StepLR(optimizer, step_size=[1, 2, 3], gamma=0.5)
    array.copy_member(0, 1)
    array.load_member(1, array[2].state_dict())
    assert optimizer.rows(0, "lr") == [0.8, 0.8, 0.1]
    optimizer.step()
    scheduler.step()
    assert optimizer.rows(0, "lr") == [0.4, 0.4, 0.1]


def _factories(module):
    return [
        lambda o: module.StepLR(o, step_size=3, gamma=0.5),
        lambda o: module.CosineAnnealingLR(o, T_max=10),
        lambda o: module.OneCycleLR(o, max_lr=0.3, total_steps=50),
    ]


def _sequential(optimizer):
    warm = lr_scheduler.LinearLR(optimizer, start_factor=[0.1, 0.5, 0.2], total_iters=[3, 4, 5])
    then = lr_scheduler.ExponentialLR(optimizer, gamma=[0.9, 0.5, 0.7])
    return lr_scheduler.SequentialLR(optimizer, [warm, then], milestones=[[3], [4], [5]])


def _chained(optimizer):
    warm = lr_scheduler.ConstantLR(optimizer, factor=[0.1, 0.5, 0.2], total_iters=4)
    return lr_scheduler.ChainedScheduler([warm, lr_scheduler.ExponentialLR(optimizer, gamma=[0.9, 0.5, 0.7])])


def _nested(optimizer):
    return lr_scheduler.SequentialLR(
        optimizer, [_chained(optimizer), lr_scheduler.StepLR(optimizer, [2, 3, 4])], milestones=[6]
    )


def _by_member(optimizer):
    return lr_scheduler.ByMember(optimizer, _factories(reference))


composed = pytest.mark.parametrize("build", [_sequential, _chained, _nested, _by_member])


@composed
def test_surgery_of_composed_schedulers(build) -> None:
    _surgery(build)


@composed
def test_composed_state_goes_out_and_in(build) -> None:
    modules, x, y = setup()

    def fresh():
        array = hfta.fuse(modules)
        optimizer = hfta.optim.SGD(array, lr=[0.2, 0.1, 0.05], momentum=0.9)
        return array, optimizer, build(optimizer)

    _out_and_in(fresh, x, y, 5, 7)


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step:UserWarning")  # torch's of its own nesting
def test_composed_schedulers_equal_torchs() -> None:
    def sequential(o, i):
        warm = reference.LinearLR(o, start_factor=[0.1, 0.5, 0.2][i], total_iters=[3, 4, 5][i])
        then = reference.ExponentialLR(o, gamma=[0.9, 0.5, 0.7][i])
        return reference.SequentialLR(o, [warm, then], milestones=[3 + i])

    def chained(o, i):
        warm = reference.ConstantLR(o, factor=[0.1, 0.5, 0.2][i], total_iters=4)
        return reference.ChainedScheduler([warm, reference.ExponentialLR(o, gamma=[0.9, 0.5, 0.7][i])])

    def nested(o, i):
        return reference.SequentialLR(o, [chained(o, i), reference.StepLR(o, 2 + i)], milestones=[6])

    def by_member(o, i):
        return _factories(reference)[i](o)

    for build, theirs in ((_sequential, sequential), (_chained, chained), (_nested, nested), (_by_member, by_member)):
        modules, _, _ = setup()
        optimizer = hfta.optim.SGD(hfta.fuse(modules), lr=[0.2, 0.1, 0.05], momentum=0.9)
        scheduler = build(optimizer)
        owns = [
            torch.optim.SGD(m.parameters(), lr=lr, momentum=0.9)
            for m, lr in zip(modules, [0.2, 0.1, 0.05], strict=True)
        ]
        alone = [theirs(o, i) for i, o in enumerate(owns)]
        for _ in range(20):
            optimizer.step()
            scheduler.step()
            for own, their in zip(owns, alone, strict=True):
                own.step()
                their.step()
            assert optimizer.rows(0, "lr") == [o.param_groups[0]["lr"] for o in owns]
            assert optimizer.rows(0, "momentum") == [o.param_groups[0]["momentum"] for o in owns]


def test_two_schedulers_of_one_optimizer() -> None:
    """They work on the same values, as in torch; a value assigned by hand is what they go on from."""
    modules, _, _ = setup()
    optimizer = hfta.optim.SGD(hfta.fuse(modules), lr=[0.2, 0.1, 0.05])
    both = [lr_scheduler.ExponentialLR(optimizer, 0.9), lr_scheduler.StepLR(optimizer, [2, 3, 4], gamma=0.5)]
    owns = [torch.optim.SGD(m.parameters(), lr=lr) for m, lr in zip(modules, [0.2, 0.1, 0.05], strict=True)]
    alone = [[reference.ExponentialLR(o, 0.9), reference.StepLR(o, 2 + i, gamma=0.5)] for i, o in enumerate(owns)]
    for step in range(9):
        if step == 4:
            optimizer.param_groups[0]["lr"] = 0.3
            for own in owns:
                own.param_groups[0]["lr"] = 0.3
        optimizer.step()
        for scheduler in both:
            scheduler.step()
        for own, theirs in zip(owns, alone, strict=True):
            own.step()
            for scheduler in theirs:
                scheduler.step()
        assert optimizer.rows(0, "lr") == [o.param_groups[0]["lr"] for o in owns]


def test_per_group_values_are_tuples() -> None:
    modules, _, _ = setup()
    optimizer = hfta.optim.SGD(_groups(hfta.fuse(modules), 0.1), lr=0.2, momentum=0.9)
    scheduler = lr_scheduler.OneCycleLR(optimizer, max_lr=[(0.1, 0.2), (0.3, 0.4), (0.5, 0.6)], total_steps=10)
    lr_scheduler.LambdaLR(copy.copy(optimizer), (lambda e: 1.0, lambda e: 0.5))
    for i, pair in enumerate([(0.1, 0.2), (0.3, 0.4), (0.5, 0.6)]):
        own = torch.optim.SGD(_groups(modules[i], 0.1), lr=0.2, momentum=0.9)
        theirs = reference.OneCycleLR(own, max_lr=list(pair), total_steps=10)
        assert [group[i] for group in scheduler.get_last_lr()] == theirs.get_last_lr()


def test_wrong_settings_are_named_and_change_nothing() -> None:
    modules, _, _ = setup()
    optimizer = hfta.optim.Adadelta(hfta.fuse(modules), lr=[0.1, 0.2, 0.3])
    plateau = lr_scheduler.ReduceLROnPlateau(hfta.optim.SGD(hfta.fuse(modules), lr=0.1))
    other = lr_scheduler.StepLR(hfta.optim.SGD(hfta.fuse(modules)), 3)
    cases = [
        (lambda: lr_scheduler.StepLR(optimizer, [1, 2]), "step_size: not one value per member"),
        (lambda: lr_scheduler.StepLR(optimizer, 3, gamma=[0.1, float("nan"), 0.1]), "gamma: not a finite number"),
        (lambda: lr_scheduler.OneCycleLR(optimizer, float("inf"), 10), "max_lr: not a learning rate; got inf"),
        (lambda: lr_scheduler.StepLR(optimizer, [1, 2, 0]), "step_size: not a period; got 0"),
        (lambda: lr_scheduler.CosineAnnealingLR(optimizer, 0), "T_max: not a period; got 0"),
        (lambda: lr_scheduler.OneCycleLR(optimizer, 0.1), "OneCycleLR, member 0"),
        (lambda: lr_scheduler.CyclicLR(optimizer, 0.1, 0.2), "must support momentum"),
        (lambda: lr_scheduler.ConstantLR(optimizer, [0.5, 0.5, 2.0]), "ConstantLR, member 2"),
        (lambda: lr_scheduler.ExponentialLR(torch.optim.SGD(modules[0].parameters()), 0.1), "not the optimizer of an"),
        (lambda: lr_scheduler.ByMember(optimizer, []), "not one per member"),
        (lambda: lr_scheduler.SequentialLR(optimizer, [], [1]), "no schedulers"),
        (lambda: lr_scheduler.SequentialLR(optimizer, [other], []), "scheduler 0: not a scheduler of this optimizer"),
        (lambda: plateau.step(), "no metrics"),
        (lambda: plateau.step([1.0]), "not one metric per member"),
        (lambda: plateau.step(1.0), "not one metric per member"),
    ]
    for call, words in cases:
        with pytest.raises(OptimError, match=words):
            call()
    assert optimizer.param_groups[0]["lr"] == [0.1, 0.2, 0.3]
    with pytest.raises(OptimError, match="milestones"):
        lr_scheduler.SequentialLR(optimizer, [lr_scheduler.StepLR(optimizer, 3)], [1, 2])


def test_plateau_takes_a_tensor_of_metrics() -> None:
    modules, _, _ = setup()
    optimizer = hfta.optim.SGD(hfta.fuse(modules), lr=[0.1, 0.2, 0.3])
    scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, patience=[0, 1, 5], factor=0.5)
    for _ in range(3):
        scheduler.step(torch.tensor([1.0, 1.0, float("nan")]))
    assert optimizer.param_groups[0]["lr"] == [0.025, 0.1, 0.3]


def test_a_schedule_in_the_place_of_one_that_follows_a_metric_goes_as_far() -> None:
    """As in a plain loop that has stepped it from the start."""
    optimizers = [torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1) for _ in range(2)]
    before = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizers[0], patience=0)
    for value in (1.0, 2.0, 3.0, 4.0):
        optimizers[0].step()
        before.step(value)
    made = advanced(torch.optim.lr_scheduler.StepLR(optimizers[1], step_size=2, gamma=0.5), before)
    assert made.last_epoch == 4
    assert made.get_last_lr() == [0.1 * 0.5**2]
