"""The state of a study, on which the functions of this folder work: of its definition, its plan and its run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
from hfta_nb.search import Mirror, Rounds, Searcher
from hfta_nb.search.grid import Grid, Variant
from hfta_nb.train import Trainer
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


class StudyState:
    """What a study is and how far it has come: what the files of this folder read and write.

    `Definition` sets the attributes, from the arguments of a study (see `StudyConfig`) and, from ``_history`` on, for a
    run that has not begun.
    """

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
    padding: float | str
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
    _history: History
    _read: int
    _running: int
    _trainer: Trainer | Crew | None
    _extended: bool
    _unkept: Any
    _on_trial: list[Callable[..., Any]]
    _mirror: Mirror

    def _take(self, one: Added, groups: Sequence[Group]) -> None:
        """Have these variants as well, planned as these arrays; a run that is under way trains them."""
        self.added.append(one)
        if self._trainer is None:
            self.plan_groups = [*self.plan_groups, *groups]
        else:
            self._trainer.add(groups)
            self._extended = True

    def _take_clone(self, one: Added) -> None:
        """Have a clone as well; the run that asks for it trains it where its source is."""
        self.added.append(one)
        self._extended = True

    def _extend(self, epochs: int) -> None:
        """Let all members train so many epochs, in the run that is under way."""
        self.epochs = epochs
        if self.searcher is not None:
            self.searcher.epochs = epochs
        self._extended = True

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
    def precision(self) -> str:
        """The precision in which members compute: "fp32", "tf32", "bf16" or "fp16"."""
        return self._precision.name

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of all curves: "train_loss", "val_loss", and likewise for phases and the family's metrics.

        In fp16 also "train_loss_scale", the factor of a member's loss after the epoch.
        """
        training, validation = self.family.scores_for(self.data)
        names = tuple(f"{s}_{n}" for n in validation for s in ("train", "val") if s == "val" or n in training)
        return (*names, "train_loss_scale") if self._precision.scales else names

    def groups(self) -> tuple[GroupRecord, ...]:
        """How the variants are grouped, as records."""
        return tuple(g.record() for g in self.plan_groups)

    @takes(StudyError, id=WHOLE)
    def _member(self, id: int) -> Variant:
        found = next((v for v in self.variants if v.id == id), None)
        if found is None:
            raise StudyError("no such variant", where=self.name, got=id, accepted=f"0 to {len(self.variants) - 1}")
        return found

    @property
    def history(self) -> History:
        """The state of the run, with what another process has written of it; see `Study`."""
        raise NotImplementedError
