"""The arguments of `hfta_nb.Study` in one table: type, default, range, help, and where else each can be given.

Whoever lists arguments takes them from here: the command line with its help, the keys of `hfta-nb tune`, what is saved
and read, the source that reproduces a study, the docstring of `Study`, the Workbench's fields, the reference, and what
is said of other libraries' names. A new argument is a field here with its help, the same line in the signature of
`hfta_nb.study.definition.Definition`, and its use. One that is saved is an attribute of the study by its name.

Imports nothing slow, so that `hfta-nb --help` answers at once.
"""

# ruff: noqa: RUF009 (the calls make fields)
from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hfta_nb.models.study_argument import ALWAYS, CHANGED, ELSEWHERE, FIELD, SEARCH, Argument, advanced, basic

if TYPE_CHECKING:
    import torch

    from hfta_nb.models.losses import Loss
    from hfta_nb.search import PBT, Halving, Leader

T = TypeVar("T")

_WAYS = ("auto", "never", "always")


@dataclass(frozen=True, kw_only=True)
class StudyConfig:
    """What is asked of a study, but for its family, its grid, its data, and values of axes.

    Attributes:
        epochs: number of epochs; an epoch is a pass through the training data, or `steps_per_epoch` optimizer steps.
        batch_size: samples in a mini-batch, unless it is an axis.
        patience: a member stops after this many validations without improvement of `monitor`; None for never.
        monitor: the metric that decides which epoch is best: ``val_<metric>`` or ``val_loss``. By default the
            family's, or the task's first metric if it is a score, else "val_loss", which it is for a loss of your own
            on data of your own, too: whole numbers may be no classes. A list has several objectives: that metric first,
            then further metrics (at the best epoch), "parameters", "time_s" or "memory_bytes". Where it is not known
            which way a metric is better, its `Metric` has to say it.
        loss: function of one member's output and the target that returns a scalar, or one of `losses.NAMED` ("mse");
            replaces the family's. A function gets output and target as they are; where it compares ``[N, 1]`` with
            ``[N]`` by broadcasting, that is an error. By name, targets take the shape of the output.
        metrics: dict of names to functions of one member's output and the target (or to `Metric` or torchmetrics
            objects), or a list of functions or names; replaces the family's. In validation a function gets the whole
            set at once, in training each batch; see `Metric`.
        folds: cross-validation: how many folds, a splitter of scikit-learn's (stratified, repeated, of time series), or
            the splits, ``GroupKFold(5).split(x, y, groups)``. Each variant trains once per fold, which is an axis
            ``fold``; its validation samples are those that are held out. See docs/how_to/cross_validate.md.
        seed: seed of the order of the data.
        device: "cpu", "cuda", "cuda:1", ...; by default the GPU if there is one.
        precision: "fp32" computes in `dtype`. For float32 models also "tf32" (matrix products with 10-bit factors, on
            GPUs from compute capability 8.0) and "bf16" or "fp16" (torch's autocast; in fp16 each member has its own
            loss scale).
        directory: directory of the run; by default a new one under ``hfta_runs``.
        name: shown to people.
        trials: how many configurations to search for, of what `grid` allows: an axis may be `hfta_nb.uniform`,
            `hfta_nb.integers`, a list of values, or a distribution of Optuna's; or the whole of it a function of an
            Optuna trial that returns a configuration. An axis ``seed`` is not searched: each trial trains all seeds of
            the list, and counts by their mean. None to train the whole grid. Needs Optuna.
        sampler: what proposes trials: "tpe" (the default), "random", "grid", "qmc", "cmaes", "gp", or a sampler of
            Optuna's.
        pruner: what ends them early: "none" (the default), "median", "percentile", "asha", "hyperband", "wilcoxon",
            "patient", or a pruner of Optuna's. It is asked after each epoch with a validation.
        min_delta: an improvement by no more than this does not count for `patience`; the weights of the best epoch are
            kept all the same.
        validate_every: epochs from one validation to the next; the last epoch always has one. Only epochs with a
            validation can be the best.
        steps_per_epoch: optimizer steps of an epoch; the order of the data continues in the next. None for one pass
            through the training data. Data without end needs it; a `DataWarning` tells of 10,000 batches in one pass.
        validation_batch_size: samples in a mini-batch of validation: fewer take less memory, and only metrics that are
            a mean over mini-batches depend on it. None for `batch_size` (64 where that is an axis) on a CPU, 1024 on a
            GPU; `plan` shows it. A `DataLoader` and a function that yields batches have batches of their own.
        drop_last: leave out the last mini-batch of a pass if it is not full: batch norm can't train on a single sample.
        member_steps: optimizer steps after which a member ends, at the end of its epoch, even if `epochs` is not
            reached. None for no limit.
        member_seconds: the same in seconds of training (an array's members train at the same time). What ends then
            depends on the machine.
        keep_checkpoints: which weights of each member are kept: "best" (always), "last" (with which it ended; where it
            diverged or failed, those of its last finite validation) and "rungs" (after each epoch at which "asha",
            "hyperband" or a population decides); see `Result.module`.
        param_groups: function of a parameter's name and the plain module's parameter that returns the hyperparameters
            of its group: ``{"weight_decay": 0.0}``, or ``{"lr_scale": 0.1}`` for a tenth of the member's learning rate.
        dtype: dtype of parameters, activations and data: "float32", "float64" or "bfloat16", or torch's dtype of that
            name.
        padding: variants of different width, depth or activation share an array if at most this share of its parameters
            is padding; "auto" is half on a GPU and a quarter on a CPU, "never" keeps architectures apart.
        capacity: members per array: all that fit into the device's memory (None), at most a number, or the number that
            is measured to be fastest ("auto"). Results do not depend on it.
        checkpointing: activation checkpointing: "always", "never", or "auto", which uses it if more members fit with
            it. It costs a second forward and changes no result.
        cache_features: compute the outputs of frozen submodules that all members have in common once per sample, and
            keep them in a quarter of the free memory or in half of the free disk space: "auto" or "never". Only for
            data in memory without augmentation, and where these submodules draw no random numbers in training: dropout
            in them has to be 0, or the model keeps them in eval mode. `plan` says what is kept, or why not.
        compile: compile steps with `torch.compile`'s compiler: "never", "always", or "auto", which compiles if
            it is known to be faster and the run is long enough to pay. It takes seconds to minutes and changes
            rounding.
        strategy: how kernels are chosen: "measured" takes the fastest on this machine, which in float32 may round
            differently from the plain module's; "fixed" takes those that the plain module calls.
        deterministic: choose nothing by time. Two runs on the same machine then give the same bits. Slower: kernels
            are "fixed", block sizes are not tried, steps are not compiled. On a GPU kernels are also those of
            `torch.use_deterministic_algorithms`; torch warns of operators that have none.
        verify: when a member is compared with its plain module: "first" compares in the first call of each kind,
            "always" in all calls, which is slow, "never" in none. What differs runs member by member from then on, and
            an event `DifferenceFound` says so. See `FusedArray.verify`.
        devices: how many devices train each array together, each a part of every mini-batch: GPUs from `device` on, or
            processes on a CPU. Results are those of one device up to rounding, but for random numbers that a forward
            draws. See docs/how_to/data_parallel.md.
        devices_batch_norm: with several devices, "sync" takes the statistics of the whole mini-batch, as one device
            does; "local" those of each device's part.
        layout: what each of several devices has a part of: the "samples" of a mini-batch, or, in a "mesh" of 4, 9, ...
            devices, every matrix of the family transformer_lm, for models that don't fit one device.
        share_stream: arrays that read the same stream (a `Dataset`, `DataLoader` or function) take turns, batch by
            batch, as many as fit into memory: each batch is read once for all of them. Results do not depend on it.
            False to train one array after another, each with a stream of its own.
        serial: train the variants one after another as plain modules, without fusing.
        slots: how many trials train at the same time; at most 16 by default.
        constraint: from a configuration to whether it may be tried.
        seeds_by: what sampler and pruner see of a trial with several seeds: their "mean", or the "bound" of the mean on
            its worse side, one standard error away (the lower confidence bound where more is better).
        storage: where Optuna keeps the trials of a search: a URL (``"sqlite:///trials.db"``) or a storage object of
            Optuna's, under the study's `name`. Processes that name the same storage and study search together, each
            with `trials` of its own and its own `directory`. None for the run's directory alone.
        skip_duplicates: a search tries no configuration twice, and ends when a finite space is exhausted.
        timeout: seconds of a run after which a search asks for no more trials; those that train finish.
        population: lets members depend on each other while they train: `hfta_nb.PBT` and `hfta_nb.Halving` replace the
            worst by copies, `hfta_nb.Leader` pulls all toward the best. None for none.
    """

    epochs: int = basic(
        20, ALWAYS, "passes through the data (default: 20)", "N", low=1, form=FIELD, free=True, speed=False,
        aliases={"give Study(..., epochs=20)": "max_epochs num_epochs n_epochs num_train_epochs"},
    )  # fmt: skip
    batch_size: int | None = basic(
        None, ELSEWHERE, "samples in a mini-batch (default: the family's, usually 64)", "N", form=FIELD
    )
    patience: int | None = basic(
        None, ALWAYS, "stop a variant after N validations without improvement", "N", low=1, form=FIELD, none="never",
        speed=False,
        aliases={
            "Study(..., patience=5) ends a member after 5 validations without improvement":
            "early_stopping early_stop early_stopping_patience early_stopping_rounds",
            "give Study(..., patience=5)": "n_iter_no_change es_patience stop_patience",
        },
    )  # fmt: skip
    monitor: str | Sequence[str] | None = basic(
        None, ALWAYS, "the metric that decides which epoch is best", "METRIC", speed=False,
        aliases={
            'give Study(..., monitor="val_accuracy"); which way is better, hfta_nb.Metric(f, maximize=True) says of f':
            "direction directions mode objective metric scoring metric_for_best_model greater_is_better",
        },
    )  # fmt: skip
    loss: Loss | str | None = basic(
        None,
        aliases={
            "give Study(..., loss=...)": "criterion loss_fn loss_function",
            "give Study(..., loss=nn.BCEWithLogitsLoss(pos_weight=...))": "pos_weight",
            "give them with the targets, (x, (y, weight)), and a loss of both: Study(..., loss=...)":
            "sample_weight sample_weights",
        },
    )  # fmt: skip
    metrics: Any = basic(None)
    folds: Any = basic(
        None, CHANGED, "train each variant on each of N folds (cross-validation)", "N", form=FIELD, none="none",
        aliases={"give Study(..., folds=5), or a splitter": "cv kfold n_splits n_folds num_folds k_fold splitter"},
    )  # fmt: skip
    seed: int = basic(0, ALWAYS, "seed of the order of the data (default: 0)", "N", low=0, form=FIELD, speed=False)
    device: str | torch.device | None = basic(
        None, ALWAYS, "where to train: cpu, cuda, cuda:1 (default: the GPU if there is one)", "NAME", form=FIELD,
        free=True, aliases={'give Study(..., device="cuda")': "gpus accelerator"},
    )  # fmt: skip
    precision: str = basic(
        "fp32", ALWAYS, "precision of float32 models; bf16 and fp16 are autocast (default: fp32)",
        choices=("fp32", "tf32", "bf16", "fp16"), form=FIELD,
        aliases={
            'give Study(..., precision="bf16")': "amp use_amp mixed_precision bf16 half autocast",
            'give Study(..., precision="fp16")': "fp16",
        },
    )  # fmt: skip
    directory: str | Path | None = basic(
        None, key=True, aliases={"give Study(..., directory=...)": "output_dir save_dir log_dir default_root_dir"}
    )
    name: str | None = basic(
        None, ALWAYS, key=True, free=True, speed=False,
        aliases={'give Study(..., name="...")': "study_name run_name experiment_name"},
    )  # fmt: skip
    trials: int | None = basic(
        None, low=1, key=True, search=True, free=True, form=SEARCH, none="all",
        aliases={"give Study(..., trials=20)": "n_trials num_trials num_samples n_iter"},
    )  # fmt: skip
    sampler: Any = basic(None, key=True, search=True, form=SEARCH)
    pruner: Any = basic(None, key=True, search=True, form=SEARCH)
    min_delta: float = advanced(
        0.0, CHANGED, "improvements by no more than X are none for --patience", "X", low=0,
        aliases={
            "Study(..., patience=5, min_delta=0.001) counts smaller improvements as none":
            "early_stopping_min_delta early_stopping_threshold tolerance min_improvement tol threshold",
        },
    )  # fmt: skip
    validate_every: int = advanced(
        1, ALWAYS, "validate after every N-th epoch and after the last one (default: 1)", "N", low=1, form=FIELD,
        speed=False,
        aliases={
            "give Study(..., validate_every=5), in epochs":
            "check_val_every_n_epoch val_check_interval eval_strategy evaluation_strategy eval_steps",
        },
    )  # fmt: skip
    steps_per_epoch: int | None = advanced(
        None, ALWAYS, "an epoch is N optimizer steps instead of a pass through the data", "N", low=1, form=FIELD,
        none="all data", aliases={"give Study(..., steps_per_epoch=100)": "limit_train_batches steps_per_execution"},
    )  # fmt: skip
    validation_batch_size: int | None = advanced(
        None, CHANGED, "samples in a mini-batch of validation (default: as in training; 1024 on a GPU)", "N", low=1,
        aliases={
            "give Study(..., validation_batch_size=256)":
            "val_batch_size valid_batch_size eval_batch_size test_batch_size per_device_eval_batch_size",
        },
    )  # fmt: skip
    drop_last: bool = advanced(
        False, CHANGED, "leave out the last mini-batch of a pass if it is not full",
        aliases={"give Study(..., drop_last=True)": "drop_remainder"},
    )  # fmt: skip
    member_steps: int | None = advanced(
        None, CHANGED, "end a variant at the end of the epoch in which it has had N optimizer steps", "N", low=1,
        aliases={
            "Study(..., member_steps=1000) ends a member after so many steps, at the end of its epoch":
            "max_steps num_steps total_steps max_iter steps n_steps iterations num_iterations num_train_steps "
            "max_train_steps",
        },
    )  # fmt: skip
    member_seconds: float | None = advanced(
        None, CHANGED, "the same in seconds of training", "S", above=0,
        aliases={
            "Study(..., member_seconds=600) ends a member after so many seconds of training, timeout=600 a search":
            "timeout max_time time_limit max_seconds time_budget_s time_budget max_runtime max_time_s walltime "
            "max_duration",
        },
    )  # fmt: skip
    keep_checkpoints: str | Sequence[str] = advanced(
        ("best",), CHANGED,
        "weights to keep of each variant besides its best: those with which it ended, and at each rung", "KIND",
        choices=("best", "last", "rungs"), speed=False,
    )  # fmt: skip
    param_groups: Callable[..., Any] | None = advanced(None)
    dtype: str | torch.dtype = advanced(
        "float32", ALWAYS, "dtype of parameters and data (default: float32)",
        choices=("float32", "float64", "bfloat16"), form=FIELD,
    )  # fmt: skip
    padding: float | str = advanced(
        "auto", ALWAYS,
        "largest share of padding of an array of unlike architectures: never, auto, or a number (default: auto)",
        "SHARE", form=FIELD,
    )  # fmt: skip
    capacity: int | str | None = advanced(
        None, ALWAYS, "members per array: at most a number, or auto for the fastest (default: all that fit)", "N",
        form=FIELD, none="all that fit",
    )  # fmt: skip
    checkpointing: str = advanced(
        "auto", ALWAYS, "recompute activations in the backward to fit more members (default: auto)",
        choices=_WAYS, form=FIELD,
    )  # fmt: skip
    cache_features: str = advanced(
        "auto", CHANGED,
        "compute outputs of frozen submodules once per sample; auto: where all members have them in common "
        "(default: auto)",
        choices=("auto", "never"), form=FIELD,
    )  # fmt: skip
    compile: str = advanced(
        "auto", ALWAYS, "compile steps; auto: if that is faster and pays in this run (default: auto)",
        choices=_WAYS, form=FIELD,
    )  # fmt: skip
    strategy: str | None = advanced(
        None, ALWAYS,
        "kernels: the fastest on this machine, or those of the plain module (default: measured)",
        choices=("measured", "fixed"),
    )  # fmt: skip
    deterministic: bool = advanced(False, ALWAYS, "choose nothing by time: runs give the same bits on a CPU")
    verify: str = advanced(
        "first", ALWAYS,
        "when a member is compared with its plain module: in the first call of each kind (default), always or never",
        choices=("first", "always", "never"),
    )  # fmt: skip
    devices: int = advanced(
        1, ALWAYS, "train each array on N devices: GPUs from --device on, or processes on the CPU (default: 1)", "N",
        low=1,
    )  # fmt: skip
    devices_batch_norm: str = advanced("sync", ALWAYS, choices=("sync", "local"))
    layout: str = advanced("samples", ALWAYS, choices=("samples", "mesh"))
    share_stream: bool = advanced(True, ALWAYS)
    serial: bool = advanced(False, ALWAYS, "train one variant after another, without fusing")
    slots: int | None = advanced(
        None, low=1, key=True, search=True, form=SEARCH, none="auto",
        aliases={
            "leave it out: variants train together in one process; a search trains Study(..., slots=8) trials at once":
            "n_jobs max_concurrent_trials resources_per_trial",
        },
    )  # fmt: skip
    constraint: Callable[[Mapping[str, Any]], bool] | None = advanced(None, search=True)
    seeds_by: str = advanced("mean", choices=("mean", "bound"), key=True, search=True, form=SEARCH)
    storage: Any = advanced(None, key=True, search=True)
    skip_duplicates: bool = advanced(False, key=True, search=True)
    timeout: float | None = advanced(None, above=0, key=True, search=True, free=True)
    population: PBT | Halving | Leader | None = advanced(None, form=SEARCH)

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> StudyConfig:
        """The arguments among these names."""
        return cls(**{name: given[name] for name in ARGUMENTS})


ARGUMENTS: dict[str, Argument] = {
    found.name: replace(found.metadata["argument"], type=str(found.type)) for found in fields(StudyConfig)
}
"""All arguments, by name; the basic ones come first."""

RENAMED = {"across": "padding"}
"""Arguments by the names that they had before 0.1; these go with the next release."""

FREE = [name for name, known in ARGUMENTS.items() if known.free]
"""Those of which a run may go on with another value: epochs and trials may be added, a time limit is of one run, a
device is where it runs, and a name is for people."""

FLAGS = [name for name, known in ARGUMENTS.items() if known.hint]
"""Those with an option on the command line."""

KEYS = [name for name, known in ARGUMENTS.items() if known.hint or known.key]
"""Those that a file for `hfta-nb tune` may have."""


OTHER_NAMES = {
    name: remedy for known in ARGUMENTS.values() for remedy, names in known.aliases.items() for name in names.split()
}
"""What is said of names that other libraries have for arguments, where one is taken for an axis."""


def by_new_names(given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments under the names that they have now."""
    return {RENAMED.get(name, name): value for name, value in given.items()}


def helps() -> dict[str, str]:
    """What each argument means, as the docstring of `StudyConfig` says it."""
    described = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", _attributes(), re.M)
    return {name: " ".join(text.split()) for name, text in described}


def documented(of: type[T]) -> type[T]:
    """A class that takes these arguments: its docstring gets theirs, before its `fixed`."""
    if of.__doc__:  # Python keeps none where it is started with -OO
        of.__doc__ = inspect.cleandoc(of.__doc__).replace("\n    fixed: ", f"\n{_attributes()}\n    fixed: ", 1)
    return of


def _attributes() -> str:
    return inspect.cleandoc(StudyConfig.__doc__ or "").partition("Attributes:\n")[2]
