"""Where a study runs: in a worker process or a thread, and where its groups train."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hfta_nb.study.executors.start import KINDS
from hfta_nb.workers.pools import executor_of


@dataclass(frozen=True)
class Where:
    """Where a study runs, as `start` takes it.

    Attributes:
        kind: one of `start.KINDS`.
        arguments: of `Study.run`: executor, workers and address.
        detach: as for `start`.
    """

    kind: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    detach: bool = False

    @classmethod
    def of(cls, executor: str, workers: int | None = None, address: str | None = None, detach: bool = False) -> Where:
        """From one word: "worker", "inline", or "processes" or "ray", which have the run itself in a worker process.

        Args:
            executor: the word.
            workers, address: as for `Study.run`.
            detach: as for `start`.

        Raises:
            WorkerError: they can't be used, or don't go together.
        """
        if executor in KINDS:
            executor_of("inline", workers, address)
            return cls(executor, detach=detach)
        executor_of(executor, workers, address)
        return cls("worker", {"executor": executor, "workers": workers, "address": address}, detach)
