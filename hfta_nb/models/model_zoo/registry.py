"""The families by name: built-in, from constructors, and user-defined."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any, overload

from torch import nn

from hfta_nb.data import AnyData
from hfta_nb.errors import FamilyError
from hfta_nb.models.model_zoo import fine_tuning
from hfta_nb.models.model_zoo.built_in import BUILT_IN
from hfta_nb.models.model_zoo.dotted import is_constructor
from hfta_nb.models.recipes import inputs
from hfta_nb.models.recipes.functions import from_function
from hfta_nb.models.recipes.recipe import Family
from hfta_nb.models.recipes.sample_checks import check_samples
from hfta_nb.records import entry_points

_registered: dict[str, Family] = {}
_watchers: list[Callable[[], None]] = []


def register(recipe: Family) -> Family:
    """Register a family; it replaces one of the same name (when a cell is run again)."""
    _registered[recipe.name] = recipe
    for watcher in _watchers:
        watcher()
    return recipe


def watch(callback: Callable[[], None]) -> Callable[[], None]:
    """Call back whenever a family is defined; returns a function that stops this."""
    _watchers.append(callback)
    return lambda: _watchers.remove(callback)


def families() -> list[str]:
    """Names of all families, the built-in ones first, then those of other packages."""
    _load_built_in()
    _load_others()
    return list(_registered)


@overload
def family(name: str, /) -> Family: ...
@overload
def family(function: Callable[..., nn.Module], /) -> Family: ...
@overload
def family(**options: Any) -> Callable[[Callable[..., nn.Module]], Family]: ...
def family(given: Any = None, /, **options: Any) -> Any:
    """The family of a name; as a decorator, a new family from a build function.

    Args:
        given: a name, or the build function of the new family. A name with dots is that of a constructor:
            ``torchvision.models.resnet18``, ``timm.resnet18``, ``transformers.BertForMaskedLM`` or any
            ``package.module.Class`` that is an `nn.Module`. Its signature (for transformers, the configuration's) gives
            the axes; weights are random, unless the axis `weights` of timm's and transformers' says otherwise. One
            with a colon is that of a saved model, with its weights: ``transformers:folder``,
            ``transformers.AutoModelForSequenceClassification:folder``, ``timm:resnet18``; ``lora_classifier:folder``,
            ``lora_causal_lm:folder``, ``linear_probe:folder`` and ``finetune:folder`` say how it is fine-tuned. Nothing
            is downloaded.
        options: `name`, `data`, `tasks`, `loss`, `metrics`, `help`, `phases`, `defaults`, `monitor`, `inputs` of the
            new family; see `Family`.

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
    if ":" in name or (name not in _registered and is_constructor(name)):  # what a folder holds may have changed
        from hfta_nb.models.model_zoo.constructors import family_of

        found, known = family_of(name), _registered.get(name)
        return known if known is not None and known == found else register(found)
    if name not in _registered:
        _load_others()
    if name not in _registered:
        close = difflib.get_close_matches(name, _registered, 1)
        tuning = f"name the folder of the saved model as well: {name}:FOLDER" if name in fine_tuning.CLASSES else ""
        raise FamilyError(
            "unknown family",
            where="family",
            got=name,
            accepted=", ".join(_registered),
            remedy=tuning or f"did you mean {close[0]}?"
            if tuning or close
            else "define it with @hfta_nb.family, or name a constructor, such as torchvision.models.resnet18",
        )
    return _registered[name]


def for_data(data: AnyData) -> list[str]:
    """The built-in families for the task of this data that take its inputs."""
    families()
    fit = {n: f for n, f in _registered.items() if data.task in f.tasks and not is_constructor(n)}
    return [n for n, f in fit.items() if not f.inputs or inputs.kind_of(data) in f.inputs]


def check_data(recipe: Family, data: AnyData) -> None:
    """Check that a family supports the data's task and inputs.

    Raises:
        FamilyError: it does not, or no loss is known for the task.
        DataError: a number is missing, and the loss or the model does not expect that.
    """
    what = ""
    if recipe.tasks and data.task not in recipe.tasks:
        what = f"is for {' and '.join(recipe.tasks)}, and {data.name} is for {data.task}"
    elif recipe.inputs and inputs.kind_of(data) not in recipe.inputs:
        what = f"needs {' or '.join(recipe.inputs)}, and {data.name} is {inputs.shown(data)}"
    if what:
        suited = ", ".join(inputs.names_with(recipe.tasks, recipe.inputs)) or "own data of that task"
        like = " or ".join(inputs.KINDS[kind] for kind in recipe.inputs)
        others = for_data(data)
        raise FamilyError(
            what,
            where=recipe.name,
            accepted=f"{like}: {suited}" if like and data.task in recipe.tasks else suited,
            remedy=f"families for {data.name}: {', '.join(others)}" if others else "",
        )
    if not recipe.phases:
        recipe.loss_for(data)
    check_samples(recipe, data)


def _load_built_in() -> None:
    if "cnn" not in _registered or "mlp" not in _registered:
        own = dict(_registered)
        _registered.clear()
        for recipe in BUILT_IN:
            _registered[recipe.name] = recipe
        _registered.update(own)


def _load_others() -> None:
    """Register the families of other packages, unless one of that name is known."""
    for name in entry_points.found(entry_points.FAMILIES):
        if name not in _registered:
            made = entry_points.loaded(entry_points.FAMILIES, name)
            if made is not None and name not in _registered:  # `made` may have registered itself
                _registered[name] = made if isinstance(made, Family) else from_function(made, name=name)
