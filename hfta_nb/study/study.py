"""A study: family, grid and data, wired to plan, training, store and telemetry. Headless."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hfta_nb.errors import StoreError, StudyError
from hfta_nb.errors.border import FLAG, PATH, TEXT, TEXTS, WHOLE, Kind, instance, takes, whole
from hfta_nb.models.recipes import Family
from hfta_nb.models.study_config import documented
from hfta_nb.records.events import Control, Event
from hfta_nb.records.history import History
from hfta_nb.study import (
    adding,
    code,
    definition_files,
    exporting,
    keeping,
    reading,
    result_tables,
    running,
    searching,
)
from hfta_nb.study.analysis import Analysis
from hfta_nb.study.checking import Checking
from hfta_nb.study.definition import Definition
from hfta_nb.study.ensembles import EnsembleResult, ensemble, out_of_fold
from hfta_nb.study.fitting import fit
from hfta_nb.study.restoring import restored
from hfta_nb.study.result import MOMENT, Result
from hfta_nb.study.study_state import variant_of

if TYPE_CHECKING:
    import pandas
    from torch import Tensor

NUMBERS = Kind("not members", "a list of their numbers", lambda v: len(v) > 0 and all(map(whole, v)))
CONTROL = instance(Control, "a hfta_nb.Control").or_none


@documented  # the arguments of `StudyConfig` come before `fixed`
class Study(Analysis, Checking, Definition):
    """One sweep: its definition, its run and its results.

    Args:
        family: a name (see `hfta_nb.families`), a `Family`, a function that builds a module, or a subclass of
            `nn.Module`; the parameters of a function or class are axes.
        grid: axis names to values, or a list of configurations (dicts or instances of a dataclass) or of grids (dicts
            of lists); see `Grid`.
        data: a name (see `hfta_nb.data.names`), tensors ``(x, y)``, a `Dataset` or a list of samples, ``(training,
            validation)`` where each is a `Dataset`, a `DataLoader` or a function that yields batches, or a result of
            `hfta_nb.data`; by default the family's first data set.
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
        """The state of the run, including what a worker has written so far; INTERRUPTED if its process is gone."""
        return running.looked_at(self)

    # Running.

    @takes(StudyError, control=CONTROL, resume=FLAG, epochs=WHOLE.or_none)
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
        """Train; iterating does the work. However the loop is left, the run stops and everything is kept.

        ``break``, an exception in the loop's body, KeyboardInterrupt ("Interrupt kernel") and SystemExit end a run as
        ``control.stop()`` does: after the current step, with a checkpoint and the best weights. An interrupt takes
        effect when these are written. A second interrupt takes effect at once, and the last checkpoint is then an
        earlier one.
        An iterator that is left open is closed by the next run, at the end of a cell that raised, or at the end of the
        process.

        Args:
            control: mailbox for requests (pause, stop, add, ...); may be used from any thread.
            resume: continue from the last checkpoint in `directory`, to the bits of an uninterrupted run (see
                docs/how_to/resume.md), or from the start if there is none.
            epochs: total number of epochs: after a run of 10, ``run(epochs=20)`` trains 10 more. An lr schedule
                that does not depend on the number of epochs (none, step, exponential, or any with ``t_max``) continues
                as if 20 had been planned. One that spans the run (cosine, linear, cosine_restarts) takes the values of
                a run of 20 from here on. Members that ended early (patience, stopped, diverged) stay as they are.
            executor: where arrays train: "inline" in this process, one after another; "processes" in processes of this
                machine, one per device; "ray" in actors of a Ray cluster; or an executor of `hfta_nb.pools`. It changes
                no result; a run may be resumed with another one. See docs/how_to/devices.md.
            workers: the most processes or actors at a time; see `hfta_nb.pools.Processes` and `hfta_nb.pools.OnRay`.
            address: of the Ray cluster; None for the one that this process is connected to, or a new one here.

        Yields:
            Events, from `RunStarted` to `RunChanged` with the final state. They are also kept in
            ``study.sqlite``.

        Raises:
            StudyError: the directory already holds a run, there is nothing to resume, or this call is inside an open
                loop over the same run.
            StoreError: the directory can't be used, or its run is in progress elsewhere.
            WorkerError: the executor can't be used, or no worker can be started.
            Exception: any error that the family's own code raised; the run is then FAILED and can be resumed.
        """
        return running.begun(self, control or Control(), resume, epochs, executor, workers, address)

    @takes(StudyError, control=CONTROL, resume=FLAG, epochs=WHOLE.or_none, progress=FLAG)
    def fit(
        self,
        epochs: int | None = None,
        *,
        resume: bool = False,
        on_event: str | Callable[[Event], Any] | Iterable[str | Callable[[Event], Any]] = (),
        on_trial: Callable[[Any, Any], Any] | Iterable[Callable[[Any, Any], Any]] = (),
        progress: bool = True,
        control: Control | None = None,
        executor: Any = "inline",
        workers: int | None = None,
        address: str | None = None,
    ) -> pandas.DataFrame:
        """Run to the end, with a progress bar. Ctrl-C stops the run, and ``fit(resume=True)`` resumes it.

        Args:
            epochs, resume, control, executor, workers, address: as for `run`.
            on_event: one or several functions that are called with each event; `hfta_nb.callbacks` has some for
                TensorBoard, MLflow, Weights & Biases and Trackio, also by name (``"tensorboard"``). An error in one of
                them stops the run and is raised.
            on_trial: one or several functions of the Optuna study and a `FrozenTrial`, called after each trial of a
                search as Optuna's callbacks are; ``study.stop()`` in them ends the search.
            progress: show the bar, in a terminal or a notebook.

        Returns:
            `results`.
        """
        where = {"executor": executor, "workers": workers, "address": address}
        fit(self, partial(self.run, control, resume, epochs=epochs, **where), on_event, on_trial, progress)
        return self.results()

    def add(self, variants: Any) -> list[int]:
        """Add variants: before a run, from within its loop, or after it (the next `run` trains them).

        They train from their own epoch 0 and give what they would give alone. Variants that are added after the study
        has begun train in separate arrays, after all others. A configuration may repeat an existing one, for example to
        train a member anew that ended early. If a worker runs the study, use ``control.add(...)``.

        Args:
            variants: a dict of axes to values, an instance of a dataclass, or a list of these. An omitted axis has its
                fixed value or its default.

        Returns:
            Their numbers.

        Raises:
            GridError, FamilyError: one of them can't be used; then none is added.
            StudyError: the run is in progress in another process.

        Example:
            >>> study = Study("mlp", [{"lr": 1e-3, "width": 8}], "digits", epochs=1)
            >>> study.add({"lr": 1e-2, "width": 16})
            [1]
        """
        return adding.add(self, variants)

    # Results.

    @takes(StudyError, over=TEXTS.or_none)
    def results(self, over: str | Sequence[str] | None = None) -> pandas.DataFrame:
        """The leaderboard, one row per variant, best first: state, best epoch, metrics at it, the axes' values.

        Further columns are the ``seed``, the last value of each metric (``last_<metric>``), ``epochs``, the ``reason``
        of an early end, ``time_s`` and ``time_share`` (members that train together share the time evenly),
        ``memory_bytes`` and ``memory_share`` (of its array), and of a search the number of the ``trial``. A notebook
        and ``print`` show the rank, the axes that vary, the monitored metric, state and best epoch.

        Args:
            over: one or several axes to average over, most often "seed". The table then has one row per configuration
                of the other axes, with each metric's mean (under its name) and sample standard deviation ("_std"), the
                monitored metric's "_bound" (see `seeds_by`), the ``count`` of finite values, the number of ``lost``
                members, and ``members``. Configurations that lost a member come last.

        Raises:
            StudyError: the study has not run yet, or `over` is not an axis of its grid.
        """
        return result_tables.results(self, over)

    @takes(StudyError, over=TEXTS.or_none)
    def best(self, over: str | Sequence[str] | None = None) -> Result:
        """The best member; with `over`, the best member of the configuration with the best mean (see `results`).

        Raises:
            StudyError: no member has completed an epoch with a finite value, or `over` is not an axis of the grid.
        """
        return result_tables.best(self, over)

    @takes(StudyError, id=WHOLE)
    def member(self, id: int) -> Result:
        """The result of one variant.

        Raises:
            StudyError: there is no such variant.
        """
        return Result(self, variant_of(self, id))

    @takes(StoreError, folder=PATH, at=MOMENT)
    def save_pretrained(self, folder: str | Path, at: str | int = keeping.BEST, **options: Any) -> dict[int, Path]:
        """Write each member to a folder of its own, as `Result.save_pretrained` does: of models of peft, the adapters.

        Args:
            folder: is made, if need be; member 3 is written to ``folder/3``.
            at: as for `Result.module`; members of which these weights are not kept are left out.
            options: of the modules' own `save_pretrained`.

        Returns:
            The folders by member.

        Raises:
            StoreError: no such weights were saved (yet), the modules have no such method, or it can't be written.
        """
        kept = [one for one in map(self.member, (v.id for v in self.variants)) if at in one.checkpoints]
        if not kept:
            raise StoreError("no member has such weights", where=f"save_pretrained of {self.name}", got=at)
        return {one.variant.id: one.save_pretrained(Path(folder) / str(one.variant.id), at, **options) for one in kept}

    @takes(StudyError, members=NUMBERS.or_none, snapshots=FLAG, most=WHOLE)
    def ensemble(
        self,
        how: str | int = "greedy",
        *,
        members: Sequence[int] | None = None,
        snapshots: bool = False,
        most: int = 30,
    ) -> EnsembleResult:
        """Members that predict together, chosen by the loss of their mean prediction on the validation samples.

        Predictions are computed when this is called, once for each candidate, from the weights that are kept. They
        choose the ensemble, so that its scores are optimistic: keep samples of your own for a last test.

        Args:
            how: "greedy" takes, again and again, the candidate that lowers the loss of the mean most, one possibly
                several times, and goes back to the number at which the loss was lowest (Caruana et al., 2004). A number
                takes the mean of so many of those with the lowest loss.
            members: the candidates; None for all that have weights.
            snapshots: whether all kept weights of a member are candidates (``keep_checkpoints=["best", "last",
                "rungs"]``), not the best alone.
            most: additions of "greedy".

        Raises:
            StudyError: there is no such member, or none has weights; or the study is none of classification or
                regression, or has no validation samples.

        Example:
            >>> study = Study("mlp", {"lr": [1e-3, 1e-2]}, "iris", epochs=1)
            >>> results = study.fit(progress=False)
            >>> list(study.ensemble("greedy").scores().index)
            ['ensemble', 'best member']
        """
        return ensemble(self, how, members, snapshots, most)

    @takes(StudyError, member=WHOLE.or_none)
    def out_of_fold(self, member: int | None = None) -> Tensor:
        """The predictions of a configuration for the training samples, each by the member from which it is held out.

        Args:
            member: any of the configuration's folds; None for the configuration with the best mean over folds.

        Returns:
            ``[N, classes]`` probabilities of a classification, ``[N, outputs]`` numbers of a regression; float64, in
            the order of ``data.x``. A sample that several members hold out has the mean of their predictions, one that
            none holds out, as in splits of time series, NaN.

        Raises:
            StudyError: the study has no folds, has not run, or is of another task.

        Example:
            >>> study = Study("mlp", {"lr": [1e-3, 1e-2]}, "iris", folds=3, epochs=1)
            >>> results = study.fit(progress=False)
            >>> list(study.out_of_fold().shape)
            [120, 3]
        """
        return out_of_fold(self, member)

    def reload(self) -> Study:
        """Read what another process (a worker) has added to the run's directory; returns the study."""
        running.reload(self)
        return self

    # Saving.

    @takes(StudyError, path=PATH, what=TEXT)
    def export(self, path: str | Path, what: str = "results") -> Path:
        """Write what came of the study to a file for other programs.

        Args:
            path: of the file, which is replaced; ".csv", or ".parquet" where pyarrow is installed.
            what: "results", one row per variant, or "events", one row per event with its ``number``, ``time_s``,
                ``type`` and the rest of it as JSON.

        Raises:
            StudyError: the study has not run yet, or can't be written in this way.
            StoreError: the file can't be written.
        """
        return exporting.export(self, Path(path).absolute(), what)

    @takes(StudyError, path=PATH)
    def save(self, path: str | Path) -> Path:
        """Keep the study in a directory: SQLite and safetensors, no pickle. Of a damaged run all that can be read.

        Raises:
            StoreError: another run is there, or it can't be written to.
        """
        return definition_files.save(self, Path(path).absolute())

    @classmethod
    @takes(StudyError, path=PATH, trust=FLAG)
    def load(
        cls, path: str | Path, family: str | Family | None = None, data: Any = None, *, trust: bool = False
    ) -> Study:
        """Load a study that was saved or that ran in this directory.

        Args:
            path: the directory.
            family: the family, if the user defined it and it is not defined now.
            data: the data, if it was a stream (a `DataLoader`, a function, a `Dataset` too large for memory), which is
                not saved; see `Study`.
            trust: import the constructor that the directory names as the family (``torchvision.models.resnet18``).
                Otherwise nothing is imported because a file says so; a name that is given as `family` is.

        Raises:
            StoreError: the directory has no study, the study is damaged, or its data must be given.
            FamilyError: its family is not known, or would be imported.
        """
        place = Path(path).absolute()
        recipe, grid, found, options = reading.read(place, family, data, trust)
        try:
            study = restored(partial(cls, recipe, grid, found), options)
        except (KeyError, TypeError, AttributeError) as error:
            raise StoreError(f"what was asked is not what a study takes ({error})", where=str(place)) from error
        return study.reload()

    def to_code(self) -> str:
        """Python source of a cell that reproduces the study."""
        return code.of_study(self)

    @property
    def optuna(self) -> Any:
        """The `optuna.Study` behind a search, with its trials: for Optuna's plots and importances.

        Raises:
            StudyError: the study is no search.
        """
        return searching.optuna_study(self)

    def _repr_html_(self) -> str:
        return result_tables.shown(self)

    def __repr__(self) -> str:
        counts = {"variant": len(self.variants), "array": len(self.plan_groups), "epoch": self.epochs}
        variants, arrays, epochs = (f"{n} {thing}{'s' * (n != 1)}" for thing, n in counts.items())
        return f"Study({self.name!r}, {variants} in {arrays}, {epochs})"
