"""Checks of a study's arguments."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ParamSpec, TypeVar

import torch

from hfta_nb import data as datasets
from hfta_nb.data import AnyData, Stream
from hfta_nb.engine.array.access import warn
from hfta_nb.errors import DeviceError, OptimError, StudyError
from hfta_nb.errors.border import FLAG, FUNCTION, PATH, Kind, number, one_of, whole
from hfta_nb.models import study_config
from hfta_nb.models.losses import Loss
from hfta_nb.models.metrics import of_numbers
from hfta_nb.models.model_zoo import family
from hfta_nb.models.recipes import Family, from_callable, with_own
from hfta_nb.models.study_argument import ELSEWHERE, Argument
from hfta_nb.models.study_config import ARGUMENTS, StudyConfig
from hfta_nb.search import COSTS
from hfta_nb.train.plan import MOST_PADDING, Group
from hfta_nb.train.step import by_step
from hfta_nb.train.step.choices import factory_of

P = ParamSpec("P")
R = TypeVar("R")


def _kind(known: Argument) -> Kind | None:
    """What an argument may be, as far as its type, its choices and its range say it."""
    bare = known.bare_type
    word = one_of(*known.choices) if known.choices and bare == "str" else _number(known) if known.range else None
    kind = FLAG if bare == "bool" else FUNCTION if bare.startswith("Callable") else word
    return kind.or_none if kind is not None and bare != known.type else kind


def _number(known: Argument) -> Kind:
    """A number in an argument's range."""
    is_one = whole if known.bare_type == "int" else number
    if known.low == 1 and is_one is whole:
        what, accepted = "not a positive whole number", "1, 2, 3, ..."
    else:
        what = f"not a {'whole ' if is_one is whole else ''}number {known.range}"
        accepted = f"{'whole ' if is_one is whole else ''}numbers {known.range}"
    return Kind(what, accepted, lambda value: is_one(value) and known.has_in_range(value))


KINDS = {
    **{name: kind for name, known in ARGUMENTS.items() if (kind := _kind(known)) is not None},
    "name": Kind("not a name", "a text", lambda v: isinstance(v, str)).or_none,
    "device": Kind("not a device", "cpu, cuda, cuda:0, ...", lambda v: isinstance(v, str | torch.device)).or_none,
    "dtype": Kind("unknown dtype", ", ".join(ARGUMENTS["dtype"].choices), lambda v: isinstance(v, str | torch.dtype)),
    "precision": replace(one_of(*ARGUMENTS["precision"].choices), what="unknown precision"),
    "directory": Kind("not a directory", "a path, or None for a new one", lambda v: not v or PATH.test(v)).or_none,
    "capacity": Kind("not a number of members", "1, 2, 3, ..., auto or None",
                     lambda v: whole(v) or v == "auto").or_none,
    "padding": Kind("unknown choice", "auto, never, or the share of padding, from 0 to 1",
                   lambda v: number(v) or isinstance(v, str)),
    "seed": replace(_number(ARGUMENTS["seed"]), what="not a seed", accepted="whole numbers from 0 to below 2**63; "
                    "to train each variant with several seeds, make seed an axis of the grid"),
    "min_delta": replace(_number(ARGUMENTS["min_delta"]), what="not a difference"),
    **{name: replace(_number(ARGUMENTS[name]), what="not a time", accepted="seconds, above 0").or_none
       for name in ("member_seconds", "timeout")},
}  # fmt: skip
"""What a study's arguments may be; the rest of this module says which values go together, and with the data."""


def family_of(
    given: Any, loss: Loss | str | None = None, metrics: Any = None, param_groups: Callable[..., Any] | None = None
) -> Family:
    """The family, with the study's own loss, metrics and parameter groups."""
    found = given if isinstance(given, Family) else family(given) if isinstance(given, str) else from_callable(given)
    return with_own(found, loss, metrics, param_groups)


def positive(where: str, value: Any) -> int:
    """A whole number from 1, which may be an integer of NumPy's."""
    if not whole(value) or operator.index(value) < 1:
        raise StudyError("not a positive whole number", where=where, got=value, accepted="1, 2, 3, ...")
    return operator.index(value)


def by_new_names(make: Callable[P, R]) -> Callable[P, R]:
    """A constructor that takes arguments by the names that they had before, too, and warns."""

    @functools.wraps(make)
    def made(*args: P.args, **kwargs: P.kwargs) -> R:
        for old in study_config.RENAMED.keys() & kwargs.keys():
            new = study_config.RENAMED[old]
            if new in kwargs:
                raise StudyError(f"is {new} now, which is given too", where=old, remedy=f"leave {old} out")
            warn(f"Study({old}=...) is Study({new}=...) now", DeprecationWarning)
        return make(*args, **study_config.by_new_names(kwargs))

    return made


def own_numbers(config: StudyConfig) -> StudyConfig:
    """The same arguments, in which numbers with a range are Python's own: NumPy's and torch's are accepted as well."""
    given = {name: getattr(config, name) for name, known in ARGUMENTS.items() if known.range}
    made: dict[str, Any] = {
        name: operator.index(value) if ARGUMENTS[name].bare_type == "int" else float(value)
        for name, value in given.items()
        if value is not None
    }
    return replace(config, **made)


def as_given(config: StudyConfig) -> dict[str, Any]:
    """The arguments that a study has as attributes and saves, by name."""
    return {name: getattr(config, name) for name, known in ARGUMENTS.items() if known.saved != ELSEWHERE}


def check_data(config: StudyConfig, data: AnyData) -> None:
    """See that an epoch has an end, and that a batch size of validation is used.

    Raises:
        StudyError: the data has neither an end nor steps of an epoch, or has validation batches of its own.
    """
    if config.steps_per_epoch is None and isinstance(data, Stream) and data.endless:
        raise StudyError(
            f"{data.name} never ends, so its first epoch would not either",
            where="steps_per_epoch",
            got=None,
            accepted="1, 2, 3, ...",
            remedy="say how many optimizer steps make an epoch, for example steps_per_epoch=500",
        )
    given = config.validation_batch_size
    if given is not None and isinstance(data, Stream) and not data.validation.takes_batch_size:
        remedy = "leave it out, or set it where the batches are made: DataLoader(..., batch_size=...)"
        raise StudyError(f"{data.name} has validation batches of its own size", where="validation_batch_size",
                         got=given, remedy=remedy)  # fmt: skip


def capacity_of(given: Any) -> int | str | None:
    """Members per array: at most a number, all that fit (None), or the fastest number ("auto")."""
    if given is None or given == "auto":
        return given  # type: ignore[no-any-return]
    if not whole(given) or operator.index(given) < 1:
        remedy = "leave it out for as many as fit"
        raise StudyError("not a number of members", where="capacity", got=given, accepted="1, 2, 3, ..., auto or None",
                         remedy=remedy)  # fmt: skip
    return operator.index(given)


def devices_of(given: Any, device: torch.device) -> int:
    """How many devices train each array."""
    count = positive("devices", given)
    if device.type == "cuda" and count > 1:
        there = torch.cuda.device_count() - (device.index or 0)
        if count > there:
            raise DeviceError("not so many GPUs", where="devices", got=count, accepted=f"1 to {there} from {device} on")
    return count


def layout_of(layout: str, devices: int, family: str) -> str:
    """What each of several devices has a part of.

    Raises:
        StudyError: a mesh of devices that make no square, or of another family.
    """
    if layout == "mesh" and (devices < 4 or math.isqrt(devices) ** 2 != devices):
        raise StudyError("devices that make no square", where='devices, layout="mesh"', got=devices,
                         accepted="4, 9, 16, ...")  # fmt: skip
    if layout == "mesh" and family != "transformer_lm":
        raise StudyError("a family without blocks", where='layout="mesh"', got=family, accepted="transformer_lm",
                         remedy='layout="samples"')  # fmt: skip
    return layout


def strategy_of(config: StudyConfig) -> str:
    """How kernels are chosen; "fixed" in a deterministic study.

    Raises:
        StudyError: it, or another choice, times something in a deterministic study.
    """
    if not config.deterministic:
        return config.strategy or "measured"
    for name, timed in (("strategy", "measured"), ("capacity", "auto"), ("compile", "always")):
        if getattr(config, name) == timed:
            raise StudyError("chooses by time, which deterministic=True rules out", where=name, got=timed,
                             remedy=f"leave {name} out, or deterministic")  # fmt: skip
    return "fixed"


def dtype_of(given: str | torch.dtype) -> torch.dtype:
    """The dtype of a name, or of torch's object."""
    name = str(given).removeprefix("torch.") if isinstance(given, torch.dtype) else given
    known = ARGUMENTS["dtype"].choices
    if name not in known:
        remedy = "for float16 use precision='fp16', which scales the loss" if name in ("float16", "half") else ""
        raise StudyError("unknown dtype", where="dtype", got=given, accepted=", ".join(known), remedy=remedy)
    return getattr(torch, str(name))  # type: ignore[no-any-return]


def check_schedules(groups: Sequence[Group], epochs: int, steps_per_epoch: int | None, data: AnyData) -> None:
    """Check that every member's lr schedule can be made for a run of this length.

    Raises:
        StudyError: a schedule counts optimizer steps and the steps of an epoch are unknown, or it does not fit the run.
    """
    for group in groups:
        for variant, row in zip(group.variants, group.rows, strict=True):
            if not by_step(row):
                break  # an array's members are alike in that
            try:
                factory_of(row, epochs, steps_per_epoch or data.batches_for(row))
            except OptimError as error:
                raise StudyError(error.what, where=f"{error.where} of {variant.label}", got=row["warmup_steps"],
                                 accepted=error.accepted, remedy=error.remedy) from error  # fmt: skip


def fixed_of(fixed: dict[str, Any], batch_size: int | None, axes: Mapping[str, Any]) -> dict[str, Any]:
    """Values of axes that are not in the grid, the batch size among them where it was given."""
    return fixed if batch_size is None or "batch_size" in axes else {**fixed, "batch_size": batch_size}


def check_patience(config: StudyConfig) -> None:
    """See that a least improvement has something to be compared with.

    Raises:
        StudyError: it is given without patience.
    """
    if config.min_delta and config.patience is None:
        remedy = "give it with patience, as in Study(..., patience=5, min_delta=0.001)"
        raise StudyError("has no effect without patience", where="min_delta", got=config.min_delta, remedy=remedy)


def padding_of(given: float | str, device: torch.device, search: bool = False) -> float | str:
    """The largest share of padding, or "never".

    Args:
        search: trials of any size come to train together, for which an array that is there is worth more padding.
    """
    if given == "auto" and search:
        return MOST_PADDING["search"]
    if given == "auto":
        return MOST_PADDING["cuda" if device.type == "cuda" else "cpu"]
    number = isinstance(given, int | float) and not isinstance(given, bool)
    if given != "never" and not (number and 0 <= float(given) < 1):
        raise StudyError(
            "unknown choice", where="padding", got=given, accepted="auto, never, or the share of padding, from 0 to 1"
        )
    return given


def device_of(name: str | torch.device | None) -> torch.device:
    if name is None:
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise DeviceError("unknown device", where="device", got=name, accepted="cpu, cuda, cuda:0, ...") from None
    if device.type not in ("cpu", "cuda"):
        raise DeviceError("not supported", where="device", got=name, accepted="cpu, cuda")
    if device.type == "cuda":
        count = torch.cuda.device_count()
        index = device.index or 0
        if index >= count:
            raise DeviceError("no such GPU", where="device", got=name, accepted=f"{count} found", remedy="use cpu")
        return torch.device("cuda", index)
    if device.index:
        raise DeviceError("there is one CPU", where="device", got=name, accepted="cpu")
    return device


def objectives_of(family: Family, data: AnyData, given: Any) -> tuple[tuple[str, bool], ...]:
    """The objectives: the metric that decides which epoch is best, then further metrics or costs.

    Returns:
        The name of each, and whether more of it is better.

    Raises:
        StudyError: one of them is unknown or given twice, or the first is no metric.
    """
    metrics = family.metrics_for(data)
    known: dict[str, bool | None] = {"val_loss": False, **{f"val_{p.score}": False for p in family.phases}}
    known |= {f"val_{n}": m.maximizes for n, m in metrics.items()}
    costs: dict[str, bool | None] = dict.fromkeys(COSTS, False)
    names = [given] if given is None or isinstance(given, str) else given
    if not isinstance(names, list | tuple) or not names:
        raise StudyError("not a metric or a list of objectives", where="monitor", got=given, accepted=", ".join(known))
    for place, name in enumerate(names):
        accepted = known | costs if place else known
        if name is not None and (not isinstance(name, str) or name not in accepted):
            what = "the first objective decides which epoch is best, so it is a metric"
            what = what if isinstance(name, str) and name in costs else ""
            raise StudyError(what or "unknown metric", where="monitor", got=name, accepted=", ".join(accepted))
    found = [_first(family, data, metrics) if name is None else name for name in names]
    if len(set(found)) < len(found):
        raise StudyError("is there twice", where="monitor", got=given)
    return tuple((name, way_of(name, (known | costs)[name])) for name in found)


def way_of(name: str, known: bool | None) -> bool:
    """Whether more of an objective is better.

    Raises:
        StudyError: nobody has said it.
    """
    if known is None:
        bare = name.removeprefix("val_").removeprefix("train_")
        remedy = (
            f'metrics={{"{bare}": hfta_nb.Metric({bare}, maximize=False)}} if less is better, maximize=True if more'
        )
        raise StudyError("it is not known which way is better", where=f"metric {bare}", got=name, remedy=remedy)
    return known


def _first(family: Family, data: AnyData, metrics: Mapping[str, Any]) -> str:
    """The metric that decides where nobody says which.

    Whole numbers may be classes for a loss of the user's, or counts, or ranks: then only the loss itself is sure.
    """
    if family.monitor is not None:
        return family.monitor
    guessed = family.metrics is None and not datasets.known(data.name)
    if guessed and "loss" in family.own and of_numbers(family.loss) is None:
        return "val_loss"
    first = next(iter(metrics), None)
    return f"val_{first}" if first and metrics[first].maximizes else "val_loss"


def usual_name(family: Family, data: AnyData) -> str:
    """The name of a study to which nobody gives one."""
    return f"{family.name} on {data.name}"
