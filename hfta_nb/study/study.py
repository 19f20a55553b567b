"""A study: family, grid and data, wired to plan, training, store and telemetry. Headless."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hfta_nb import events as ev
from hfta_nb.data import Data
from hfta_nb.events import Control, Event
from hfta_nb.history import History
from hfta_nb.recipes import Family
from hfta_nb.study import adding, code, loop, outcome, running, saving
from hfta_nb.study.check import check_member, row_of
from hfta_nb.study.definition import Definition
from hfta_nb.study.fitting import fit
from hfta_nb.study.result import Result
from hfta_nb.train.trying import tried

if TYPE_CHECKING:
    import pandas


class Study(Definition):
    """Everything about one sweep: what is asked, how it goes, what came of it.

    Args:
        family: a name (see `hfta_nb.families`), a `Family`, a function that builds a module, or a subclass of
            `nn.Module`; the parameters of a function or class are axes.
        grid: axis names to values, or a list of configurations (dicts or instances of a dataclass); see `Grid`.
        data: a name (see `hfta_nb.data.names`), tensors ``(x, y)``, a `Dataset`, ``(training, validation)`` where each
            is a `Dataset`, a `DataLoader` or a function that gives batches, or what `hfta_nb.data` makes of them; the
            family's default without.
        epochs: passes through the training data, or times `steps_per_epoch` optimizer steps.
        batch_size: samples in a mini-batch, unless it is an axis.
        patience: validations without improvement of `monitor` after which a member stops; None for never.
        monitor: the metric that decides which epoch is best: ``val_<metric>`` or ``val_loss``. By default the
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
        strategy: how kernels are chosen: "measured", the fastest on this machine, which in float32 round otherwise than
            the plain module's; or "fixed", those that the plain module calls.
        deterministic: choose nothing by time, so that two runs on one machine give the same bits on a CPU, whatever was
            timed before; slower. Kernels are "fixed", block sizes are not tried, steps are not compiled.
        verify: when a member is compared with its plain module: "first" for the first call of each kind, which costs
            about one training step of one member; "always" for all, which is slow; or "never". What differs runs
            member by member from then on, and an event `DifferenceFound` says so. See `FusedArray.verify`.
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

    @property
    def history(self) -> History:
        """The state of the run, up to what a worker has written by now; FAILED where its process was killed."""
        return running.looked_at(self)

    # Running.

    def run(
        self, control: Control | None = None, resume: bool = False, *, epochs: int | None = None
    ) -> Iterator[Event]:
        """Train; iterate to do the work. However the loop is left, the run stops and everything is kept.

        ``break``, an exception in the loop's body, KeyboardInterrupt ("Interrupt kernel") and SystemExit end a run as
        ``control.stop()`` does: after the present step, with a checkpoint and the best weights. An interrupt takes
        effect when that is written; a second one at once, and the last checkpoint is then an earlier one.
        An iterator that is left open is closed by the next run, by the end of a cell that raised, or of the process.

        Args:
            control: where requests (pause, stop, add, ...) are posted; from any thread.
            resume: carry on from the last checkpoint in `directory`; from the start where there is none yet.
            epochs: train to so many epochs in all: after a run of 10, ``run(epochs=20)`` trains 10 more. An lr schedule
                that does not depend on the number of epochs (none, step, exponential, or any with ``t_max``) goes on,
                as if 20 had been planned; one that spans the run (cosine, linear, cosine_restarts) has from here on the
                values of a run of 20. Members that ended early (patience, stopped, diverged) stay as they are.

        Yields:
            What happens, from `RunStarted` to `RunChanged` with the final state. All of it is also appended to
            ``events.jsonl``.

        Raises:
            StudyError: the directory holds a run already, there is nothing to go on with, or a loop over this run is
                still open around this call.
            StoreError: the directory can't be used, or the run in it is going on somewhere else.
            Exception: whatever the family's own code raised; the run is then FAILED and can be resumed.
        """
        control = control or Control()
        return loop.iterate(self.directory, lambda: running.run(self, control, resume, epochs), control)

    def fit(
        self,
        epochs: int | None = None,
        *,
        resume: bool = False,
        on_event: Callable[[Event], Any] | Iterable[Callable[[Event], Any]] = (),
        progress: bool = True,
        control: Control | None = None,
    ) -> pandas.DataFrame:
        """Run to the end, with a progress bar; Ctrl-C stops it, and ``fit(resume=True)`` carries on.

        Args:
            epochs, resume, control: as for `run`.
            on_event: a function that is called with each event, or several; for TensorBoard, MLflow and Weights &
                Biases there are some in `hfta_nb.callbacks`. What one raises stops the run, and is raised.
            progress: show the bar, in a terminal or a notebook.

        Returns:
            `results`.
        """
        fit(self, epochs, resume, on_event, progress, control)
        return self.results()

    def add(self, variants: Any) -> list[int]:
        """Add variants: before a run, from within its loop, or after it (the next `run` trains them).

        They train from an epoch 0 of their own, and give what they give alone. Those that are added once the study has
        begun have arrays of their own, after all others. A configuration may be one that is there already: a member
        that ended early is trained anew in this way. Where a worker runs the study, ask by ``control.add(...)``.

        Args:
            variants: a dict of axes to values, an instance of a dataclass, or a list of these. An axis that is left out
                has its fixed value, or its default.

        Returns:
            Their numbers.

        Raises:
            GridError, FamilyError: one of them can't be used; none is added then.
            StudyError: the run is going on in another process.

        Example:
            >>> study = Study("mlp", [{"lr": 1e-3, "width": 8}], "digits", epochs=1)
            >>> study.add({"lr": 1e-2, "width": 16})
            [1]
        """
        return adding.add(self, variants)

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
                running.keep(self, event)
                yield event

    def forward_events(self) -> Iterator[ev.ForwardTried]:
        """Call the forward and the loss of one member of each architecture with one batch; nothing is trained or kept.

        Yields:
            `ForwardTried` per architecture, of which at most 32 are tried.
        """
        yield from tried(self.settings(), self.plan_groups)

    def excerpt(self) -> Study:
        """A copy with one batch of the data, for `forward_events` in a process that it is sent to."""
        made = copy.copy(self)
        if isinstance(self.data, Data):
            made.data = self.data.head(max(int(row["batch_size"]) for group in self.plan_groups for row in group.rows))
        return made

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

    def results(self, over: str | Sequence[str] | None = None) -> pandas.DataFrame:
        """The leaderboard, one row per variant, best first: state, best epoch, metrics at it, the axes' values.

        A notebook and ``print`` show the rank, the axes that vary, the monitored metric, state and best epoch; all
        other columns are there as well.

        Args:
            over: an axis, or several, to be averaged over, most often "seed": one row per configuration of the others,
                with each metric's mean (under its name) and sample standard deviation ("_std"), the ``count`` of finite
                values, how many members were ``lost``, and ``members``. Configurations that lost a member come last.

        Raises:
            StudyError: the study has not run yet, or `over` is no axis of its grid.
        """
        return outcome.results(self, over)

    def best(self, over: str | Sequence[str] | None = None) -> Result:
        """The best member; with `over` the best one of the configuration whose mean is best (see `results`).

        Raises:
            StudyError: no member has completed an epoch with a finite value, or `over` is no axis of the grid.
        """
        return outcome.best(self, over)

    def speedup(self) -> pandas.DataFrame:
        """What fusing brought in this run: steps of each array against its members' one after another, in seconds.

        Both were timed side by side in the array's first steps, once it was tuned. The row "all" has the sums.

        Raises:
            StudyError: nothing was measured: the study has not run, or trains without fusing.
        """
        return outcome.speedup(self)

    def member(self, id: int) -> Result:
        """What came of one variant.

        Raises:
            StudyError: there is no such variant.
        """
        return Result(self, self._member(id))

    def reload(self) -> Study:
        """Take in what another process (a worker) has added to the run's directory since; returns the study."""
        running.reload(self)
        return self

    # Saving.

    def save(self, path: str | Path) -> Path:
        """Keep the study in a directory: JSON and safetensors, no pickle.

        Raises:
            StoreError: another run is there, or it can't be written to.
        """
        return saving.save(self, Path(path).absolute())

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
        study = cls(recipe, grid, found, **options)
        adding.restore(study)
        return study.reload()

    def to_code(self) -> str:
        """Python source of a cell that reproduces the study."""
        return code.of_study(self)

    def _repr_html_(self) -> str:
        return outcome.shown(self)

    def __repr__(self) -> str:
        size = f"{len(self.variants)} variants in {len(self.plan_groups)} arrays"
        return f"Study({self.name!r}, {size}, {self.epochs} epochs)"
