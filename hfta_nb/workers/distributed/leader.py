"""The step of rank 0, which the training loop sees: it lets the other ranks do the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from hfta_nb.engine.array.access import untimed_block_size
from hfta_nb.train.step import ArrayStep, Scores, ScoreSink, Step
from hfta_nb.train.step.rollback import on_host
from hfta_nb.workers.distributed.batch_parts import Announced
from hfta_nb.workers.distributed.data_parallel import DataParallel
from hfta_nb.workers.distributed.followers import Followers
from hfta_nb.workers.distributed.mesh_leader import lead_mesh
from hfta_nb.workers.distributed.step_recipe import Recipe

Start: TypeAlias = Callable[[int, torch.device], Followers]
"""Starts the other ranks, given how many ranks there are and the device of rank 0."""


class Leader:
    """An array's step that all ranks make; see `Step`.

    What decides (which samples, who leaves, when the run ends) is rank 0 alone, and the others are told. What it keeps
    of an array is its own: weights, random streams, the state of the optimizers.

    Args:
        step: of rank 0, spread over the devices.
        others: the other ranks.

    Attributes:
        whole: False, as a step that fails on one rank is not undone on the others.
    """

    whole = False

    def __init__(self, step: ArrayStep, parallel: DataParallel, others: Followers) -> None:
        self.step, self.parallel, self.others = step, parallel, others

    def __len__(self) -> int:
        return len(self.step)

    def measuring(self, member: int, function: Any) -> AbstractContextManager[None]:
        return self.step.measuring(member, function)

    def train(self, x: Any, y: Any, keep: ScoreSink | None = None) -> Scores:
        with self.others.watched():
            return self.step.train(self._sent("train", x, y), y, keep)

    def evaluate(self, x: Any, y: Any) -> Scores:
        with self.others.watched():
            return self.step.evaluate(self._sent("evaluate", x, y), y)

    def _sent(self, command: str, x: Any, y: Any) -> Any:
        batch = Announced.of(x, y)
        self.others.send(command, batch)
        self.parallel.samples = batch.samples
        return batch.sent(self.others.ranks, x, y)

    def end_epoch(self) -> None:
        with self.others.watched():
            self.others.send("end_epoch")
            self.step.end_epoch()
            self.parallel.check()

    def end_validation(self, values: Sequence[float]) -> None:
        self.others.send("end_validation", list(values))
        self.step.end_validation(values)

    def step_lr_schedulers(self) -> None:
        self.others.send("step_lr_schedulers")
        self.step.step_lr_schedulers()

    def select(self, indices: Sequence[int]) -> Leader:
        self.others.send("select", list(indices))
        step = self.step.select(indices)
        assert isinstance(step.devices, DataParallel)  # as this one's
        return Leader(step, step.devices, self.others)

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.others.send("load_state", on_host(state))
        self.step.load_state(state)

    def scales(self) -> Tensor | None:
        return self.step.scales()

    def weights(self) -> dict[str, Tensor]:
        return self.step.weights()

    def unpad(self, index: int) -> Callable[[Mapping[str, Tensor]], dict[str, Tensor]]:
        return self.step.unpad(index)

    def state(self) -> dict[str, Any]:
        return self.step.state()


def lead(others: Followers, batch_norm: str, step: Step) -> Step:
    """Let all ranks make an array's step. A plain module's stays on rank 0.

    Raises:
        DistributedError: another rank can't build the array.
    """
    if not isinstance(step, ArrayStep):
        return step
    with others.watched():
        others.send("build", Recipe.of(step, batch_norm))
        step.array.block_size = untimed_block_size(step.array)
        parallel = DataParallel(step.array, batch_norm=batch_norm, group=others.ranks)
        step.spread(parallel)
    return Leader(step, parallel, others)


@contextmanager
def spread(
    devices: int, device: torch.device, batch_norm: str, start: Start = Followers, layout: str = "samples"
) -> Iterator[Callable[[Step], Step] | None]:
    """Within, the processes of the other devices are there.

    Args:
        devices: how many train each array together.
        device: the first of them.
        batch_norm: see `DataParallel`.
        layout: what each of them has a part of, "samples" or, as a "mesh", every matrix.
        start: starts these processes.

    Returns:
        What lets them all make the step of an array; None where there is one device.

    Raises:
        DistributedError: a process does not start.
    """
    if devices == 1:
        yield None
        return
    others = start(devices, device)
    try:
        yield partial(lead_mesh, others) if layout == "mesh" else partial(lead, others, batch_norm)
    finally:
        others.close()
