"""What is asked of a study, checked, and the plan that follows from it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from hfta_nb import data as datasets
from hfta_nb.errors import StudyError
from hfta_nb.events import GroupRecord
from hfta_nb.grid import Grid, Variant
from hfta_nb.history import History
from hfta_nb.losses import Loss
from hfta_nb.model_zoo import check_data
from hfta_nb.recipes import Family
from hfta_nb.store import Store
from hfta_nb.study import adding, arguments, planning, saving
from hfta_nb.train import Settings, Trainer

if TYPE_CHECKING:
    import pandas


class Definition:
    """What is asked of a study; see `Study` for the arguments."""

    def __init__(
        self,
        family: str | Family | Callable[..., nn.Module],
        grid: Mapping[str, Any] | Grid | Sequence[Any] | None = None,
        data: Any = None,
        *,
        epochs: int = 20,
        batch_size: int | None = None,
        patience: int | None = None,
        monitor: str | None = None,
        device: str | None = None,
        dtype: str | torch.dtype = "float32",
        precision: str = "fp32",
        directory: str | Path | None = None,
        serial: bool = False,
        across: float | str = "auto",
        capacity: int | str | None = None,
        checkpointing: str = "auto",
        compile: str = "auto",
        strategy: str | None = None,
        deterministic: bool = False,
        verify: str = "first",
        seed: int = 0,
        name: str | None = None,
        validate_every: int = 1,
        steps_per_epoch: int | None = None,
        loss: Loss | None = None,
        metrics: Any = None,
        param_groups: Callable[..., Any] | None = None,
        **fixed: Any,
    ) -> None:
        self.family = arguments.family_of(family, loss, metrics, param_groups)
        self.grid = Grid(grid)
        self.data = datasets.resolve(self.family.data[0] if data is None else data)
        check_data(self.family, self.data)
        self.epochs = arguments.positive("epochs", epochs)
        self.patience = None if patience is None else arguments.positive("patience", patience)
        self.validate_every = arguments.positive("validate_every", validate_every)
        self.steps_per_epoch = arguments.steps_of(steps_per_epoch, self.data)
        if batch_size is not None and "batch_size" not in self.grid.axes:
            fixed["batch_size"] = batch_size
        self.fixed = fixed
        self.dtype, self.device = arguments.dtype_of(dtype), arguments.device_of(device)
        self._precision = arguments.precision_of(precision, self.device, self.dtype)
        self.serial, self.seed = arguments.flag("serial", serial), arguments.seed_of(seed)
        self.across = arguments.across_of(across, self.device)
        self.capacity, self.checkpointing = arguments.capacity_of(capacity), arguments.checkpointing_of(checkpointing)
        self.compile, self.deterministic = arguments.compile_of(compile), deterministic
        self.strategy = arguments.strategy_of(strategy, deterministic, self.capacity, self.compile)
        self.verify = arguments.verify_of(verify)
        self.monitor, self.maximize = arguments.monitor_of(self.family, self.data, monitor)
        self.name = name or f"{self.family.name} on {self.data.name}"
        self.plan_groups = adding.planned(self, self.grid)
        self.added: list[adding.Added] = []
        stamp = time.strftime("%Y%m%d-%H%M%S")
        place = directory or Path("hfta_runs") / f"{self.family.name}-{stamp}-{uuid.uuid4().hex[:6]}"
        self.store = Store(Path(place).absolute())
        self._history = History()
        self._read = 0  # bytes of events.jsonl already in it
        self._running = 0  # runs of this very object, which fold their events in themselves
        self._trainer: Trainer | None = None  # of the run that is on
        self._extended = False  # variants were added that its events have not told of

    @property
    def variants(self) -> list[Variant]:
        """All variants, in the order of the grid."""
        return sorted((v for g in self.plan_groups for v in g.variants), key=lambda v: v.id)

    @property
    def precision(self) -> str:
        """In what the members compute: "fp32", "tf32", "bf16" or "fp16"."""
        return self._precision.name

    @property
    def data_name(self) -> str:
        return self.data.name

    @property
    def directory(self) -> Path:
        """Where the run is kept."""
        return self.store.directory

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of all curves: "train_loss", "val_loss", and likewise for phases and the family's metrics.

        In fp16 "train_loss_scale" as well: what a member's loss is multiplied by after the epoch.
        """
        training, validation = self.family.scores_for(self.data)
        names = tuple(f"{s}_{n}" for n in validation for s in ("train", "val") if s == "val" or n in training)
        return (*names, "train_loss_scale") if self._precision.scales else names

    def groups(self) -> tuple[GroupRecord, ...]:
        """How the variants are grouped, as records."""
        return tuple(g.record() for g in self.plan_groups)

    def plan(self, measure: bool = True) -> pandas.DataFrame:
        """How the variants are grouped, and why those of a later group are not in an earlier one.

        Args:
            measure: measure on the device what members take, and so how many fit (and with ``capacity="auto"`` how many
                are fastest); once. Each architecture's forward and loss are called with one batch first. Without, no
                forward runs, and memory is an estimate until the study runs.

        Returns:
            One row per array: ``members``, ``variants`` (their numbers), ``fused_over``, ``split_because``,
            ``architectures`` and ``padding`` (the share of the parameters that is), ``parameters`` and
            ``memory_bytes`` of one member, ``fixed_bytes`` of the array beside them, and its ``capacity``: 0 where
            not even one member fits, None where nothing was measured.

        Raises:
            FamilyError: a forward or a loss raises; the message begins with that line of the person's own code.
        """
        if measure:
            self.plan_groups = planning.fitted(self)
        return planning.table(self.plan_groups)

    def settings(self) -> Settings:
        """What the training loop needs to know."""
        return planning.settings_of(self)

    def _member(self, id: int) -> Variant:
        found = next((v for v in self.variants if v.id == id), None)
        if found is None:
            raise StudyError("no such variant", where=self.name, got=id, accepted=f"0 to {len(self.variants) - 1}")
        return found

    @property
    def options(self) -> dict[str, Any]:
        """Everything that was asked for but family, grid and data; keyword arguments of a twin."""
        return saving.options(self)
