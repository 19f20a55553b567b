"""The other devices of a study's run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from hfta_nb.distributed.crew import Crew
from hfta_nb.distributed.leader import lead
from hfta_nb.step import Step
from hfta_nb.study.protocol import Definition


@contextmanager
def spread(study: Definition) -> Iterator[Callable[[Step], Step] | None]:
    """Within, the processes of the other devices are there.

    Returns:
        What lets them all make the step of an array; None where there is one device.

    Raises:
        DistributedError: a process does not start.
    """
    if study.devices == 1 or study.serial:
        yield None
        return
    crew = Crew(study.devices, study.device)
    try:
        yield partial(lead, crew, study.devices_batch_norm)
    finally:
        crew.close()
