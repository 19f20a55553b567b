"""The axes that every family has: those of the optimizer, the lr scheduler, the batches and the seeds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from hfta_nb.search.grid import AxisSpec


class Choice(NamedTuple):
    """A value of the axis "optimizer" or "lr_scheduler".

    Attributes:
        name: of the class, here and in torch.
        axes: what has an effect with it, beside the axes that always have.
        beside: the optimizer of the parameters that it does not take, by its value; None where it takes all.
    """

    name: str
    axes: tuple[str, ...] = ()
    beside: str | None = None


_DECAY = ("weight_decay",)
_ADAM = ("beta1", "beta2", "eps")

OPTIMIZERS = {
    "sgd": Choice("SGD", (*_DECAY, "momentum", "nesterov")),
    "adam": Choice("Adam", (*_DECAY, *_ADAM)),
    "adamw": Choice("AdamW", (*_DECAY, *_ADAM)),
    "nadam": Choice("NAdam", (*_DECAY, *_ADAM)),
    "radam": Choice("RAdam", (*_DECAY, *_ADAM)),
    "adamax": Choice("Adamax", (*_DECAY, *_ADAM)),
    "rmsprop": Choice("RMSprop", (*_DECAY, "momentum", "eps")),
    "adagrad": Choice("Adagrad", _DECAY),
    "adadelta": Choice("Adadelta", _DECAY),
    "adafactor": Choice("Adafactor", _DECAY),
    "asgd": Choice("ASGD", _DECAY),
    "muon": Choice("Muon", _DECAY, beside="adamw"),
    "rowwise_adagrad": Choice("RowwiseAdagrad", beside="adagrad"),
    "rprop": Choice("Rprop"),
    "sparse_adam": Choice("SparseAdam", _ADAM),
    "lbfgs": Choice("LBFGS"),
}
"""By the axis's value; its axes are arguments of the class, by the same names but for ``betas``.

Muon takes matrices, all but embeddings; row-wise Adagrad takes embeddings. Other settings have torch's defaults:
rmsprop's alpha, adadelta's rho and eps,
nadam's momentum decay, ...
"""

_LOWEST = ("eta_min", "min_lr")

LR_SCHEDULERS = {
    "step": Choice("StepLR", ("step_size", "gamma")),
    "cosine": Choice("CosineAnnealingLR", ("t_max", *_LOWEST)),
    "exponential": Choice("ExponentialLR", ("gamma",)),
    "linear": Choice("LinearLR", ("t_max",)),
    "cosine_restarts": Choice("CosineAnnealingWarmRestarts", ("t_max", *_LOWEST)),
    "polynomial": Choice("PolynomialLR", ("t_max", "power")),
    "onecycle": Choice("OneCycleLR", ("pct_start",)),
    "sequential": Choice("SequentialLR", ("step_size", *_LOWEST)),
    "multistep": Choice("MultiStepLR", ("milestones", "gamma")),
    "constant": Choice("ConstantLR", ("step_size", "gamma")),
    "cyclic": Choice("CyclicLR", ("step_size", *_LOWEST)),
    "plateau": Choice("ReduceLROnPlateau", ("gamma", "plateau_patience", *_LOWEST)),
}
"""By the axis's value, which may also be "none". `train/step/choices.py` says what each class is given."""


def _classes(choices: Mapping[str, Choice]) -> dict[str, str]:
    """Names of torch's classes, which are accepted as aliases."""
    return {choice.name.lower(): value for value, choice in choices.items()}


_AXES = [
    AxisSpec("lr", "float", 1e-3, low=0.0, help="Learning rate."),
    AxisSpec("optimizer", "str", "adam", tuple(OPTIMIZERS), help="The optimizer.", aliases=_classes(OPTIMIZERS)),
    AxisSpec("weight_decay", "float", 0.0, low=0.0, help="L2 penalty; for adamw, decoupled decay."),
    AxisSpec("momentum", "float", 0.0, low=0.0, help="Momentum of sgd and rmsprop."),
    AxisSpec("nesterov", "bool", False, help="Nesterov momentum, for sgd."),
    AxisSpec("beta1", "float", 0.9, low=0.0, high=1.0, help="First beta of adam and its variants."),
    AxisSpec("beta2", "float", 0.999, low=0.0, high=1.0, help="Second beta of adam and its variants."),
    AxisSpec("eps", "float", 1e-8, low=0.0, help="Epsilon of adam and its variants, and of rmsprop."),
    AxisSpec(
        "decay_on",
        "str",
        "all",
        ("all", "weights"),
        help="What weight decay applies to: all parameters, or weights only (no norms, no biases).",
    ),
    AxisSpec(
        "max_norm",
        "float",
        None,
        low=0.0,
        help="Largest norm of a member's gradient; longer ones are clipped.",
    ),
    AxisSpec(
        "lr_scheduler",
        "str",
        "none",
        ("none", *LR_SCHEDULERS),
        help="How lr changes: each epoch; with warmup_steps, and for onecycle and cyclic, each optimizer step; for "
        "plateau, when the monitored metric has stopped improving.",
        aliases=_classes(LR_SCHEDULERS),
    ),
    AxisSpec(
        "warmup_steps",
        "int",
        None,
        low=0,
        help="Optimizer steps in which lr rises from near 0, before the schedule; it then goes on with every step.",
    ),
    AxisSpec(
        "step_size",
        "int",
        10,
        low=1,
        help="Epochs between two drops of lr, for step; of the warm-up before a cosine, for sequential; of "
        "the changed lr, for constant; in which lr rises, and then falls, for cyclic.",
    ),
    AxisSpec(
        "gamma",
        "float",
        0.1,
        low=0.0,
        help="Factor of each drop of lr, for step, multistep and plateau; of each epoch, for exponential; in the first "
        "step_size epochs, for constant.",
    ),
    AxisSpec(
        "milestones",
        "integers",
        None,
        low=1,
        help="Epochs after which lr drops, for multistep, as [30, 60] or 30/60; half and three quarters of the run by "
        "default.",
    ),
    AxisSpec(
        "plateau_patience",
        "int",
        10,
        low=0,
        help="Validations without an improvement of the monitored metric after which lr drops, for plateau.",
    ),
    AxisSpec(
        "t_max",
        "int",
        None,
        low=1,
        help="Epochs of the cosine, of one before it restarts, or of the way to 0; all by default.",
    ),
    AxisSpec("eta_min", "float", 0.0, low=0.0, help="Lowest lr: of a cosine, cyclic and plateau."),
    AxisSpec("min_lr", "float", None, low=0.0, help="Lowest lr; eta_min by default."),
    AxisSpec(
        "pct_start",
        "float",
        0.3,
        low=0.0,
        high=1.0,
        help="Part of the run in which lr rises, for onecycle.",
    ),
    AxisSpec("power", "float", 1.0, low=0.0, help="Of the way to 0, for polynomial."),
    AxisSpec("batch_size", "int", 64, low=1, help="Samples in a mini-batch."),
    AxisSpec(
        "accumulate_grad_batches",
        "int",
        1,
        low=1,
        help="Mini-batches whose gradients make one optimizer step, by their mean; the last ones of an epoch step too, "
        "each with the same weight. Steps that a study counts are mini-batches.",
    ),
    AxisSpec(
        "ema_decay",
        "float",
        None,
        low=0.0,
        high=1.0,
        help="Decay of an exponential moving average of the weights, updated after each optimizer step. The averages "
        "are what is validated, kept and taken home.",
    ),
    AxisSpec("seed", "int", 0, low=0, help="Seed of the initialisation and of the member's random numbers."),
    AxisSpec("data_seed", "int", None, low=0, help="Seed of the order of the data; the study's by default."),
]

TRAINING_AXES: dict[str, AxisSpec] = {a.name: a for a in _AXES}
"""Axes that every family has: those of the optimizer, the lr scheduler, the batches and the seeds."""


def _users(axis: str, choices: Mapping[str, Choice]) -> dict[str, tuple[str, frozenset[str]]]:
    """By the name of an axis, the values of `axis` with which it has an effect."""
    found: dict[str, set[str]] = {}
    for value, choice in choices.items():
        for name in (*choice.axes, *(choices[choice.beside].axes if choice.beside else ())):
            found.setdefault(name, set()).add(value)
    return {name: (axis, frozenset(values)) for name, values in found.items()}


_OF_OPTIMIZERS = _users("optimizer", OPTIMIZERS)

USED_BY: dict[str, tuple[str, frozenset[str]]] = {
    **_OF_OPTIMIZERS,
    "decay_on": _OF_OPTIMIZERS["weight_decay"],
    **_users("lr_scheduler", LR_SCHEDULERS),
}
"""Axes that have no effect unless another axis has one of these values."""

ALIASES = {
    **dict.fromkeys(
        ("learning_rate", "learningrate", "eta", "base_lr", "initial_lr", "max_lr", "lrs", "learning_rate_init"), "lr"
    ),
    **dict.fromkeys(("wd", "decay", "l2", "weightdecay", "l2_reg"), "weight_decay"),
    **dict.fromkeys(
        ("grad_clip", "clip", "clip_grad", "grad_norm", "max_grad_norm", "gradient_clip_val", "grad_clip_norm",
         "clip_norm", "clip_grad_norm", "clip_grad_norm_", "gradient_clip", "gradient_clipping", "clipnorm"),
        "max_norm",
    ),
    **dict.fromkeys(
        ("bs", "batch", "batchsize", "minibatch_size", "train_batch_size", "per_device_train_batch_size"), "batch_size"
    ),
    **dict.fromkeys(
        ("gradient_accumulation_steps", "grad_accum", "grad_accumulation", "accumulation_steps", "accumulate_grad",
         "grad_accum_steps", "accum_iter", "update_freq", "gradient_accumulation", "accumulate_grad_steps",
         "accumulation", "n_accumulate", "iter_size", "grad_acc_steps", "accumulate"),
        "accumulate_grad_batches",
    ),
    **dict.fromkeys(
        ("ema", "use_ema", "model_ema", "model_ema_decay", "ema_momentum", "ema_rate", "ema_alpha", "polyak",
         "polyak_decay", "weight_averaging", "averaging"),
        "ema_decay",
    ),
    **dict.fromkeys(("opt", "optim", "optimiser"), "optimizer"),
    **dict.fromkeys(("scheduler", "schedule", "lr_schedule", "sched", "lr_decay", "lr_scheduler_type"), "lr_scheduler"),
    **dict.fromkeys(("warmup", "num_warmup_steps", "warmup_iters", "warm_up", "warmup_iterations"), "warmup_steps"),
    **dict.fromkeys(("lr_min", "final_lr", "end_lr"), "min_lr"),
    **dict.fromkeys(("epsilon", "adam_epsilon"), "eps"),
    **dict.fromkeys(("betas", "adam_beta1", "b1"), "beta1"),
    **dict.fromkeys(("adam_beta2", "b2"), "beta2"),
    **dict.fromkeys(("random_seed", "random_state", "seeds", "manual_seed"), "seed"),
    **dict.fromkeys(("no_decay", "no_weight_decay", "bias_decay", "decay_norms"), "decay_on"),
    **dict.fromkeys(("smoothing", "label_smoothing_factor", "label_smooth", "smooth", "ls"), "label_smoothing"),
    **dict.fromkeys(("class_weights", "classweight", "classweights"), "class_weight"),
    **dict.fromkeys(("focal", "focusing", "focal_loss"), "focal_gamma"),
    **dict.fromkeys(("logit_adjustment", "logit_adjust"), "tau"),
}  # fmt: skip
"""Other common names of an axis."""

NOT_AXES = {
    **dict.fromkeys(
        ("fixed", "config", "constants", "params"), "give constants by keyword, as in Study(..., batch_size=32)"
    ),
    **dict.fromkeys(
        ("restore_best_weights", "load_best_model_at_end", "save_best_only", "save_top_k", "checkpoint_best", "refit",
         "restore_best", "load_best", "keep_best", "best_model"),
        "leave it out: the weights of the best epoch are kept, and study.best().module() has them",
    ),
    **dict.fromkeys(("swa", "use_swa", "swa_lr", "swa_start"), "Study(..., ema_decay=0.999) averages the weights"),
    **dict.fromkeys(
        ("val_split", "validation_split", "test_size", "val_size"),
        "hfta_nb.data.from_tensors(x, y, validation=0.2) says how many samples are held out",
    ),
    **dict.fromkeys(("shuffle", "num_workers", "pin_memory", "collate_fn"), "give the data as a DataLoader with it"),
    **dict.fromkeys(("callbacks", "callback", "logger"), "give study.fit(on_event=...)"),
    **dict.fromkeys(
        ("resume", "load_if_exists", "resume_from_checkpoint", "ckpt_path"),
        "study.fit(resume=True) carries on with the run in directory=...",
    ),
    **dict.fromkeys(
        ("param_grid", "param_distributions", "search_space", "param_space", "space"),
        "the grid is the second argument: Study(build, grid, data)",
    ),
    "fold": "give Study(..., folds=5), which makes the axis",
    **dict.fromkeys(
        ("train_loader", "val_loader", "train_dataloaders", "val_dataloaders", "validation_data", "val_data",
         "eval_dataset", "train_dataset", "dataset"),
        "the data is the third argument: Study(build, grid, (train, validation))",
    ),
    **dict.fromkeys(
        ("hidden_size", "hidden_dim", "hidden", "width", "depth", "num_layers", "n_layers", "dropout"),
        "make it a parameter of the function that builds the model",
    ),
    "catch": "leave it out: a trial that fails is marked as failed, and the others go on",
    "warmup_ratio": "give warmup_steps, a number of optimizer steps",
    "verbose": "give study.fit(progress=False)",
}  # fmt: skip
"""What is meant where names of other libraries are taken for an axis; arguments of a study have theirs in
`study_config.OTHER_NAMES`."""
