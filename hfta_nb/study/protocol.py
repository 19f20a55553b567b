"""Protocols of a study for the files of this folder, which therefore need not import it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from hfta_nb.data import AnyData
from hfta_nb.models.recipes import Family
from hfta_nb.records.events import Control, Event, Json
from hfta_nb.records.history import History
from hfta_nb.records.store import Store
from hfta_nb.search import Mirror, Rounds, Searcher
from hfta_nb.search.grid import Grid, Variant
from hfta_nb.train import Settings, Trainer
from hfta_nb.train.plan import Group
from hfta_nb.train.step import Precision
from hfta_nb.workers.crews import Crew


@dataclass(frozen=True)
class Added:
    """Configurations that were added after the first run had begun; they are planned separately.

    Attributes:
        key: of the request that they came with, which counts once; empty where there was none.
        parent: of a clone, its source.
        warm: whether the clone begins with its source's state.
    """

    variants: tuple[dict[str, Json], ...]
    key: str = ""
    parent: int | None = None
    warm: bool = False


class Definition(Protocol):
    """What is asked of a study, and the plan that follows from it; see `hfta_nb.study.definition.Definition`."""

    family: Family
    grid: Grid
    data: AnyData
    handed: Any
    fixed: dict[str, Any]
    epochs: int
    patience: int | None
    min_delta: float
    validate_every: int
    steps_per_epoch: int | None
    validation_batch_size: int | None
    member_steps: int | None
    member_seconds: float | None
    keep_checkpoints: tuple[str, ...]
    dtype: torch.dtype
    device: torch.device
    serial: bool
    seed: int
    across: float | str
    capacity: int | str | None
    checkpointing: str
    compile: str
    deterministic: bool
    strategy: str
    verify: str
    devices: int
    devices_batch_norm: str
    share_stream: bool
    drop_last: bool
    monitor: str
    maximize: bool
    objectives: tuple[tuple[str, bool], ...]
    seeds_by: str
    name: str
    plan_groups: list[Group]
    added: list[Added]
    searcher: Searcher | None
    rounds: Rounds | None
    store: Store
    _precision: Precision

    @property
    def precision(self) -> str:
        """In what the members compute."""

    def settings(self) -> Settings:
        """What the training loop needs to know."""


class Study(Definition, Protocol):
    """A study with its run; see `hfta_nb.study.study.Study`."""

    _history: History
    _read: int
    _running: int
    _trainer: Trainer | Crew | None
    _extended: bool
    _unkept: Any
    _on_trial: list[Callable[..., Any]]
    _mirror: Mirror

    @property
    def variants(self) -> list[Variant]:
        """All variants, in the order of the grid."""

    @property
    def data_name(self) -> str:
        """Of the data set."""

    @property
    def directory(self) -> Path:
        """Where the run is kept."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of all curves."""

    @property
    def options(self) -> dict[str, Any]:
        """Everything that was asked for but family, grid and data."""

    @property
    def history(self) -> History:
        """The state of the run."""

    def run(
        self,
        control: Control | None = None,
        resume: bool = False,
        *,
        epochs: int | None = None,
        executor: Any = "inline",
        workers: int | None = None,
        address: str | None = None,
    ) -> Iterator[Event]:
        """Train; iterate to do the work."""

    def best(self) -> Result:
        """The best member's result."""

    def check_events(self, members: Sequence[int] | None = None, epochs: int | None = None) -> Iterator[Event]:
        """Compare members with training alone."""

    def _member(self, id: int) -> Variant:
        """The variant of a number."""


class Result(Protocol):
    """What came of one variant; see `hfta_nb.study.result.Result`."""

    @property
    def study(self) -> Study:
        """It is part of."""

    @property
    def variant(self) -> Variant:
        """Its number, configuration and seed."""
