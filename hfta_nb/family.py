"""A family: the recipe by which a variant's module, loss and metrics are made, with its axes read off its signature."""

from __future__ import annotations

import difflib
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, overload

from torch import nn

from hfta_nb import augment, losses, metrics, phases
from hfta_nb.data import AnyData, names_for, task_of
from hfta_nb.errors import FamilyError, GridError
from hfta_nb.grid import AxisSpec
from hfta_nb.metrics import Metric
from hfta_nb.phases import Phase

FACTS = (
    *("in_features", "out_features", "num_classes", "in_channels", "image_size"),
    *("vocab_size", "context", "dense_features", "categorical_features", "categories"),
)
"""Parameters of a build function that the data fills in, where it knows them."""

_AXES = [
    AxisSpec("lr", "float", 1e-3, low=0.0, help="Learning rate.", fusible=True),
    AxisSpec("optimizer", "str", "adam", ("sgd", "adam", "adamw"), help="The optimizer."),
    AxisSpec("weight_decay", "float", 0.0, low=0.0, help="L2 penalty; for adamw, decoupled decay.", fusible=True),
    AxisSpec("momentum", "float", 0.0, low=0.0, help="Momentum of sgd.", fusible=True),
    AxisSpec("nesterov", "bool", False, help="Nesterov momentum, for sgd.", fusible=True),
    AxisSpec("beta1", "float", 0.9, low=0.0, high=1.0, help="First beta of adam and adamw.", fusible=True),
    AxisSpec("beta2", "float", 0.999, low=0.0, high=1.0, help="Second beta of adam and adamw.", fusible=True),
    AxisSpec("eps", "float", 1e-8, low=0.0, help="Epsilon of adam and adamw.", fusible=True),
    AxisSpec("lr_scheduler", "str", "none", ("none", "step", "cosine"), help="How lr changes over the epochs."),
    AxisSpec("step_size", "int", 10, low=1, help="Epochs between two drops of lr, for step.", fusible=True),
    AxisSpec("gamma", "float", 0.1, low=0.0, help="Factor of each drop of lr, for step.", fusible=True),
    AxisSpec("t_max", "int", None, low=1, help="Epochs of the cosine; all by default.", fusible=True),
    AxisSpec("eta_min", "float", 0.0, low=0.0, help="Last lr of the cosine.", fusible=True),
    AxisSpec("batch_size", "int", 64, low=1, help="Samples in a mini-batch."),
    AxisSpec("seed", "int", 0, low=0, help="Seed of initialisation and of all that the member draws.", fusible=True),
    AxisSpec(
        "data_seed", "int", None, low=0, help="Seed of the order of the data; the study's by default.", fusible=True
    ),
]

TRAINING_AXES: dict[str, AxisSpec] = {a.name: a for a in _AXES}
"""Axes that every family has: those of the optimizer, the lr scheduler, the batches and the seeds."""

DEFAULT_DATA = ("digits", "breast_cancer", "wine", "iris", "diabetes")
"""Data sets of a family that names none."""

USED_BY: dict[str, tuple[str, frozenset[str]]] = {
    **dict.fromkeys(("momentum", "nesterov"), ("optimizer", frozenset({"sgd"}))),
    **dict.fromkeys(("beta1", "beta2", "eps"), ("optimizer", frozenset({"adam", "adamw"}))),
    **dict.fromkeys(("step_size", "gamma"), ("lr_scheduler", frozenset({"step"}))),
    **dict.fromkeys(("t_max", "eta_min"), ("lr_scheduler", frozenset({"cosine"}))),
}
"""Axes that do nothing unless another axis has one of these values."""


@dataclass(frozen=True)
class Family:
    """A recipe whose `build` gives a plain module.

    Attributes:
        name: of the family.
        function: the build function.
        axes: what its signature offers, by name.
        facts: names of its parameters that the data fills in.
        data: names of data sets that suit, the default first.
        loss: from one member's output and the target to a scalar; None for the task's usual one.
        metrics: by name; None for the task's usual ones.
        help: one line.
        phases: of a training step, where the module holds several networks; see `Phase`.
        defaults: of training axes, where the family has its own.
        monitor: the metric that decides which epoch is best, unless a study names another; None for the usual one.
        tasks: those that it is for (see `Data`); none for any.
        open: whether `function` takes further named arguments, which are axes that nobody checks.
    """

    name: str
    function: Callable[..., nn.Module]
    axes: dict[str, AxisSpec] = field(hash=False)
    facts: tuple[str, ...] = ()
    data: tuple[str, ...] = DEFAULT_DATA
    loss: losses.Loss | None = None
    metrics: dict[str, Metric] | None = field(default=None, hash=False)
    help: str = ""
    phases: tuple[Phase, ...] = ()
    defaults: dict[str, Any] = field(default_factory=dict, hash=False)
    monitor: str | None = None
    tasks: tuple[str, ...] = ()
    open: bool = False

    @property
    def training(self) -> dict[str, AxisSpec]:
        """The training axes with the family's own defaults, and after them those that its phases have of their own."""
        common = {
            name: replace(spec, default=self.defaults[name]) if name in self.defaults else spec
            for name, spec in TRAINING_AXES.items()
        }
        return common | phases.own_axes(self.phases, TRAINING_AXES)

    @property
    def specs(self) -> dict[str, AxisSpec]:
        """All axes that a grid may have: lr first, then the family's own, the rest of training's, and those of
        augmentation that suit one of its data sets."""
        return self._specs(augment.axes_of(self.data))

    @property
    def augmentation(self) -> dict[str, dict[str, AxisSpec]]:
        """The axes of augmentation among `specs`, by kind of data."""
        found = {
            kind: {n: a for n, a in axes.items() if n in self.specs and n not in self.axes}
            for kind, axes in augment.BY_KIND.items()
        }
        return {kind: axes for kind, axes in found.items() if axes}

    def specs_for(self, data: AnyData | str, more: Iterable[str] = ()) -> dict[str, AxisSpec]:
        """All axes that a grid may have on this data set, of which the name is enough where it is a known one.

        Args:
            data: the data set.
            more: names that are asked for; a family that is `open` has them, whatever they are.
        """
        specs = self._specs(augment.axes_for(data))
        own = [n for n in more if n not in specs and self._takes(n)] if self.open else []
        return specs | {name: AxisSpec(name) for name in own}

    def no_axis(self, name: str, data: AnyData | str) -> GridError:
        """The error for an axis that `specs_for` lacks."""
        specs, where = self.specs_for(data), f"grid of {self.name}"
        if name in augment.AXES:
            what, suits = augment.why_not(name, data), [n for n in specs if n in augment.AXES]
            return GridError(what, where=where, got=name, accepted=", ".join(suits), remedy="take the axis out")
        close = difflib.get_close_matches(name, specs, 1)
        remedy = f"did you mean {close[0]}?" if close else "check the spelling"
        return GridError("unknown axis", where=where, got=name, accepted=", ".join(specs), remedy=remedy)

    def _specs(self, augmentation: Mapping[str, AxisSpec]) -> dict[str, AxisSpec]:
        # A parameter of the build function that has the name of an augmentation is an axis of the model.
        more = {name: spec for name, spec in augmentation.items() if name not in self.axes}
        training = self.training
        return {"lr": training["lr"], **self.axes, **training, **more}

    def check_data(self, data: AnyData) -> None:
        """Whether it is for the data's task.

        Raises:
            FamilyError: it is not, or no loss is known for it.
        """
        if self.tasks and data.task not in self.tasks:
            raise FamilyError(
                f"is for {' and '.join(self.tasks)}, and {data.name} is for {data.task}",
                where=self.name,
                accepted=", ".join(suited) if (suited := names_for(self.tasks)) else "own data of that task",
                remedy=f"families for {data.task}: {', '.join(others)}" if (others := _for_task(data.task)) else "",
            )
        if not self.phases:
            self.loss_for(data)

    @property
    def used_by(self) -> dict[str, tuple[str, frozenset[str]]]:
        """Axes that do nothing unless another axis has one of these values."""
        own = {f"{p.name}_{name}": USED_BY[name] for p in self.phases for name in phases.OWN_AXES if name in USED_BY}
        return USED_BY | own

    def build(self, **axes: Any) -> nn.Module:
        """The plain module of these values; axes not given have their defaults.

        Raises:
            FamilyError: an axis is unknown or lacks a value, or the function does not return a module.
            GridError: a value is not one that the axis accepts.
        """
        for name in axes:
            if not self.open and name not in self.axes and name not in self.facts:
                raise FamilyError(
                    "unknown axis", where=self.name, got=name, accepted=", ".join([*self.axes, *self.facts])
                )
        given = {k: self.axes[k].check(v) if k in self.axes else v for k, v in axes.items()}
        lacking = [k for k in self._required() if k not in given]
        if lacking:
            raise FamilyError("an axis without default needs a value", where=self.name, got=lacking)
        module = self.function(**given)
        if not isinstance(module, nn.Module):
            raise FamilyError(
                "the build function did not return a module", where=self.name, got=module, accepted="torch.nn.Module"
            )
        return module

    def arguments(self, config: Mapping[str, Any], data: AnyData) -> dict[str, Any]:
        """What `build` is to be called with for a variant's values on this data."""
        known = {k: data.facts[k] for k in self.facts if k in data.facts}
        return known | {k: v for k, v in config.items() if self._takes(k)}

    def loss_for(self, data: AnyData) -> losses.Loss:
        return self.loss or losses.for_task(data.task)

    def objective_for(self, data: AnyData) -> losses.Loss | tuple[Phase, ...]:
        """What a training step minimises: its phases, or the loss."""
        return self.phases or self.loss_for(data)

    def scores_for(self, data: AnyData) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """What an epoch is told by, in training and in validation: the losses, then the metrics.

        Where a step has phases there are no metrics in training, which would take a call of their own.
        """
        names = ("loss", *(p.score for p in self.phases))
        measured = tuple(self.metrics_for(data))
        return (names if self.phases else names + measured), names + measured

    def metrics_for(self, data: AnyData) -> dict[str, Metric]:
        return metrics.usual(data.task, data.facts) if self.metrics is None else self.metrics

    def _takes(self, name: str) -> bool:
        """Whether an axis is an argument of `function`."""
        others = name in augment.AXES or name in self.training or name in self.facts
        return name in self.axes or (self.open and name.isidentifier() and not others)

    def _required(self) -> list[str]:
        signature = inspect.signature(self.function).parameters.values()
        return [p.name for p in signature if p.default is p.empty and p.kind is not p.VAR_KEYWORD]


def from_function(
    function: Callable[..., nn.Module],
    *,
    name: str | None = None,
    data: str | Sequence[str] | None = None,
    tasks: str | Sequence[str] | None = None,
    loss: losses.Loss | None = None,
    metrics: Mapping[str, Any] | None = None,
    help: str | None = None,
    phases: Sequence[Phase] = (),
    defaults: Mapping[str, Any] | None = None,
    monitor: str | None = None,
) -> Family:
    """A family from a build function; its parameters are the axes, their annotations the types.

    Args:
        function: gives a plain module.
        name, data, tasks, loss, metrics, help, phases, defaults, monitor: of the family; see `Family`. The function's
            name and the first line of its docstring serve where there is none; the tasks are those of `data` where that
            is given, else any that has a loss.

    Raises:
        FamilyError: a parameter can't be an axis, or what is given beside it can't be used.
    """
    title = str(name or getattr(function, "__name__", ""))
    if not callable(function) or not title.isidentifier():
        raise FamilyError("not a build function", got=function, accepted="a named function that returns an nn.Module")
    axes, facts = {}, []
    for parameter in inspect.signature(function, eval_str=True).parameters.values():
        if parameter.name in FACTS:
            facts.append(parameter.name)
        else:
            axes[parameter.name] = _axis(title, parameter)
    text = help if help is not None else inspect.getdoc(function) or ""
    suits = (data,) if isinstance(data, str) else DEFAULT_DATA if data is None else tuple(data)
    measured = None if metrics is None else _checked_metrics(metrics)
    made = Family(title, function, axes, tuple(facts), suits, loss, measured, text.split("\n")[0])
    steps = _checked_phases(made, phases)
    own = _checked_tasks(title, tasks, () if data is None else suits)
    return replace(made, phases=steps, defaults=_checked_defaults(title, defaults or {}), monitor=monitor, tasks=own)


def _checked_metrics(given: Mapping[str, Any]) -> dict[str, Metric]:
    return metrics.checked(given)


def _checked_tasks(name: str, given: str | Sequence[str] | None, data: Sequence[str]) -> tuple[str, ...]:
    """The tasks of a family: as given, else those of its data."""
    if given is None:
        return tuple(dict.fromkeys(task for n in data if (task := task_of(n)) is not None))
    tasks = (given,) if isinstance(given, str) else tuple(given)
    for task in tasks:
        if not isinstance(task, str) or not task.isidentifier():
            raise FamilyError("not a task", where=name, got=task, accepted=", ".join(losses.BY_TASK))
    return tasks


def _checked_phases(recipe: Family, given: Sequence[Any]) -> tuple[Phase, ...]:
    found = phases.checked(given, recipe.name)
    if found and recipe.loss is not None:
        raise FamilyError("has a loss and phases", where=recipe.name, remedy="each phase has a loss of its own")
    for name in phases.own_axes(found, TRAINING_AXES):
        if name in recipe.axes:
            raise FamilyError(
                "is the name of a training axis", where=f"{recipe.name}({name})", remedy="rename the parameter"
            )
    for phase in found:
        if phase.score in (recipe.metrics or {}):
            raise FamilyError("a metric has the name of a phase's loss", where=recipe.name, got=phase.score)
    return found


def _checked_defaults(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    found = {}
    for axis, value in given.items():
        if axis not in TRAINING_AXES:
            raise FamilyError(
                "not a training axis", where=f"{name}, defaults", got=axis, accepted=", ".join(TRAINING_AXES)
            )
        try:
            found[axis] = TRAINING_AXES[axis].check(value)
        except GridError as error:
            raise FamilyError(
                error.what, where=f"{name}, default of {axis}", got=value, accepted=error.accepted
            ) from error
    return found


def _axis(family: str, parameter: inspect.Parameter) -> AxisSpec:
    where = f"{family}({parameter.name})"
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
        raise FamilyError("can't be an axis", where=where, accepted="named parameters")
    if parameter.name in TRAINING_AXES:
        raise FamilyError("is the name of a training axis", where=where, remedy="rename the parameter")
    default = None if parameter.default is parameter.empty else parameter.default
    kind, choices = _kind(where, parameter.annotation, default)
    return AxisSpec(parameter.name, kind, default, choices)


_TYPES = {int: "int", float: "float", bool: "bool", str: "str"}


def _kind(where: str, annotation: Any, default: Any) -> tuple[str, tuple[Any, ...]]:
    if annotation is inspect.Parameter.empty:
        return _TYPES.get(type(default), "any"), ()
    if typing.get_origin(annotation) is Literal:
        return "any", typing.get_args(annotation)
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return "any", ()
    if annotation in _TYPES:
        return _TYPES[annotation], ()
    if annotation in (tuple, typing.Any) or typing.get_origin(annotation) is tuple:
        return "any", ()
    raise FamilyError(
        "an annotation that gives no axis",
        where=where,
        got=annotation,
        accepted="int, float, bool, str, tuple, Literal",
    )


_registered: dict[str, Family] = {}
_watchers: list[Callable[[], None]] = []


def register(recipe: Family) -> Family:
    """Put a family on the list; one of the same name is replaced (a cell run again)."""
    _registered[recipe.name] = recipe
    for watcher in _watchers:
        watcher()
    return recipe


def watch(callback: Callable[[], None]) -> Callable[[], None]:
    """Call back whenever a family is defined; returns what ends that."""
    _watchers.append(callback)
    return lambda: _watchers.remove(callback)


def families() -> list[str]:
    """Names of all families: the built-in ones, then those defined by the user."""
    _load_built_in()
    return list(_registered)


@overload
def family(name: str, /) -> Family: ...
@overload
def family(function: Callable[..., nn.Module], /) -> Family: ...
@overload
def family(**options: Any) -> Callable[[Callable[..., nn.Module]], Family]: ...
def family(given: Any = None, /, **options: Any) -> Any:
    """The family of a name; or, as a decorator, a new one from a build function.

    Args:
        given: a name, or the function to make a family of. A name with dots is that of a constructor:
            ``torchvision.models.resnet18``, ``timm.resnet18``, ``transformers.BertForMaskedLM`` or any
            ``package.module.Class`` that is an `nn.Module`; its signature (of transformers, the configuration's) gives
            the axes, and weights that were trained before are never loaded.
        options: `name`, `data`, `tasks`, `loss`, `metrics`, `help`, `phases`, `defaults`, `monitor` of the new family
            (see `from_function`).

    Returns:
        The `Family`; with options only, a decorator.

    Raises:
        FamilyError: the name is unknown, or a parameter of the function can't be an axis.

    Example:
        >>> family("mlp").build(width=8, depth=1)[1]
        Linear(in_features=64, out_features=8, bias=True)
    """
    if isinstance(given, Family):
        return given
    if isinstance(given, str):
        return _lookup(given)
    if given is not None:
        return register(from_function(given, **options))
    return lambda function: register(from_function(function, **options))


def _lookup(name: str) -> Family:
    _load_built_in()
    if name not in _registered and "." in name:
        from hfta_nb.families.constructors import family_of

        return register(family_of(name))
    if name not in _registered:
        close = difflib.get_close_matches(name, _registered, 1)
        raise FamilyError(
            "unknown family",
            where="family",
            got=name,
            accepted=", ".join(_registered),
            remedy=f"did you mean {close[0]}?"
            if close
            else "define it with @hfta_nb.family, or name a constructor, such as torchvision.models.resnet18",
        )
    return _registered[name]


def _for_task(task: str) -> list[str]:
    """The built-in families for a task."""
    _load_built_in()
    return [name for name, recipe in _registered.items() if task in recipe.tasks and "." not in name]


def _load_built_in() -> None:
    if "cnn" not in _registered or "mlp" not in _registered:
        own = dict(_registered)
        _registered.clear()
        from hfta_nb.families import BUILT_IN

        for recipe in BUILT_IN:
            _registered[recipe.name] = recipe
        _registered.update(own)
