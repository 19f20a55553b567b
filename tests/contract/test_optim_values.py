"""Forms of hyperparameters: arrays, tensors, pairs of sequences; and error messages."""

from __future__ import annotations

import array as standard
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from torch import nn

import hfta_nb as hfta
from hfta_nb.errors import OptimError
from hfta_nb.optim import lr_scheduler
from tests.contract.optim_rows import OPTIMIZERS, OptimizerRow
from tests.contract.optim_serial import make_optimizer, setup, train_array

MEMBERS = 3
ROWS = [row for row in OPTIMIZERS if row.name != "LBFGS" and any(isinstance(v, list) for v in row.settings.values())]


def _numeric(value: Any) -> bool:
    flat = np.array(value, dtype=object).ravel()
    return isinstance(value, list) and all(isinstance(v, int | float) for v in flat)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_arrays_and_tensors_are_lists(row: OptimizerRow) -> None:
    """Of length M, or of M pairs: bit for bit what the list of the same numbers gives."""
    forms = {"list": list, "ndarray": np.asarray, "tensor": lambda v: torch.tensor(v, dtype=torch.float64)}
    found = []
    for convert in forms.values():
        modules, x, y = setup()
        array = hfta.fuse([m.eval() for m in modules])
        settings = {k: convert(v) if _numeric(v) else v for k, v in row.settings.items()}
        optimizer = make_optimizer(OptimizerRow(row.name, settings), array)
        train_array(array, optimizer, x, y, 3)
        found.append([p.detach().clone() for p in array.parameters()])
    for other in found[1:]:
        assert all(torch.equal(p, q) for p, q in zip(found[0], other, strict=True))


def _adam(**settings: Any) -> hfta.optim.Adam:
    return hfta.optim.Adam(hfta.fuse([nn.Linear(4, 2) for _ in range(MEMBERS)]), **settings)


@pytest.mark.parametrize(
    "lr",
    [pandas.Series([0.1, 0.2, 0.3]), standard.array("d", [0.1, 0.2, 0.3]), hfta.per_member((0.1, 0.2, 0.3)),
     [torch.tensor(0.1, dtype=torch.float64), np.float64(0.2), 0.3]],
    ids=["Series", "array", "per_member", "mixed"],
)  # fmt: skip
def test_any_array_like_of_length_m_is_per_member(lr: Any) -> None:
    optimizer = _adam(lr=lr)
    assert optimizer.rows(0, "lr") == [0.1, 0.2, 0.3]
    optimizer.param_groups[0]["eps"] = np.array([1e-8, 0.0, 1e-3])  # assigned later, and a zero among them
    losses = optimizer.array.backward(nn.functional.mse_loss, torch.ones(5, 4), torch.zeros(5, 2))
    optimizer.step()
    assert losses.shape == (MEMBERS,)
    assert all(bool(p.isfinite().all()) for p in optimizer.array.parameters())


PAIRS = [(0.9, 0.99), (0.8, 0.999), (0.5, 0.9)]


@pytest.mark.parametrize(
    "betas",
    [
        PAIRS,
        ([0.9, 0.8, 0.5], [0.99, 0.999, 0.9]),
        [[0.9, 0.8, 0.5], [0.99, 0.999, 0.9]],
        (np.array([0.9, 0.8, 0.5]), torch.tensor([0.99, 0.999, 0.9], dtype=torch.float64)),
        torch.tensor(PAIRS, dtype=torch.float64),
        np.array(PAIRS).T,
    ],
    ids=["pairs", "tuple of lists", "list of lists", "tuple of arrays", "[M, 2]", "[2, M]"],
)
def test_betas_as_a_pair_of_sequences(betas: Any) -> None:
    assert _adam(betas=betas).rows(0, "betas") == PAIRS


def test_a_pair_of_one_number_and_one_sequence() -> None:
    assert _adam(betas=(0.9, [0.99, 0.999, 0.9])).rows(0, "betas") == [(0.9, 0.99), (0.9, 0.999), (0.9, 0.9)]


def test_with_two_members_a_list_of_two_pairs_is_one_per_member_and_a_tuple_of_two_lists_is_not() -> None:
    array = hfta.fuse([nn.Linear(4, 2) for _ in range(2)])
    assert hfta.optim.Adam(array, betas=[[0.9, 0.99], [0.8, 0.999]]).rows(0, "betas") == [(0.9, 0.99), (0.8, 0.999)]
    assert hfta.optim.Adam(array, betas=([0.9, 0.8], [0.99, 0.999])).rows(0, "betas") == [(0.9, 0.99), (0.8, 0.999)]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr": (0.1, 0.2, 0.3)}, "for one value per member give a list"),
        ({"eps": (1e-8, 1e-3, 1e-4)}, "for one value per member give a list"),
        ({"betas": (0.9, 0.99, 0.999)}, "give a list of tuples"),
        ({"betas": ([0.9, 0.8], [0.99, 0.999])}, "in place of each number a list of 3"),
        ({"lr": np.array([0.1, 0.2])}, "or a list of 3"),
    ],
    ids=str,
)
def test_a_refusal_says_that_a_list_is_per_member(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(OptimError, match=message):
        _adam(**settings)


# Lr schedulers.


def _sgd(lr: Any = 0.1) -> hfta.optim.SGD:
    return hfta.optim.SGD(hfta.fuse([nn.Linear(4, 2) for _ in range(MEMBERS)]), lr=lr)


@pytest.mark.parametrize("convert", [np.array, torch.tensor, pandas.Series], ids=["ndarray", "tensor", "Series"])
def test_settings_of_lr_schedulers_are_array_likes_too(convert: Any) -> None:
    scheduler = lr_scheduler.StepLR(_sgd(), step_size=convert([1, 2, 3]), gamma=convert([0.5, 0.5, 0.5]))
    for _ in range(3):
        scheduler.step()
    assert scheduler.get_last_lr() == [[0.1 * 0.5**3, 0.05, 0.05]]


def test_milestones_as_an_array_are_one_value() -> None:
    optimizer = _sgd()
    scheduler = lr_scheduler.MultiStepLR(optimizer, milestones=np.array([1, 2]), gamma=0.5)
    scheduler.step()
    scheduler.step()
    assert scheduler.get_last_lr() == [[0.025] * MEMBERS]


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("StepLR", {"step_size": (7, 8, 12)}, "for one value per member give a list"),
        ("StepLR", {"step_size": [[1], [2], [3]]}, "not one value"),
        ("ExponentialLR", {"gamma": "0.9"}, "not a finite number"),
        ("CosineAnnealingLR", {"T_max": np.array([1, 2])}, "or a list of 3"),
    ],
    ids=str,
)
def test_a_scheduler_refuses_what_its_step_could_not_use(name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(OptimError, match=message):
        getattr(lr_scheduler, name)(_sgd(), **settings)


@pytest.mark.parametrize(
    ("name", "settings"),
    [("StepLR", {"step_size": 5}), ("ExponentialLR", {"gamma": 0.9}), ("CosineAnnealingLR", {"T_max": 20})],
)
@pytest.mark.parametrize("given", [([7, 8, 12],), (np.array([7, 8, 12]),), (9,)], ids=["list", "ndarray", "one"])
def test_step_goes_to_an_epoch_as_torch_s_does(name: str, settings: dict[str, Any], given: tuple[Any]) -> None:
    optimizer = _sgd([0.1, 0.2, 0.3])
    scheduler = getattr(lr_scheduler, name)(optimizer, **settings)
    epochs = given[0] if not isinstance(given[0], int) else [given[0]] * MEMBERS
    with pytest.warns(UserWarning, match="epoch parameter") as told:
        scheduler.step(*given)
    assert len(told) == 1  # not once a member
    for i, (lr, epoch) in enumerate(zip([0.1, 0.2, 0.3], epochs, strict=True)):
        alone = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=lr)
        theirs = getattr(torch.optim.lr_scheduler, name)(alone, **settings)
        alone.step()
        with pytest.warns(UserWarning, match="epoch parameter"):
            theirs.step(int(epoch))
        assert optimizer.rows(0, "lr")[i] == theirs.get_last_lr()[0]


def test_warm_restarts_go_to_fractions_of_an_epoch() -> None:
    optimizer = _sgd()
    scheduler = lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=[2, 4, 8])
    scheduler.step(epoch=0.5)
    expected = [0.05 * (1 + np.cos(np.pi * 0.5 / t)) for t in (2, 4, 8)]
    assert optimizer.rows(0, "lr") == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize(
    ("given", "message"),
    [([7, 8], "not an epoch"), ("3", "not an epoch"), (-1, "not an epoch"), ((1, 2), "not an epoch")],
)
def test_what_is_no_epoch(given: Any, message: str) -> None:
    scheduler = lr_scheduler.StepLR(_sgd(), step_size=2)
    with pytest.raises(OptimError, match=message):
        scheduler.step(given)
    with pytest.raises(OptimError, match="takes no metrics"):
        scheduler.step([0.1, 0.2, 0.3], epoch=3)


def test_a_scheduler_of_schedulers_takes_no_epoch() -> None:
    optimizer = _sgd()
    chained = lr_scheduler.ChainedScheduler([lr_scheduler.ExponentialLR(optimizer, gamma=0.9)])
    with pytest.raises(OptimError, match="ChainedScheduler takes no epoch"):
        chained.step(3)
