"""Two ranks train an array as one process does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import hfta_nb as hfta
from hfta_nb.engine.array import FusedArray
from hfta_nb.errors import DistributedError
from hfta_nb.workers.distributed.rank_rows import bounds, sizes_of
from tests.fleet import rank_cases
from tests.fleet.rank_cases import EQUAL, Normed, batches, fused
from tests.fleet.rank_main import main
from tests.forked import context

Ranks = list[dict[str, dict[str, Tensor]]]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    """What each of two ranks found, of all cases."""
    place = tmp_path_factory.mktemp("ranks")
    files = [str(place / f"{rank}.pt") for rank in range(2)]
    started = [context().Process(target=main, args=(rank, str(place / "store"), files[rank])) for rank in range(2)]
    for process in started:
        process.start()
    for process in started:
        process.join(120)
    assert [process.exitcode for process in started] == [0, 0]
    return [torch.load(place / f"{rank}.pt") for rank in range(2)]


class Alone:
    """An array on one device, in the place of `DataParallel`."""

    def __init__(self, array: FusedArray, batch_norm: str = "sync") -> None:
        self.backward, self.evaluate = array.backward, array.evaluate


@pytest.mark.parametrize("case", EQUAL, ids=lambda case: case.__name__)
def test_two_ranks_come_to_what_one_device_comes_to(ranks: Ranks, case: Callable[[Any], Any]) -> None:
    alone = case(Alone)
    for found in (rank[case.__name__] for rank in ranks):
        assert found.keys() == alone.keys()
        for name, value in alone.items():
            torch.testing.assert_close(found[name], value, rtol=1e-12, atol=1e-12, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("case", [*EQUAL, rank_cases.dropout], ids=lambda case: case.__name__)
def test_ranks_stay_alike_bit_for_bit(ranks: Ranks, case: Callable[[Any], Any]) -> None:
    """What is trained; each computes the losses itself, by the kernels that were faster there."""
    first, second = (rank[case.__name__] for rank in ranks)
    apart = {name for name, value in first.items() if not torch.equal(value, second[name])}
    assert apart <= {"losses"}
    for name in apart:
        torch.testing.assert_close(first[name], second[name], rtol=1e-12, atol=1e-12)


def test_steps_of_several_ranks_are_replayed(ranks: Ranks) -> None:
    assert all(bool(rank["sgd"]["replayed"]) for rank in ranks)


def test_each_rank_draws_its_own_dropout(ranks: Ranks) -> None:
    masks = ranks[0]["dropout"]["masks"]
    assert masks.shape == (3, 64, 8)
    assert not torch.equal(masks[:, :32], masks[:, 32:])
    assert 0.4 < float((masks == 0).double().mean()) < 0.6


def test_what_has_no_row_per_sample_is_refused(ranks: Ranks) -> None:
    assert [int(rank["refused"]["refused"]) for rank in ranks] == [3, 3]


def test_local_batch_norm_takes_each_ranks_statistics(ranks: Ranks) -> None:
    """The first gradient step, made by plain modules on the halves of the mini-batch."""
    losses = ranks[0]["local_batch_norm"]["losses"]
    x, y = next(batches(4))
    array = fused(lambda: Normed(False))
    for member, module in enumerate(array):
        outputs = torch.cat([module.train()(part) for part in (x[:5], x[5:])])
        torch.testing.assert_close(losses[0, member], F.cross_entropy(outputs, y), rtol=1e-12, atol=1e-12)
    alone = rank_cases.local_batch_norm(Alone)
    assert not torch.allclose(losses[0], alone["losses"][0], rtol=1e-6)
    evaluated = [rank["local_batch_norm"]["losses"] for rank in ranks]
    torch.testing.assert_close(*evaluated, rtol=1e-12, atol=1e-12)  # by the running statistics of rank 0


@pytest.mark.parametrize(
    ("samples", "count", "shares"), [(10, 2, [5, 5]), (7, 3, [3, 2, 2]), (2, 3, [1, 1, 0]), (1, 2, [1, 0])]
)
def test_every_sample_is_one_ranks(samples: int, count: int, shares: list[int]) -> None:
    assert sizes_of(samples, count) == shares
    rows = [row for rank, size in enumerate(shares) if size for row in range(*bounds(rank, shares))]
    assert rows == list(range(samples))


def test_wrong_choices_are_refused_before_anything_is_exchanged() -> None:
    array = hfta.fuse([torch.nn.Linear(2, 2)])
    with pytest.raises(DistributedError, match="batch_norm"):
        hfta.distributed.DataParallel(array, batch_norm="global")
    with pytest.raises(DistributedError, match="init_process_group"):
        hfta.distributed.DataParallel(array)
