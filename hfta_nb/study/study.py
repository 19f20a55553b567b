"""A study: family, grid and data, wired to plan, training, store and telemetry. Headless."""

from __future__ import annotations

import time
import traceback
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from hfta_nb import data as datasets
from hfta_nb import events as ev
from hfta_nb import telemetry
from hfta_nb.errors import StudyError
from hfta_nb.events import Control, Event, GroupRecord
from hfta_nb.family import Family
from hfta_nb.grid import Grid, Variant
from hfta_nb.history import History
from hfta_nb.losses import Loss
from hfta_nb.plan import make_plan
from hfta_nb.store import Store
from hfta_nb.study import arguments, code, running, saving
from hfta_nb.study.check import check_member, row_of
from hfta_nb.study.planning import fitted
from hfta_nb.study.result import Result
from hfta_nb.train import Settings, Trainer

if TYPE_CHECKING:
    import pandas

SAMPLE_INTERVAL_S = 0.5
"""How often the device is looked at while a study runs."""

TRANSIENT = (ev.Heartbeat,)
"""Events that are not kept on disk."""


class Study:
    """Everything about one sweep: what is asked, how it goes, what came of it.

    Args:
        family: a name (see `hfta_nb.families`), a `Family`, a function that builds a module, or a subclass of
            `nn.Module`; the parameters of a function or class are axes.
        grid: axis names to values; see `Grid`.
        data: a name (see `hfta_nb.data.names`), tensors ``(x, y)``, a `Dataset`, ``(training, validation)`` where each
            is a `Dataset`, a `DataLoader` or a function that gives batches, or what `hfta_nb.data` makes of them; the
            family's default without.
        epochs: passes through the training data, or times `steps_per_epoch` optimizer steps.
        batch_size: samples in a mini-batch, unless it is an axis.
        patience: validations without improvement of `monitor` after which a member stops; None for never.
        monitor: the metric that decides which epoch is best: "val_" and a metric's name, or "val_loss". By default the
            family's, or the task's first metric where it is a score, else "val_loss".
        device: "cpu", "cuda", "cuda:1", ...; by default the GPU if there is one.
        dtype: "float32", "float64" or "bfloat16", or torch's dtype of that name: of parameters and everything else.
        precision: "fp32": as `dtype` says. For float32 also "tf32": products of factors with 10 bits, on GPUs from
            compute capability 8.0 on; "bf16", "fp16": torch's autocast, fp16 with a loss scale of each member's own.
        directory: where the run is kept; by default a new one under ``hfta_runs``.
        serial: train the variants one after another as plain modules, without fusing.
        across: the largest share of an array's parameters that may be padding, where variants of different width,
            depth or activation share it; "auto" for half on a GPU and a quarter on a CPU, "never" to keep them apart.
        capacity: the most members of an array; None for as many as the device's memory holds, "auto" for the number
            that is measured to be fastest, of those that fit. Results do not depend on it.
        checkpointing: activation checkpointing: "always", "never", or "auto" for where not all members fit without it
            and more do with it. It costs a second forward and changes no number.
        compile: whether replayed steps are compiled by `torch.compile`'s compiler, which takes seconds to minutes and
            changes rounding: "never", "always", or "auto" for where it is faster and the run is long enough to pay.
        seed: of the order of the data.
        name: shown to people.
        validate_every: epochs from one validation to the next; the last epoch always has one. Only epochs with a
            validation can be the best.
        steps_per_epoch: optimizer steps of an epoch, by which curves, lr schedulers and validations count; the order of
            the data goes on from one epoch to the next. None for one pass through the training data. Data that is
            known to have no end needs it; where that can't be known, a `DataWarning` comes after 10,000 batches.
        loss: from one member's output and the target to a scalar, in place of the family's.
        metrics: functions of one member's output and the target by name (or `Metric`, or torchmetrics'), or a list of
            functions, in place of the family's.
        param_groups: from a parameter's name, and the parameter as a plain module has it, to the hyperparameters that
            its group has of its own: ``{"weight_decay": 0.0}``, or ``{"lr_scale": 0.1}`` for a tenth of the member's.
        fixed: one value for any other axis that is not in the grid, for example ``optimizer="sgd"``.

    Raises:
        HftaError: an argument can't be used; the message says which and why.

    Example:
        >>> study = Study("mlp", {"lr": [1e-3, 1e-2]}, "digits", epochs=1)
        >>> len(study.variants)
        2
    """

    def __init__(
        self,
        family: str | Family | Callable[..., nn.Module],
        grid: Mapping[str, Any] | Grid | None = None,
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
        self.grid = arguments.grid_of(grid)
        self.data = datasets.resolve(self.family.data[0] if data is None else data)
        self.family.check_data(self.data)
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
        self.compile = arguments.compile_of(compile)
        self.monitor, self.maximize = arguments.monitor_of(self.family, self.data, monitor)
        self.name = name or f"{self.family.name} on {self.data.name}"
        most = self.capacity if isinstance(self.capacity, int) else None
        self.plan_groups = make_plan(self.family, self.grid, self.data, fixed, serial=self.serial, across=self.across,
                                     capacity=most)  # fmt: skip
        arguments.check_schedules(self.plan_groups, self.epochs, self.steps_per_epoch, self.data)
        stamp = time.strftime("%Y%m%d-%H%M%S")
        place = directory or Path("hfta_runs") / f"{self.family.name}-{stamp}-{uuid.uuid4().hex[:6]}"
        self.store = Store(Path(place).absolute())
        self._history = History()
        self._read = 0  # bytes of events.jsonl already in it
        self._running = 0  # runs of this very object, which fold their events in themselves

    @property
    def history(self) -> History:
        """The state of the run, up to what a worker has written by now."""
        return self._history if self._running else self.reload()._history

    # What is asked.

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
                are fastest); once. Without, memory is an estimate until the study runs.

        Returns:
            One row per array: ``members``, ``variants`` (their numbers), ``fused_over``, ``split_because``,
            ``architectures`` and ``padding`` (the share of the parameters that is), ``parameters`` and
            ``memory_bytes`` of one member, ``fixed_bytes`` of the array beside them, and its ``capacity``: 0 where
            not even one member fits, None where nothing was measured.
        """
        import pandas

        if measure:
            self.plan_groups = fitted(self)
        return pandas.DataFrame([g.row() for g in self.plan_groups]).set_index("array")

    # Running.

    def run(self, control: Control | None = None, resume: bool = False) -> Iterator[Event]:
        """Train; iterate to do the work. Leaving the loop stops the run and keeps everything.

        Args:
            control: where requests (pause, stop, ...) are posted; from any thread.
            resume: carry on from the last checkpoint in `directory`.

        Yields:
            What happens, from `RunStarted` to `RunChanged` with the final state. All of it is also appended to
            ``events.jsonl``.

        Raises:
            StudyError: the directory holds a run already, or there is nothing to resume.
            StoreError: the directory can't be used, or the run in it is going on somewhere else.
            Exception: whatever the family's own code raised; the run is then FAILED and can be resumed.
        """
        with running.opened(self, resume) as state:
            yield from self._run(state, control or Control(), resume)

    def _run(self, state: Any, control: Control, resume: bool) -> Iterator[Event]:
        sampler = telemetry.sampler(str(self.device))
        trainer = Trainer(self.settings(), self.plan_groups, control, self._save, state)
        self.plan_groups = trainer.arrays
        sampled = 0.0
        self._running += 1
        try:
            for event in running.events(self, trainer, resume):
                self._keep(event)
                yield event
                if time.perf_counter() - sampled >= SAMPLE_INTERVAL_S:
                    sampled = time.perf_counter()
                    sample = sampler.sample()
                    self._keep(sample)
                    yield sample
        except GeneratorExit:
            self._keep(ev.RunChanged(time.time(), ev.STOPPED, "the loop over the run was left"))
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            self._keep(ev.RunChanged(time.time(), ev.FAILED, reason, traceback.format_exc()))
            raise
        finally:
            self._running -= 1

    def check_events(self, members: Sequence[int] | None = None, epochs: int | None = None) -> Iterator[Event]:
        """Retrain members alone, as plain modules with torch's own optimizers, and compare with what the run recorded.

        Args:
            members: variants; by default the best one.
            epochs: how many epochs to compare; by default all in float64, else the first 5.

        Yields:
            `MemberChecked` per member, and `Heartbeat` meanwhile. What counts as equal allows for rounding: 1e-8 in
            float64, 1e-5 in float32, 1e-3 in tf32, bf16 and fp16, or what changes of the last bits alone make of the
            member's curves. Where that is more than the loss itself, nothing can be told (`decided` is False).

        Raises:
            StudyError: a member is unknown, or has no epoch to compare yet.
        """
        chosen = [self.best().variant.id] if members is None else list(members)
        for variant in chosen:
            for event in check_member(self, self._member(variant), epochs):
                self._keep(event)
                yield event

    def check(self, members: Sequence[int] | None = None, epochs: int | None = None) -> pandas.DataFrame:
        """`check_events` run through, as a table.

        Returns:
            One row per member: ``epochs`` compared, the largest difference of each curve, ``tolerance``, ``equal`` and
            ``verdict``: "equal", "differs", or "can't tell" (``equal`` is False) where rounding alone would make a
            difference larger than the loss; check in float64 then.
        """
        import pandas

        found = [e for e in self.check_events(members, epochs) if isinstance(e, ev.MemberChecked)]
        return pandas.DataFrame([row_of(e) for e in found]).set_index("member")

    # Results.

    def results(self) -> pandas.DataFrame:
        """The leaderboard, one row per variant, best first: state, best epoch, metrics at it, the axes' values."""
        import pandas

        rows = self.history.rows()
        if not rows:
            raise StudyError("not run yet", where=self.name, remedy="iterate study.run() first")
        return pandas.DataFrame(rows).set_index("member")

    def best(self) -> Result:
        """The best member.

        Raises:
            StudyError: no member has completed an epoch with a finite value.
        """
        for member in self.history.leaderboard():
            if member.best_epoch:
                return self.member(member.id)
        raise StudyError("no member has a best epoch yet", where=self.name, remedy="run the study first")

    def member(self, id: int) -> Result:
        """What came of one variant.

        Raises:
            StudyError: there is no such variant.
        """
        return Result(self, self._member(id))

    def reload(self) -> Study:
        """Take in what another process (a worker) has added to the run's directory since; returns the study."""
        for event, offset in self.store.events(self._read):
            self._history.add(event)
            self._read = offset
        return self

    # Saving.

    def save(self, path: str | Path) -> Path:
        """Keep the study in a directory: JSON and safetensors, no pickle.

        Raises:
            StoreError: another run is there, or it can't be written to.
        """
        target = Path(path).absolute()
        if not self.store.exists:
            saving.write(self)
        if target != self.directory:
            self.store.copy_to(target)
        return target

    @classmethod
    def load(cls, path: str | Path, family: str | Family | None = None, data: Any = None) -> Study:
        """A study that was saved, or one that ran in this directory.

        Args:
            path: the directory.
            family: the family, where it was defined by the user and is not defined now.
            data: the data, where it was a stream (a `DataLoader`, a function, a `Dataset` too large for memory), of
                which nothing is kept; see `Study`.

        Raises:
            StoreError: there is no study there, it is damaged, or its data must be given.
            FamilyError: its family is not known.
        """
        recipe, grid, found, options = saving.read(Path(path).absolute(), family, data)
        return cls(recipe, grid, found, **options).reload()

    def to_code(self) -> str:
        """Python source of a cell that reproduces the study."""
        return code.of_study(self)

    def __repr__(self) -> str:
        size = f"{len(self.variants)} variants in {len(self.plan_groups)} arrays"
        return f"Study({self.name!r}, {size}, {self.epochs} epochs)"

    def settings(self) -> Settings:
        """What the training loop needs to know."""
        how = self.epochs, self.patience, self.monitor, self.maximize
        where = self.device, self.dtype
        pace = self.validate_every, self.steps_per_epoch
        memory = self.capacity, self.checkpointing
        settings = *how, *where, self.seed, True, *pace, self._precision, *memory, self.compile
        return Settings(self.family, self.data, *settings)

    def _keep(self, event: Event) -> None:
        self._history.add(event)
        if not isinstance(event, TRANSIENT):
            self.store.append(event)
            self._read = self.store.events_path.stat().st_size

    def _save(self, state: dict[str, Any], weights: Mapping[int, Mapping[str, torch.Tensor]]) -> str:
        for variant, tensors in weights.items():
            self.store.write_weights(variant, tensors)
        return str(self.store.write_checkpoint(state))

    def _member(self, id: int) -> Variant:
        found = next((v for v in self.variants if v.id == id), None)
        if found is None:
            raise StudyError("no such variant", where=self.name, got=id, accepted=f"0 to {len(self.variants) - 1}")
        return found

    @property
    def options(self) -> dict[str, Any]:
        """Everything that was asked for but family, grid and data; keyword arguments of a twin."""
        return saving.options(self)
