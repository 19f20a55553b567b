"""Makes a family from a build function, whose parameters are the axes."""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from torch import nn

from hfta_nb.data import task_of
from hfta_nb.errors import FamilyError, GridError
from hfta_nb.errors.border import TEXT, takes
from hfta_nb.models import losses, metrics, phases
from hfta_nb.models.accumulators import collected
from hfta_nb.models.metrics import Metric
from hfta_nb.models.phases import Phase
from hfta_nb.models.recipes.inputs import KINDS
from hfta_nb.models.recipes.lists import parameters_of
from hfta_nb.models.recipes.recipe import DEFAULT_DATA, FACTS, Family
from hfta_nb.models.training_axes import TRAINING_AXES
from hfta_nb.search.grid import AxisSpec, Bounds


@takes(FamilyError, name=TEXT.or_none, help=TEXT.or_none, monitor=TEXT.or_none)
def from_function(
    function: Callable[..., nn.Module],
    *,
    name: str | None = None,
    data: str | Sequence[str] | None = None,
    tasks: str | Sequence[str] | None = None,
    loss: losses.Loss | str | None = None,
    metrics: Mapping[str, Any] | None = None,
    help: str | None = None,
    phases: Sequence[Phase] = (),
    defaults: Mapping[str, Any] | None = None,
    monitor: str | None = None,
    inputs: str | Sequence[str] = (),
) -> Family:
    """A family from a build function; its parameters are the axes, their annotations the types.

    Args:
        function: returns a plain module. ``Annotated[int, hfta_nb.search.grid.Bounds(low=1)]`` bounds an axis.
        name, data, tasks, loss, metrics, help, phases, defaults, monitor, inputs: see `Family`. The defaults of `name`
            and `help` are the function's name and the first line of its docstring; the default of `tasks` is the tasks
            of `data` if given, else any task that has a loss.

    Raises:
        FamilyError: a parameter can't be an axis, or another argument can't be used.
    """
    title = str(name or getattr(function, "__name__", ""))
    if not callable(function) or not title.isidentifier():
        raise FamilyError("not a build function", got=function, accepted="a named function that returns an nn.Module")
    axes, facts = {}, []
    for parameter in inspect.signature(function, eval_str=True).parameters.values():
        if parameter.name in FACTS:
            facts.append(parameter.name)
        else:
            axes[parameter.name] = axis_of(title, parameter)
    text = help if help is not None else inspect.getdoc(function) or ""
    suits = (data,) if isinstance(data, str) else DEFAULT_DATA if data is None else tuple(data)
    measured = None if metrics is None else _checked_metrics(metrics)
    own_loss = None if loss is None else losses.checked(loss, f"{title}, loss")
    made = Family(title, function, axes, tuple(facts), suits, own_loss, measured, text.split("\n")[0])
    steps = _checked_phases(made, phases)
    own = _checked_tasks(title, tasks, () if data is None else suits)
    taken, own_defaults = _checked_inputs(title, inputs), _checked_defaults(title, defaults or {})
    return replace(made, phases=steps, defaults=own_defaults, monitor=monitor, tasks=own, inputs=taken)


def from_callable(given: Callable[..., nn.Module]) -> Family:
    """The family of a build function or a module class that is not registered under a name.

    Parameters that can't be axes (``*args``, unsupported types) keep their defaults.

    Raises:
        FamilyError: the argument is a module instance, or does not build a module.
    """
    if isinstance(given, nn.Module):
        name = type(given).__name__
        raise FamilyError("is a module instance, and every member needs its own", where="family", got=name,
                          remedy=f"give the class {name}, or a function that builds it")  # fmt: skip
    builds = not isinstance(given, type) or issubclass(given, nn.Module)
    if not callable(given) or not builds:
        accepted = "a name, a build function, a subclass of nn.Module, or a result of @hfta_nb.family"
        raise FamilyError("not a family", where="family", got=given, accepted=accepted)
    named = given
    while isinstance(named, functools.partial):
        named = named.func
    title = getattr(named, "__name__", type(named).__name__)
    axes, facts = {}, []
    for parameter in parameters_of(given):
        if parameter.name in FACTS:
            facts.append(parameter.name)
        elif parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            try:
                axes[parameter.name] = axis_of(title, parameter)
            except FamilyError as error:
                if parameter.default is parameter.empty or "training axis" in error.what:
                    raise
    text = (inspect.getdoc(given) or "").split("\n")[0]
    return Family(title if title.isidentifier() else "model", given, axes, tuple(facts), help=text, direct=True)


def with_own(
    recipe: Family, loss: losses.Loss | str | None, metrics_: Any = None, param_groups: Callable[..., Any] | None = None
) -> Family:
    """The family with another loss, other metrics, or parameter groups.

    Args:
        recipe: the family.
        loss: function of one member's output and the target that returns a scalar, or the name of one of torch's; None
            for the family's.
        metrics_: dict of names to functions, or a list of named functions or of names of built-in metrics; None for the
            family's.
        param_groups: function of a parameter's name and plain shape that returns its group's hyperparameters.

    Raises:
        FamilyError: one can't be used.
    """
    more: dict[str, Any] = {}
    if loss is not None:
        if recipe.phases:
            raise FamilyError("has a loss in each of its phases", where=f"{recipe.name}, loss", got=loss)
        more["loss"] = losses.checked(loss)
    if metrics_ is not None:
        several = collected(metrics_)
        given = several or (metrics_ if isinstance(metrics_, Mapping) else _by_names(metrics_))
        more["metrics"] = metrics.checked(given)
    if param_groups is not None:
        if not callable(param_groups):
            accepted = "a function of a parameter's name and of the parameter"
            raise FamilyError("not a function", where="param_groups", got=param_groups, accepted=accepted)
        more["param_groups"] = param_groups
    return replace(recipe, **more, own=tuple(dict.fromkeys([*recipe.own, *more]))) if more else recipe


def named_parts(recipe: Family) -> dict[str, Any]:
    """Of the loss and metrics that a study has replaced, those that `with_own` makes of their names."""
    found: dict[str, Any] = {}
    if "loss" in recipe.own and (name := losses.name_of(recipe.loss)):
        found["loss"] = name
    if "metrics" in recipe.own and recipe.metrics is not None:
        names = {name: metrics.name_of(metric) for name, metric in recipe.metrics.items()}
        if all(names.values()):
            found["metrics"] = names
    return found


def _by_names(given: Any) -> dict[str, Any]:
    listed = list(given) if isinstance(given, list | tuple) else [given]
    found: dict[str, Any] = {}
    for metric in listed:
        name = metric if isinstance(metric, str) else getattr(metric, "__name__", "")
        if (several := collected(metric)) is not None:
            _check_once(several, found)
            found |= several
            continue
        function = metrics.built_in(metric) if isinstance(metric, str) else metric
        if not callable(function) or not name.isidentifier():
            accepted = 'a dict of functions by name, {"name": function}, or a list of functions that have names, or of '
            accepted += ", ".join(metrics.BUILT_IN)
            raise FamilyError("not metrics", where="metrics", got=metric, accepted=accepted)
        _check_once([name], found)
        found[name] = function
    return found


def _check_once(names: Iterable[str], known: Mapping[str, Any]) -> None:
    """See that no metric takes the place of another one.

    Raises:
        FamilyError: one would.
    """
    twice = sorted(set(names) & known.keys())
    if twice:
        remedy = f'give them names: metrics={{"{twice[0]}_a": ..., "{twice[0]}_b": ...}}'
        raise FamilyError("two metrics of one name", where="metrics", got=twice[0], remedy=remedy)


def _checked_metrics(given: Mapping[str, Any]) -> dict[str, Metric]:
    return metrics.checked(given)


def _checked_tasks(name: str, given: str | Sequence[str] | None, data: Sequence[str]) -> tuple[str, ...]:
    """The tasks of a family: those given, else those of its data."""
    if given is None:
        return tuple(dict.fromkeys(task for n in data if (task := task_of(n)) is not None))
    tasks = (given,) if isinstance(given, str) else tuple(given)
    for task in tasks:
        if not isinstance(task, str) or not task.isidentifier():
            raise FamilyError("not a task", where=name, got=task, accepted=", ".join(losses.BY_TASK))
    return tasks


def _checked_inputs(name: str, given: str | Sequence[str]) -> tuple[str, ...]:
    kinds = (given,) if isinstance(given, str) else tuple(given)
    for kind in kinds:
        if kind not in KINDS:
            raise FamilyError("not a kind of inputs", where=name, got=kind, accepted=", ".join(KINDS))
    return kinds


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


def axis_of(family: str, parameter: inspect.Parameter) -> AxisSpec:
    """The axis that a parameter of a build function is.

    Raises:
        FamilyError: it is none.
    """
    where = f"{family}({parameter.name})"
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
        raise FamilyError("can't be an axis", where=where, accepted="named parameters")
    if parameter.name in TRAINING_AXES:
        raise FamilyError("is the name of a training axis", where=where, remedy="rename the parameter")
    default = None if parameter.default is parameter.empty else parameter.default
    annotation, bounds = parameter.annotation, Bounds()
    if typing.get_origin(annotation) is typing.Annotated:
        annotation, *notes = typing.get_args(annotation)
        bounds = next((note for note in notes if isinstance(note, Bounds)), bounds)
    kind, choices = _kind(where, annotation, default)
    return AxisSpec(parameter.name, kind, default, choices, bounds.low, bounds.high, above=bounds.above)


_TYPES = {int: "int", float: "float", bool: "bool", str: "str"}
_ANY = (tuple, list, Sequence, Iterable, object, typing.Any)
"""Annotations of values that a grid lists in any form."""


def _kind(where: str, annotation: Any, default: Any) -> tuple[str, tuple[Any, ...]]:
    if annotation is inspect.Parameter.empty:
        return _TYPES.get(type(default), "any"), ()
    if typing.get_origin(annotation) is Literal:
        return "any", typing.get_args(annotation)
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return "any", ()
    if annotation in _TYPES:
        return _TYPES[annotation], ()
    if annotation in _ANY or typing.get_origin(annotation) in _ANY:
        return "any", ()
    raise FamilyError(
        "an annotation that gives no axis",
        where=where,
        got=annotation,
        accepted="int, float, bool, str, tuple, list, Literal",
    )
