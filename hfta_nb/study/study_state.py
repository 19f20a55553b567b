"""The state of a study, on which the functions of this folder work: of its definition, its plan and its run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from hfta_nb.data import AnyData
from hfta_nb.errors import StudyError
from hfta_nb.errors.border import WHOLE, takes
from hfta_nb.models.recipes import Family
from hfta_nb.records.events import GroupRecord, Json
from hfta_nb.records.history import History
from hfta_nb.records.store import Store
from hfta_nb.search import PBT, Halving, Leader, Mirror, Rounds, Searcher
from hfta_nb.search.grid import Grid, Variant
from hfta_nb.train import Trainer
from hfta_nb.train.plan import Group
from hfta_nb.train.step import Precision
from hfta_nb.workers.pools import WorkerPool


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


@dataclass
class RunState:
    """What a study knows of its run.

    Attributes:
        mirror: of the trials, where the study is a search.
        history: of the events so far.
        read: the number of the last event that is in it.
        running: runs of this very object, which add their events to the history themselves.
        trainer: of the run that is on.
        on_trial: callbacks of the trials of a search.
        unkept: a checkpoint that could not be written: its state, and weights.
        extended: whether there are variants that the events do not have yet.
    """

    mirror: Mirror
    history: History = field(default_factory=History)
    read: int = 0
    running: int = 0
    trainer: Trainer | WorkerPool | None = None
    on_trial: list[Callable[..., Any]] = field(default_factory=list)
    unkept: Any = None
    extended: bool = False


class StudyState:
    """What a study is and how far it has come: what the files of this folder read and write.

    `Definition` sets the attributes, from the arguments of a study (see `StudyConfig`).
    """

    family: Family
    grid: Grid
    data: AnyData
    handed: Any
    folds: int | None
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
    precision: str
    serial: bool
    seed: int
    padding: float | str
    capacity: int | str | None
    checkpointing: str
    compile: str
    deterministic: bool
    strategy: str
    verify: str
    devices: int
    devices_batch_norm: str
    layout: str
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
    leader: Leader | None
    store: Store
    run_state: RunState

    def _take(self, one: Added, groups: Sequence[Group]) -> None:
        """Have these variants as well, planned as these arrays; a run that is under way trains them."""
        self.added.append(one)
        if self.run_state.trainer is None:
            self.plan_groups = [*self.plan_groups, *groups]
        else:
            self.run_state.trainer.add(groups)
            self.run_state.extended = True

    def _take_clone(self, one: Added) -> None:
        """Have a clone as well; the run that asks for it trains it where its source is."""
        self.added.append(one)
        self.run_state.extended = True

    def _extend(self, epochs: int) -> None:
        """Let all members train so many epochs, in the run that is under way."""
        self.epochs = epochs
        if self.searcher is not None:
            self.searcher.epochs = epochs
        self.run_state.extended = True

    @property
    def population(self) -> PBT | Halving | Leader | None:
        """The population method; None for none."""
        return self.leader if self.rounds is None else self.rounds.method

    @property
    def variants(self) -> list[Variant]:
        """All variants, in the order of the grid."""
        return sorted((v for g in self.plan_groups for v in g.variants), key=lambda v: v.id)

    @property
    def directory(self) -> Path:
        """The directory of the run."""
        return self.store.directory

    @property
    def data_name(self) -> str:
        return self.data.name

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of all curves: "train_loss", "val_loss", and likewise for phases and the family's metrics.

        In fp16 also "train_loss_scale", the factor of a member's loss after the epoch.
        """
        training, validation = self.family.scores_for(self.data)
        names = tuple(f"{s}_{n}" for n in validation for s in ("train", "val") if s == "val" or n in training)
        return (*names, "train_loss_scale") if Precision(self.precision).scales else names

    def groups(self) -> tuple[GroupRecord, ...]:
        """How the variants are grouped, as records."""
        return tuple(g.record() for g in self.plan_groups)

    @property
    def history(self) -> History:
        """The state of the run, with what another process has written of it; see `Study`."""
        raise NotImplementedError


@takes(StudyError, id=WHOLE)
def variant_of(study: StudyState, id: int) -> Variant:
    """The variant of this number.

    Raises:
        StudyError: there is none.
    """
    found = next((v for v in study.variants if v.id == id), None)
    if found is None:
        raise StudyError("no such variant", where=study.name, got=id, accepted=f"0 to {len(study.variants) - 1}")
    return found
