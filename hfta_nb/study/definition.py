"""The checked arguments of a study, and the plan made from them."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from hfta_nb import data as datasets
from hfta_nb.data import AnyData
from hfta_nb.engine.array import in_full
from hfta_nb.errors import StudyError
from hfta_nb.errors.border import FLAG, PATH, WHOLE, instance, takes, whole
from hfta_nb.models.losses import Loss
from hfta_nb.models.metrics import of_numbers
from hfta_nb.models.model_zoo import check_data
from hfta_nb.models.recipes import Family, lightning
from hfta_nb.models.recipes.preserve_rng import neutral
from hfta_nb.models.study_config import StudyConfig
from hfta_nb.records import events as ev
from hfta_nb.records.store import Store
from hfta_nb.search import PBT, Halving, Leader, Mirror
from hfta_nb.search.grid import Grid
from hfta_nb.study import adding, arguments, definition_files, keeping, planning, populations, searching, simulating
from hfta_nb.study.given_data import kept
from hfta_nb.study.study_state import RunState, StudyState
from hfta_nb.train import Settings
from hfta_nb.train.step.precision import check as precision_of
from hfta_nb.workers.fleet import Profile, Simulation

if TYPE_CHECKING:
    import pandas


class Definition(StudyState):
    """The definition of a study; `StudyConfig` says what its arguments mean."""

    @arguments.by_new_names
    @neutral()
    @takes(StudyError, **arguments.KINDS)
    def __init__(
        self,
        family: str | Family | Callable[..., nn.Module],
        grid: Mapping[str, Any] | Grid | Sequence[Any] | Callable[[Any], Mapping[str, Any]] | None = None,
        data: Any = None,
        *,
        epochs: int = 20,
        batch_size: int | None = None,
        patience: int | None = None,
        monitor: str | Sequence[str] | None = None,
        loss: Loss | str | None = None,
        metrics: Any = None,
        folds: Any = None,
        seed: int = 0,
        device: str | torch.device | None = None,
        precision: str = "fp32",
        directory: str | Path | None = None,
        name: str | None = None,
        trials: int | None = None,
        sampler: Any = None,
        pruner: Any = None,
        min_delta: float = 0.0,
        validate_every: int = 1,
        steps_per_epoch: int | None = None,
        validation_batch_size: int | None = None,
        drop_last: bool = False,
        member_steps: int | None = None,
        member_seconds: float | None = None,
        keep_checkpoints: str | Sequence[str] = ("best",),
        param_groups: Callable[..., Any] | None = None,
        dtype: str | torch.dtype = "float32",
        padding: float | str = "auto",
        capacity: int | str | None = None,
        checkpointing: str = "auto",
        cache_features: str = "auto",
        compile: str = "auto",
        strategy: str | None = None,
        deterministic: bool = False,
        verify: str = "first",
        devices: int = 1,
        devices_batch_norm: str = "sync",
        layout: str = "samples",
        share_stream: bool = True,
        serial: bool = False,
        slots: int | None = None,
        constraint: Callable[[Mapping[str, Any]], bool] | None = None,
        seeds_by: str = "mean",
        storage: Any = None,
        skip_duplicates: bool = False,
        timeout: float | None = None,
        population: PBT | Halving | Leader | None = None,
        **fixed: Any,
    ) -> None:
        self._define(family, in_full(grid), data, arguments.own_numbers(StudyConfig.of(locals())), fixed)

    def _define(self, family: Any, grid: Any, data: Any, config: StudyConfig, fixed: dict[str, Any]) -> None:
        vars(self).update(arguments.as_given(config))  # from here on: what a study has in another form, or checks
        family, data = lightning.taken(family, data)
        self.family = arguments.family_of(family, config.loss, in_full(config.metrics), config.param_groups)
        self.data = self._suited(data, config.folds)
        self.folds = int(config.folds) if whole(config.folds) else None
        arguments.check_data(config, self.data)
        arguments.check_patience(config)
        self._judged(config)
        self._searched(grid, config, fixed)
        self._place(config)
        self._planned(config)

    def _planned(self, config: StudyConfig) -> None:
        """The first plan, and which weights are kept where."""
        self.added = list[adding.Added]()
        self.rounds, self.leader = populations.taken(self, config.population)
        self.grid, self.plan_groups = searching.planned(self)
        self.keep_checkpoints = keeping.checked(self, in_full(config.keep_checkpoints))
        place = Path(config.directory) if config.directory else _new_place(self.family.name)
        self.store = Store(place.absolute())
        self.run_state = RunState(Mirror(self.directory / searching.FILE))

    def _place(self, config: StudyConfig) -> None:
        """Where and in what the members compute, how many at a time, and with which kernels."""
        self.dtype, self.device = arguments.dtype_of(config.dtype), arguments.device_of(config.device)
        self.precision = precision_of(config.precision, self.device, self.dtype)
        padding = "never" if config.padding == "auto" and isinstance(config.population, Leader) else config.padding
        self.padding = arguments.padding_of(padding, self.device, self.searcher is not None)
        self.devices = arguments.devices_of(config.devices, self.device)
        self.layout = arguments.layout_of(config.layout, self.devices, self.family.name)
        self.capacity, self.strategy = arguments.capacity_of(config.capacity), arguments.strategy_of(config)

    def _suited(self, data: Any, folds: Any) -> AnyData:
        """The data, which suits the family."""
        self.handed = kept(data)
        with datasets.ignoring(self.family.loss, of_numbers(self.family.loss) is True):
            found = datasets.resolve(self.family.data[0] if data is None else data)
            found = found if folds is None else datasets.folded(data, found, folds)
        check_data(self.family, found)
        return found.dropping_last() if self.drop_last else found

    def _judged(self, config: StudyConfig) -> None:
        """The objectives, the first of which is monitored; over what they are averaged; the study's name."""
        self.objectives = arguments.objectives_of(self.family, self.data, in_full(config.monitor))
        self.monitor, self.maximize = self.objectives[0]
        self.seeds_by, self.name = config.seeds_by, config.name or arguments.usual_name(self.family, self.data)

    def _searched(self, grid: Any, config: StudyConfig, fixed: dict[str, Any]) -> None:
        """The grid to train, or that of a search's first trials, and the values of all other axes."""
        searcher = searching.searcher_of(grid, config, self)
        self.fixed = fixed
        grid = adding.in_folds(self, Grid(grid)) if searcher is None else Grid.of(searcher.preview())
        self.grid, self.searcher = grid, searcher
        self.fixed = arguments.fixed_of(fixed, config.batch_size, self.grid.axes)

    def __getstate__(self) -> dict[str, Any]:
        if self.run_state.running:
            remedy = "copy it after the run, or read what it has so far in another study: Study.load(study.directory)"
            raise StudyError("a study can't be copied or sent while it runs", where=str(self.directory), remedy=remedy)
        # The data that was handed over is for `check`, which can do without where the study was sent to.
        return {**self.__dict__, "handed": None, "run_state": replace(self.run_state, unkept=None)}

    @takes(StudyError, measure=FLAG)
    def plan(self, measure: bool = True) -> pandas.DataFrame:
        """The arrays in which the variants train, and the reason for each split.

        Args:
            measure: measure once on the device how much memory members take and how many fit (with ``capacity="auto"``,
                how many are fastest). First each architecture's forward and loss are called on one batch. If False, no
                forward runs, and memory is an estimate until the study runs.

        Returns:
            One row per array: ``members``, ``variants`` (their numbers), ``differing_in``, ``split_because``,
            ``architectures`` and ``padding`` (its share of the parameters), ``parameters`` and ``memory_bytes`` of one
            member, ``fixed_bytes`` of the array besides its members, its ``capacity``: 0 if not even one member fits,
            None if nothing was measured, ``features``: what `cache_features` keeps, or why nothing, and the study's
            ``validation_batch_size``.

        Raises:
            FamilyError: a forward or a loss raised; the message begins with the line of the user's code.
        """
        if measure:
            self.plan_groups = planning.fitted(self)
        return planning.table(self)

    @takes(StudyError, cache=PATH.or_none, devices=WHOLE)
    def profile(self, cache: str | Path | None = None, devices: int = 1) -> Profile:
        """Measure how fast each array trains on this device, and how much memory that takes, in few batches.

        Args:
            cache: a JSON file that measurements are kept in and read from. It is for this study on this machine.
            devices: measure on 2, 3, ... devices that train an array together as well, up to so many. Which they are
                is said under `devices` of the study.

        Returns:
            ``rates`` of it are what `hfta_nb.fleet.plan` and `hfta_nb.pools.Terms` take; an array's name is "array 0",
            "array 1", ... as in `plan`.
        """
        place = None if cache is None else Path(cache)
        count = arguments.devices_of(devices, self.device)
        return planning.profiled(self, self.plan_groups, place, count)

    def profile_events(self) -> Iterator[ev.RateMeasured]:
        """Measure each array as `profile` does, with the study's `devices`; yields what was found, array by array.

        Yields:
            `RateMeasured` per array.
        """
        yield from planning.profile_events(self)

    @takes(StudyError, gpus=WHOLE, profile=instance(Profile, "a profile of this study").or_none)
    def simulate(self, gpus: int, profile: Profile | None = None, *, price_per_device_h: float = 0.0) -> Simulation:
        """Simulate this study on so many devices, in five ways; see `hfta_nb.fleet.simulate`.

        Every array trains for all epochs: members that stop early are not foreseen. Trials that a search adds later are
        taken to be as those that are planned, and none to be pruned. Arrays that take longest are first, as in a run
        with `executor="processes"` or `"ray"`, in which each array has one device and the next begins when a device is
        free: "one per device".

        Args:
            gpus: number of devices, from 1.
            profile: of `profile`. None to assume that a step of an array takes as long as it has parameters; then
                times have no unit, and only their ratios mean something.
            price_per_device_h: of one device for one hour, in any currency, 0 or more.

        Raises:
            StudyError: an array is not in the profile, or the number of batches in an epoch is not known.
            FleetError: a number is out of its range.

        Example:
            >>> import hfta_nb as hfta
            >>> study = hfta.Study("mlp", {"width": [8, 32], "lr": [1e-3, 1e-2]}, "digits", padding="never")
            >>> table = study.simulate(2).table()
            >>> print(round(table["speedup"]["one per device"], 1))
            1.0
        """
        return simulating.simulated(self, gpus, profile, price_per_device_h)

    def settings(self) -> Settings:
        """The settings of the training loop."""
        return planning.settings_of(self)

    @property
    def options(self) -> dict[str, Any]:
        """All arguments except family, grid and data, as keyword arguments of a copy."""
        return definition_files.options(self)


def _new_place(family: str) -> Path:
    stamp = time.strftime("%Y%m%d-%H%M%S")
    family = re.sub(r"[^\w.-]+", "-", family)[-60:].lstrip("-.")  # the name of a saved model has its folder
    return Path("hfta_runs") / f"{family}-{stamp}-{uuid.uuid4().hex[:6]}"
