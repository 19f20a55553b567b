"""Parameter groups, saving, and torch's own state dicts of single members."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hfta_nb as hfta
from hfta_nb.errors import OptimError
from tests.contract.optim_rows import OPTIMIZERS, OptimizerRow
from tests.contract.optim_serial import (
    CPU,
    Twins,
    make_optimizer,
    parameters_for,
    setup,
    step_with_equal_gradients,
    through_file,
    train_array,
    train_member,
)
from tests.contract.serial import largest, make

optimizers = pytest.mark.parametrize("row", OPTIMIZERS, ids=str)
grouped = pytest.mark.parametrize("row", [r for r in OPTIMIZERS if r.name not in ("LBFGS", "Muon")], ids=str)
LRS = [0.1, 0.05, 0.02]


@grouped
def test_groups_with_values_of_their_own(row: OptimizerRow) -> None:
    """Interleaved groups, a third added later, values assigned in between."""
    if row.name == "Adagrad" and tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13):
        pytest.skip("torch's own Adagrad has no state for a group that is added (seen with 2.11)")
    modules, _, _ = setup()
    array = hfta.fuse(modules)

    def groups(module, lr, other):
        p = dict(module.named_parameters())
        return [{"params": [p["2.bias"], p["0.weight"]], "lr": lr}, {"params": p["0.bias"], **other}]

    other = {"maximize": [True, False, True]}
    kind = getattr(hfta.optim, row.name)
    optimizer = kind(groups(array, LRS, other), **row.settings)
    alone = [
        row.plain_class(groups(m, LRS[i], {"maximize": other["maximize"][i]}), **row.alone(i))
        for i, m in enumerate(modules)
    ]
    for step in range(12):
        if step == 4:
            optimizer.add_param_group({"params": [array.get_parameter("2.weight")], "lr": 0.03})
            for module, own in zip(modules, alone, strict=True):
                own.add_param_group({"params": [module.get_parameter("2.weight")], "lr": 0.03})
        if step == 6:
            optimizer.param_groups[0]["lr"] = 0.07
            optimizer.param_groups[1]["lr"] = [0.01, 0.02, 0.03]
            for i, own in enumerate(alone):
                own.param_groups[0]["lr"] = 0.07
                own.param_groups[1]["lr"] = [0.01, 0.02, 0.03][i]
        if step == 8:
            optimizer.param_groups[1]["lr"][2] = 0.5  # in place
            alone[2].param_groups[1]["lr"] = 0.5
        step_with_equal_gradients(array, optimizer, modules, alone)
    assert largest(array, modules) <= 1e-10


def test_all_ways_to_name_parameters() -> None:
    modules, x, y = setup()
    results = []
    for give in (
        lambda a: a,
        lambda a: a.parameters(),
        lambda a: a.named_parameters(),
        lambda a: [{"params": a.parameters()}],
        lambda a: [{"params": a}],
        lambda a: [{"params": [p]} for p in a.parameters()],
    ):
        array = hfta.fuse(modules)
        optimizer = hfta.optim.Adam(give(array), lr=LRS)
        assert optimizer.array is array
        train_array(array, optimizer, x, y, 3)
        results.append([p.detach().clone() for p in array.parameters()])
    for other in results[1:]:
        assert all(torch.equal(p, q) for p, q in zip(results[0], other, strict=True))
    assert optimizer.param_groups[0]["lr"] == LRS
    named = hfta.optim.Adam(array.named_parameters())
    assert named.param_groups[0]["param_names"] == [n for n, _ in array.named_parameters()]


def test_parameters_that_are_not_accepted() -> None:
    modules, _, _ = setup()
    array, other = hfta.fuse(modules), hfta.fuse(modules)
    p, q = dict(array.named_parameters()), dict(other.named_parameters())
    adam = hfta.optim.Adam
    cases = [
        (lambda: adam([p["0.weight"], q["0.bias"]]), r"another array.*0\.bias"),
        (lambda: adam([p["0.weight"], nn.Parameter(torch.zeros(2))]), "of no array"),
        (lambda: adam([p["0.weight"], p["0.weight"]]), r"given twice.*0\.weight"),
        (lambda: adam([{"params": p["0.weight"]}, {"params": [p["0.weight"]]}]), r"given twice.*0\.weight"),
        (lambda: adam([]), "no parameters"),
        (lambda: adam([{"params": []}]), "without parameters"),
        (lambda: adam([{"lr": 0.1}]), "without 'params'"),
        (lambda: adam({p["0.weight"]: 1}), "not the parameters of an array"),
        (lambda: adam(p["0.weight"]), "not the parameters of an array"),
        (lambda: adam([("0.weight", p["0.weight"]), p["0.bias"]]), "some parameters come with names"),
        (
            lambda: adam([{"params": [("a", p["0.weight"])]}, {"params": p["0.bias"]}]),
            "some groups come with names",
        ),
        (lambda: adam([{"params": {p["0.weight"]}}]), "a set has no order"),
        (lambda: adam(["0.weight"]), "not a parameter"),
        (lambda: adam([{"params": p["0.weight"], "lr": [0.1]}]), "not one value per member"),
        (lambda: hfta.optim.LBFGS([{"params": p["0.weight"]}, {"params": p["0.bias"]}]), "one group"),
    ]
    for call, words in cases:
        with pytest.raises(OptimError, match=words):
            call()


def test_a_value_that_can_not_be_used_changes_nothing() -> None:
    modules, x, y = setup()
    array = hfta.fuse(modules)
    optimizer = hfta.optim.Adam(
        [{"params": array.get_parameter("0.weight")}, {"params": array.get_parameter("2.weight")}]
    )
    train_array(array, optimizer, x, y, 1)
    before = {k: v.clone() for k, v in array.state_dict().items()}
    state = optimizer.state_dict()
    for value, words in [([0.1, 0.2], r"group \d, lr: not one value"), (-1, "out of bounds"), ("x", "not a number")]:
        optimizer.param_groups[1]["lr"] = value
        with pytest.raises(OptimError, match=words):
            optimizer.step()
        with pytest.raises(OptimError, match=words):
            optimizer.add_param_group({"params": array.get_parameter("0.bias"), "lr": value})
    assert len(optimizer.param_groups) == 2
    optimizer.param_groups[1]["lr"] = 1e-3
    for name, value in array.state_dict().items():
        assert torch.equal(before[name], value)
    for name, entry in optimizer.state_dict()["state"].items():
        assert entry["steps"] == state["state"][name]["steps"]


@optimizers
def test_a_member_goes_on_in_torch(row: OptimizerRow) -> None:
    """`state_of(i)` loads into torch's optimizer of the plain module, which goes on as the array does; and back."""
    twins = Twins(row)
    twins.steps(5)
    array, optimizer, alone = twins.array, twins.optimizer, twins.alone
    taken = [array[i] for i in range(3)]
    fresh = []
    for i, module in enumerate(taken):
        own = row.plain_class(parameters_for(row, module))
        own.load_state_dict(through_file(optimizer.state_of(i)))
        saved, expected = own.state_dict(), alone[i].state_dict()
        assert saved["param_groups"] == expected["param_groups"]
        assert saved["state"].keys() == expected["state"].keys()
        for k, state in expected["state"].items():
            assert {n for n, v in state.items() if v is not None} == set(saved["state"][k])
        fresh.append(own)
    for _ in range(5):
        step_with_equal_gradients(array, optimizer, taken, fresh)
    assert largest(array, taken) <= 1e-10

    again = hfta.fuse([array[i] for i in range(3)])
    settings = {k: row.alone(0)[k] for k in row.settings}
    back = make_optimizer(OptimizerRow(row.name, settings), again)
    for i, own in enumerate(fresh):
        back.load_state_of(i, own.state_dict())
    for _ in range(5):
        step_with_equal_gradients(again, back, taken, fresh)
    assert largest(again, taken) <= 1e-10


@optimizers
def test_saved_halfway_with_groups(row: OptimizerRow) -> None:
    modules, _, _ = setup()
    through, half, rest = (hfta.fuse(modules) for _ in range(3))

    def build(array):
        if row.name in ("LBFGS", "Muon"):
            return make_optimizer(row, array)
        p = dict(array.named_parameters())
        groups = [{"params": [p["2.bias"], p["0.weight"]], "lr": LRS}, {"params": [p["0.bias"], p["2.weight"]]}]
        return getattr(hfta.optim, row.name)(groups, **row.settings)

    first, second, third = build(through), build(half), build(rest)
    for _ in range(10):
        step_with_equal_gradients(through, first, [], [])
    for _ in range(5):
        step_with_equal_gradients(half, second, [], [])
    rest.load_state_dict(half.state_dict())
    third.load_state_dict(through_file(second.state_dict()))
    for _ in range(5):
        step_with_equal_gradients(rest, third, [], [])
    for p, q in zip(through.parameters(), rest.parameters(), strict=True):
        assert torch.equal(p, q)


def test_states_that_are_another_optimizers() -> None:
    modules, x, y = setup()
    array = hfta.fuse(modules)
    adam, sgd = hfta.optim.Adam(array), hfta.optim.SGD(array, momentum=0.9)
    train_array(array, adam, x, y, 1)
    before = adam.state_dict()
    cases = [
        (lambda: adam.load_state_dict(sgd.state_dict()), "another optimizer"),
        (lambda: adam.load_state_dict(hfta.optim.Adam(hfta.fuse(modules[:2])).state_dict()), "number of members"),
        (
            lambda: adam.load_state_dict(hfta.optim.Adam([array.get_parameter("0.weight")]).state_dict()),
            "another array",
        ),
        (lambda: adam.load_state_of(0, torch.optim.SGD(modules[0].parameters()).state_dict()), "another optimizer"),
        (lambda: adam.load_state_of(0, torch.optim.Adam([modules[0][0].weight]).state_dict()), "other sizes"),
    ]
    for call, words in cases:
        with pytest.raises(OptimError, match=words):
            call()
    after = adam.state_dict()
    assert after["param_groups"] == before["param_groups"]
    for name, entry in after["state"].items():
        assert all(torch.equal(t, before["state"][name]["tensors"][k]) for k, t in entry["tensors"].items())
    for call in (lambda: adam.state_of(3), lambda: adam.load_state_of(-4, {})):
        with pytest.raises(IndexError):
            call()


def test_closures_return_the_losses() -> None:
    modules, x, y = setup()
    array = hfta.fuse(modules)
    optimizer = hfta.optim.SGD(array, lr=LRS)
    alone = [torch.optim.SGD(m.parameters(), lr=lr) for m, lr in zip(modules, LRS, strict=True)]

    def closure():
        optimizer.zero_grad()
        return array.backward(nn.functional.mse_loss, x, y)

    for _ in range(3):
        losses = optimizer.step(closure)
    for module, own in zip(modules, alone, strict=True):
        train_member(module, None, own, x, y, 2)
    for i, module in enumerate(modules):
        torch.testing.assert_close(losses[i], nn.functional.mse_loss(module(x), y), atol=1e-12, rtol=0)


def test_zero_grad() -> None:
    modules, x, y = setup()
    array = hfta.fuse(modules)
    optimizer = hfta.optim.SGD(array.get_submodule("0").parameters())
    array.backward(nn.functional.mse_loss, x, y)
    optimizer.zero_grad(set_to_none=False)
    assert (array.get_parameter("0.weight").grad == 0).all()
    optimizer.zero_grad()
    assert array.get_parameter("0.weight").grad is None
    assert array.get_parameter("2.weight").grad is not None


def test_lbfgs_leaves_alone_what_a_member_did_not_ask_for() -> None:
    """Members need different numbers of evaluations; buffers and random streams are those of training alone."""
    modules = make(
        lambda: nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 3)),
        3,
        torch.float64,
        CPU,
    )
    x, y = torch.randn(6, 5, dtype=torch.float64), torch.randn(6, 3, dtype=torch.float64)
    seeds, iterations = [1, 2, 3], [1, 4, 2]
    array = hfta.fuse(modules, seeds)
    optimizer = hfta.optim.LBFGS(array, lr=0.1, max_iter=iterations)
    calls = []

    def closure():
        calls.append(1)
        optimizer.zero_grad()
        return array.backward(nn.functional.mse_loss, x, y)

    optimizer.step(closure)
    assert len(calls) == 4
    for i, module in enumerate(modules):
        train_member(module, seeds[i], torch.optim.LBFGS(module.parameters(), lr=0.1, max_iter=iterations[i]), x, y, 1)
        assert torch.equal(array.generators.states[i]["cpu"], torch.get_rng_state())
    assert largest(array, modules) <= 1e-10


def test_lbfgs_after_a_failing_closure_is_as_before() -> None:
    modules, x, y = setup()
    array = hfta.fuse(modules)
    optimizer = hfta.optim.LBFGS(array, lr=0.1, line_search_fn="strong_wolfe")
    calls = []

    def closure(fail: int) -> torch.Tensor:
        calls.append(1)
        if len(calls) == fail:
            raise RuntimeError("no more data")
        optimizer.zero_grad()
        return array.backward(nn.functional.mse_loss, x, y)

    optimizer.step(lambda: closure(0))
    before = [p.detach().clone() for p in array.parameters()], [m.state_dict() for m in optimizer.members]
    kept = [len(s["state"][0]["old_dirs"]) for s in before[1]]
    calls.clear()
    with pytest.raises(RuntimeError, match="no more data"):
        optimizer.step(lambda: closure(5))
    assert all(torch.equal(p, q) for p, q in zip(before[0], array.parameters(), strict=True))
    assert [len(m.state_dict()["state"][0]["old_dirs"]) for m in optimizer.members] == kept
    with pytest.raises(OptimError, match="needs a closure"):
        optimizer.step()
    with pytest.raises(OptimError, match="not one loss per member"):
        optimizer.step(lambda: torch.zeros(()))


def test_a_state_of_another_form_is_refused() -> None:
    modules, _, _ = setup()
    optimizer = hfta.optim.Rprop(hfta.fuse(modules), lr=0.01)
    saved = optimizer.state_dict()
    saved["state"] = {"0.weight": {"steps": [1, 1, 1], "tensors": {}, "numbers": {}}}
    with pytest.raises(OptimError, match="another number of members"):
        optimizer.load_state_dict(saved)
