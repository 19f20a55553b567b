"""The arrays of a study's plan, opened on its device, or on several together, to be measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

from hfta_nb.records import events as ev
from hfta_nb.records.events import Control
from hfta_nb.train.capacity import TUNING_S, peak_of, sample
from hfta_nb.train.group_run import GroupRun
from hfta_nb.train.plan import Group
from hfta_nb.train.settings import Settings
from hfta_nb.train.speed import probe_of
from hfta_nb.train.step import ArrayStep
from hfta_nb.train.trainer import Trainer
from hfta_nb.workers.distributed.leader import spread

WARM_UP = 5
"""Steps before the first that counts."""


class Arrays:
    """Opens groups on devices, for `profile`; what they learn is thrown away.

    Args:
        settings: of the run that is planned.
        groups: by name.
        batch_norm: whose statistics batch norms take on several devices; see `hfta_nb.distributed.DataParallel`.
    """

    def __init__(self, settings: Settings, groups: Mapping[str, Group], batch_norm: str = "sync") -> None:
        self._groups, self._batch_norm = groups, batch_norm
        self._trainer = Trainer(settings, list(groups.values()), Control())

    @contextmanager
    def __call__(self, name: str, members: int, devices: int) -> Iterator[Opened]:
        """A group's first members as an array.

        Raises:
            MemoryError: the array does not fit the device.
            DistributedError: the processes of the other devices don't start.
        """
        group = self._groups[name]
        memory = peak_of(self._trainer, group, members)
        if memory is None:
            raise MemoryError(f"{name}: {members} members do not fit")
        run = GroupRun(self._trainer, group.part(group.ids[:members], group.index, group.reason), None)
        with spread(devices, self._trainer.settings.device, self._batch_norm) as self._trainer.prepare:
            try:
                run.open()
                yield Opened(run, memory)
            finally:
                self._trainer.prepare = None
                run.source.close()


class Opened:
    """An array on a device, and a batch."""

    def __init__(self, run: GroupRun, memory: int) -> None:
        self._run, self._memory, self._batch = run, memory, sample(run)
        if isinstance(run.step, ArrayStep) and len(run.step) > 1:
            run.step.tune(*self._batch.inputs, TUNING_S)

    def train(self) -> int:
        self._run.step.train(*self._batch.inputs)
        if self._run.settings.device.type == "cuda":
            torch.cuda.synchronize(self._run.settings.device)
        return self._batch.size

    def speed(self) -> ev.SpeedMeasured | None:
        """Its steps beside those of plain modules; None where that can't be measured."""
        run = self._run
        probe = probe_of(run.step, run.group, [m.slot for m in run.members.active], run.rows, run.settings)
        for _ in range(WARM_UP if probe is not None else 0):  # its steps are recorded first, as in a run
            self.train()
        while probe is not None:
            begin = probe.start()
            self.train()
            probe.stop(begin)
            if probe.alone(*self._batch.first):
                return probe.event()
        return None

    def memory_bytes(self) -> int:
        return self._memory
