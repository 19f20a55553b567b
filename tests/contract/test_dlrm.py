"""DLRM as its authors train it: their published losses, bags of categories, and row-wise Adagrad of its tables."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import hfta_nb as hfta
from hfta_nb.engine.array.access import sparse_gradients
from hfta_nb.errors import OptimError
from hfta_nb.models.model_zoo.dlrm import DLRM
from tests.contract.serial import largest

ROWS, WIDTH, TRACE = (4, 3, 2), 2, (0.451893, 0.402002, 0.275460)
LRS = [0.1, 0.02, 0.5]


def _of_trace() -> tuple[list[tuple[tuple[Tensor, Tensor], Tensor]], list[np.ndarray[Any, Any]]]:
    """Mini-batches and initial parameters of the debug run that the authors have published, from its seed."""
    draw, batches, inputs = np.random.RandomState(123), [], []
    for _ in range(3):
        dense = draw.rand(2, 4)
        categories = -np.ones((2, 3, 3), dtype=np.int64)
        for table, rows in enumerate(ROWS):
            for sample in range(2):
                count = int(np.round(max(1.0, draw.random_sample() * rows)))
                some = np.unique(np.round(draw.random_sample(count) * (rows - 1)).astype(int))
                categories[sample, table, : len(some)] = some
        inputs.append((dense, categories))
    for dense, categories in inputs:
        y = torch.tensor(draw.rand(2), dtype=torch.float32)
        batches.append(((torch.tensor(dense, dtype=torch.float32), torch.tensor(categories)), y))
    tables = np.concatenate([draw.uniform(-math.sqrt(1 / n), math.sqrt(1 / n), (n, WIDTH)) for n in ROWS])
    layers = [(draw.rand(b, a), draw.rand(b)) for a, b in ((4, 3), (3, 2), (8, 4), (4, 2), (2, 1))]
    bottom, top = [v for layer in layers[:2] for v in layer], [v for layer in layers[2:] for v in layer]
    return batches, [*bottom, *top, tables]


def _mean_square(logit: Tensor, y: Tensor) -> Tensor:
    return F.mse_loss(logit.sigmoid(), y)


@pytest.mark.parametrize("members", [1, 3])
def test_the_losses_that_the_authors_have_published(members: int) -> None:
    batches, values = _of_trace()
    models = [DLRM(4, ROWS, WIDTH, [3], [4, 2], sparse=False) for _ in range(members)]
    for model in models:
        for p, value in zip(model.parameters(), values, strict=True):
            p.data = torch.tensor(value, dtype=torch.float32)
    array = hfta.fuse(models)
    optimizer = hfta.optim.SGD(array, lr=0.01)
    for (x, y), loss in zip(batches, TRACE, strict=True):
        losses = array.backward(_mean_square, x, y)
        torch.testing.assert_close(losses, torch.full((members,), loss), rtol=0, atol=1e-6)
        optimizer.step()
        optimizer.zero_grad()


class Bagged(nn.Module):
    """Bags of one kind, looked up in a table of seven rows."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.table = kind, nn.Parameter(torch.randn(7, 4, dtype=torch.float64))

    def forward(self, index: Tensor) -> Tensor:
        flat, offsets = index.flatten(), torch.tensor([0, 2, 2, 3])
        weights = torch.arange(6.0, dtype=torch.float64).view(3, 2)
        made = {
            "sum": lambda: F.embedding_bag(index, self.table, mode="sum"),
            "mean": lambda: F.embedding_bag(index, self.table),
            "offsets": lambda: F.embedding_bag(flat, self.table, offsets, mode="mean"),
            "weights": lambda: F.embedding_bag(index, self.table, mode="sum", per_sample_weights=weights),
            "max": lambda: F.embedding_bag(index, self.table, mode="max"),
            "padding": lambda: F.embedding_bag(index, self.table, mode="sum", padding_idx=2),
        }
        return made[self.kind]().sin().sum()


def _itself(output: Tensor, _: None = None) -> Tensor:
    return output


@pytest.mark.parametrize("own", [False, True], ids=["shared indices", "own indices"])
@pytest.mark.parametrize("kind", ["sum", "mean", "offsets", "weights", "max", "padding"])
def test_bags(kind: str, own: bool) -> None:
    modules, index = [Bagged(kind) for _ in range(3)], torch.tensor([[0, 6], [2, 2], [5, 2]])
    each = torch.stack([(index + i) % 7 if own else index for i in range(3)])
    array = hfta.fuse(modules)
    for _ in range(4):  # from the fourth on, replayed
        array.zero_grad()
        losses = array.backward(_itself, hfta.per_member(each) if own else index)
    for i, module in enumerate(modules):
        alone = module(each[i])
        alone.backward()
        torch.testing.assert_close(losses[i], alone.detach(), rtol=0, atol=1e-12)
        torch.testing.assert_close(array.table.grad[i], module.table.grad, rtol=0, atol=1e-12)
    one_call = "the bags of all members in one call, in the tables where they are"
    assert (one_call in set(array.explain()["how"])) == (kind not in ("max", "padding"))


def test_a_bag_beyond_its_table_is_an_error() -> None:
    array = hfta.fuse([nn.EmbeddingBag(5, 2) for _ in range(2)])
    for index, offsets in (([5], [0]), ([-1], [0]), ([1], [2]), ([1, 1], [1])):
        with pytest.raises((IndexError, ValueError, RuntimeError)):
            array(torch.tensor(index), torch.tensor(offsets))


def _reference(table: np.ndarray[Any, Any], grads: list[np.ndarray[Any, Any]], lr: float, eps: float) -> Any:
    """Row-wise Adagrad, one row after another."""
    table, sums = table.copy(), np.zeros(len(table))
    for grad in grads:
        for row in range(len(table)):
            sums[row] += np.mean(grad[row] ** 2)
            table[row] -= lr * grad[row] / (np.sqrt(sums[row]) + eps)
    return table, sums


@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("layer", ["Embedding", "EmbeddingBag"])
def test_rowwise_adagrad_is_the_reference(layer: str, sparse: bool) -> None:
    torch.manual_seed(0)
    more = {"mode": "sum"} if layer == "EmbeddingBag" else {}
    make = lambda: getattr(nn, layer)(40, 4, sparse=sparse, dtype=torch.float64, **more)  # noqa: E731
    array = hfta.fuse(modules := [make() for _ in LRS])
    optimizer = hfta.optim.RowwiseAdagrad(array, lr=LRS, eps=[1e-10, 1e-3, 1e-6])
    grads: list[Tensor] = []
    for _ in range(6):
        index = torch.randint(0, 40, (5, 3))
        index[:, 1] = index[:, 0]  # twice in a bag
        array.backward(lambda output, _=None: output.sin().sum(), index)
        assert array.weight.grad.is_sparse == sparse
        grads.append(array.weight.grad.to_dense().clone())
        optimizer.step()
        optimizer.zero_grad()
    sums = optimizer.state[array.weight]["row_sum"]
    assert sums.shape == (3, 40)
    for i, (module, eps) in enumerate(zip(modules, (1e-10, 1e-3, 1e-6), strict=True)):
        table, own = _reference(module.weight.detach().numpy(), [g[i].numpy() for g in grads], LRS[i], eps)
        np.testing.assert_allclose(array.weight[i].detach().numpy(), table, rtol=0, atol=1e-12)
        np.testing.assert_allclose(sums[i].numpy(), own, rtol=0, atol=1e-12)


class Sizes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The largest result of any call that is no view of an argument."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {_memory(v) for v in tree_leaves((args, kwargs)) if isinstance(v, Tensor)}
        found = func(*args, **(kwargs or {}))
        made = [v for v in tree_leaves(found) if isinstance(v, Tensor) and _memory(v) not in given]
        self.largest = max([self.largest, *(v._values().numel() if v.is_sparse else v.numel() for v in made)])
        return found


def _memory(tensor: Tensor) -> int:
    return (tensor._values() if tensor.is_sparse else tensor).untyped_storage().data_ptr()


def _square(output: Tensor, _: None = None) -> Tensor:
    return output.square().sum()


@pytest.mark.parametrize("called", [False, True], ids=["backward", "call"])
def test_rows_that_nobody_looks_up_cost_nothing(called: bool) -> None:
    """No call of a step makes a tensor of the size of the tables."""
    array = hfta.fuse([nn.EmbeddingBag(5_000, 4, mode="sum", sparse=True) for _ in LRS])
    optimizer, index = hfta.optim.RowwiseAdagrad(array, lr=LRS), torch.randint(0, 5_000, (8, 3))
    for _ in range(6):  # the first calls are compared with the plain module
        with Sizes() as sizes:
            if called:
                array(index).square().sum().backward()
            else:
                array.backward(_square, index)
            assert array.weight.grad.is_sparse
            optimizer.step()
            optimizer.zero_grad()
    assert 0 < sizes.largest <= 8 * 3 * 4 * 3


def test_sparse_gradients_add_up_and_members_are_skipped() -> None:
    array = hfta.fuse(modules := [nn.Embedding(9, 2, sparse=True, padding_idx=1) for _ in LRS])
    optimizer = hfta.optim.RowwiseAdagrad(array, lr=LRS)
    index = torch.tensor([0, 1, 3, 3])
    for _ in range(2):
        array.backward(lambda output, _=None: output.sin().sum(), index)
    for module in modules:
        for _ in range(2):
            module(index).sin().sum().backward()
    for i, module in enumerate(modules):
        assert module.weight.grad is not None
        torch.testing.assert_close(array.weight.grad.to_dense()[i], module.weight.grad.to_dense())
    optimizer.step(skip=[1])
    alone = [hfta.optim.RowwiseAdagrad.torch_class(m.parameters(), lr=lr) for m, lr in zip(modules, LRS, strict=True)]
    alone[0].step()
    alone[2].step()
    assert largest(array, modules) <= 1e-6
    with pytest.raises(OptimError, match="sparse gradient"):
        hfta.optim.clip_grad_norm_(array, 1.0)


def test_other_optimizers_have_dense_gradients() -> None:
    array = hfta.fuse([nn.Embedding(9, 2, sparse=True) for _ in LRS])
    optimizer = hfta.optim.Adam(array, lr=0.1)
    array.backward(lambda output, _=None: output.sum(), torch.tensor([0, 3]))
    assert not array.weight.grad.is_sparse
    assert not sparse_gradients(array)
    optimizer.step()


def test_a_number_has_no_rows() -> None:
    class Factor(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor = nn.Parameter(torch.ones(()))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.factor

    with pytest.raises(OptimError, match="not rows of real numbers"):
        hfta.optim.RowwiseAdagrad(hfta.fuse([Factor(), Factor()]))
