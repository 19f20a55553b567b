"""Matrices in blocks on a square of processes, and Transformers of them: the numbers and the memory of one device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hfta_nb.errors import DistributedError
from hfta_nb.models.model_zoo.transformer_lm import TransformerLM
from hfta_nb.workers.distributed import TransformerMesh
from hfta_nb.workers.distributed.grid_products import side_of
from hfta_nb.workers.distributed.transformer_mesh import _checked
from tests.fleet import mesh_ranks
from tests.forked import context


def _ranks(place: Path, count: int, steps: int) -> list[dict[str, Any]]:
    """What each of so many processes found."""
    started = [
        context().Process(
            target=mesh_ranks.main, args=(rank, count, str(place / f"of {count}"), str(place / f"{rank}.pt"), steps)
        )
        for rank in range(count)
    ]
    for process in started:
        process.start()
    for process in started:
        process.join(300)
    assert [process.exitcode for process in started] == [0] * count
    return [torch.load(place / f"{rank}.pt") for rank in range(count)]


@pytest.mark.parametrize("steps", [2, pytest.param(10, marks=pytest.mark.long)])
def test_four_processes_come_to_what_one_device_comes_to(steps: int, tmp_path: Path) -> None:
    """Numbers to 1e-10 in float64, and a quarter of the memory, up to 10%."""
    losses, weights = mesh_ranks.alone(steps)
    ranks = _ranks(tmp_path, 4, steps)
    for rank in ranks:
        torch.testing.assert_close(rank["losses"], losses, rtol=0, atol=1e-10)
        torch.testing.assert_close(rank["weights"], weights, rtol=0, atol=1e-10)
        assert all(float(difference) < 1e-12 for difference in rank["products"].values())
    [whole] = _ranks(tmp_path, 1, steps)
    torch.testing.assert_close(whole["losses"], losses, rtol=0, atol=1e-10)
    for rank in ranks:
        torch.testing.assert_close(rank["held_out"], whole["held_out"], rtol=0, atol=1e-10)
        for name, size in rank["sizes"].items():
            assert size == pytest.approx(whole["sizes"][name] / 4, rel=0.1), name


@pytest.mark.long
def test_nine_processes_multiply_blocks(tmp_path: Path) -> None:
    for rank in _ranks(tmp_path, 9, 0):
        assert all(float(difference) < 1e-12 for difference in rank["products"].values())


@pytest.mark.parametrize(
    ("member", "message"),
    [
        (nn.Linear(4, 4), "another family"),
        (TransformerLM(8, 4, 8, 2, 8, 1, 0.1), "dropout"),
        (TransformerLM(9, 4, 8, 2, 8, 1, 0.0), "vocab_size"),
        (TransformerLM(8, 4, 9, 3, 8, 1, 0.0), "width"),
        (TransformerLM(8, 4, 8, 1, 8, 1, 0.0), "heads"),
        (TransformerLM(8, 4, 8, 2, 7, 1, 0.0), "hidden"),
    ],
)
def test_members_that_cannot_be_divided_are_refused(member: nn.Module, message: str) -> None:
    with pytest.raises(DistributedError, match=message):
        _checked(member, 0, 2)


def test_without_processes_there_is_no_mesh() -> None:
    with pytest.raises(DistributedError, match="init_process_group"):
        TransformerMesh([TransformerLM(8, 4, 8, 2, 8, 1, 0.0)])


def test_processes_that_make_no_square_are_refused() -> None:
    assert [side_of(count) for count in (1, 4, 9)] == [1, 2, 3]
    with pytest.raises(DistributedError, match="no square"):
        side_of(3)
