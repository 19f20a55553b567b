"""Embeddings look up rows in the tables where they are: whatever their memory, and without copying a table."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hfta_nb as hfta
from hfta_nb.engine.rules import embedding
from tests.contract.serial import largest

ROWS, WIDTH, MEMBERS = 7, 6, 3

TABLES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "as it is": lambda index, table: F.embedding(index, table),
    "columns as rows": lambda index, table: F.embedding(index % WIDTH, table.t()),
    "every second row": lambda index, table: F.embedding(index // 2, table[::2]),
    "part of each row": lambda index, table: F.embedding(index, table[:, 1:4], padding_idx=2),
    "a row for all": lambda index, table: F.embedding(index, table[:1].expand(ROWS, -1), padding_idx=-1),
    "computed": lambda index, table: F.embedding(index, table.exp(), scale_grad_by_freq=True),
    "numbers in 32 bits": lambda index, table: F.embedding(index.int(), table),
    "one row": lambda index, table: F.embedding(index * 0, table[3:4]),
}


class Looked(nn.Module):
    def __init__(self, look: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.look, self.before = look, nn.Parameter(torch.randn(3, dtype=torch.float64))
        self.table = nn.Parameter(torch.randn(ROWS, WIDTH, dtype=torch.float64))

    def forward(self, index: Tensor) -> Tensor:
        found = self.look(index, self.table)
        return (found.sin() * torch.arange(found.shape[-1])).sum() + self.before.sum()


@pytest.fixture(params=[1 << 20, 0], ids=["small tables", "large tables"])
def large(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """From how many bytes on tables are large."""
    monkeypatch.setattr(embedding, "_LARGE", request.param)


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("own", [False, True], ids=["shared indices", "own indices"])
@pytest.mark.parametrize("kind", TABLES)
def test_tables_in_any_memory(kind: str, own: bool) -> None:
    modules = [Looked(TABLES[kind]) for _ in range(MEMBERS)]
    array, index = hfta.fuse(modules), torch.tensor([[0, 6, 3], [3, 2, 5]])
    each = torch.stack([(index + i) % ROWS if own else index for i in range(MEMBERS)])
    for _ in range(4):  # from the fourth on, replayed
        for p in array.parameters():
            p.grad = None
        losses = array.backward(lambda output, _=None: output, hfta.per_member(each) if own else index)
    for i, module in enumerate(modules):
        alone = module(each[i])
        alone.backward()
        torch.testing.assert_close(losses[i], alone.detach())
        torch.testing.assert_close(array.table.grad[i], module.table.grad, rtol=0, atol=1e-12)
    assert largest(array, modules) == 0
    assert "in the tables of all members, without a copy" in set(array.explain()["how"])


@pytest.mark.usefixtures("large")
def test_gradients_of_gradients() -> None:
    modules = [Looked(TABLES["as it is"]) for _ in range(MEMBERS)]
    array, index = hfta.fuse(modules), torch.tensor([0, 6, 3, 3])

    def penalty(table: Tensor, out: Tensor) -> Tensor:
        (grad,) = torch.autograd.grad(out.sum(), table, create_graph=True)
        return grad.pow(3).sum()

    penalty(array.table, array(index)).backward()  # type: ignore[no-untyped-call]
    for i, module in enumerate(modules):
        penalty(module.table, module(index)).backward()  # type: ignore[no-untyped-call]
        torch.testing.assert_close(array.table.grad[i], module.table.grad, rtol=0, atol=1e-12)


def test_no_table_is_copied() -> None:
    """No call of a replayed step but the gradient's makes a result of the size of the tables."""
    modules = [nn.Sequential(nn.Embedding(500, 8), nn.Flatten(), nn.Linear(16, 2)) for _ in range(MEMBERS)]
    array, index = hfta.fuse(modules), torch.tensor([[0, 499], [7, 7]])
    for _ in range(4):
        array.backward(lambda output, _=None: output.sum(), index)
    [step] = array._calls.steps
    assert step.program is not None
    assert step.program.source is not None
    large = {call.function for call in step.program.source.calls for r in call.results if _count(r) >= 500 * 8}
    assert large == {torch.ops.aten.embedding_dense_backward.default}


@pytest.mark.parametrize("padding", [None, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_of_large_tables_are_added_where_they_are_kept(dtype: torch.dtype, padding: int | None) -> None:
    """No memory of the size of the tables is made or copied, and each sum has the bits of the plain module's."""
    torch.manual_seed(0)
    modules = [Looked(lambda index, table: F.embedding(index, table, padding)).to(dtype) for _ in range(MEMBERS)]
    for module in modules:
        module.table = nn.Parameter(torch.randn(9_000, 16, dtype=dtype))
    array, index = hfta.fuse(modules), torch.randint(0, 40, (100,))
    for _ in range(4):
        for p in array.parameters():
            p.grad = None
        array.backward(lambda output, _=None: output, index)
    [step] = array._calls.steps
    assert step.program is not None
    assert [buffer.shape for buffer, _ in step.program.gradients if buffer.numel() >= 9_000 * 16] == []
    assert max((slot.numel() for slot in step.program.slots), default=0) < 9_000 * 16
    for i, module in enumerate(modules):
        module(index).backward()
        assert torch.equal(array.table.grad[i], module.table.grad)


def _count(place: Any) -> int:
    return 0 if place is None else math.prod(place.size)
