"""Families by the name of a constructor: ``torchvision.models.resnet18``, ``timm.vit_tiny_patch16_224``,
``transformers.BertForMaskedLM``, ``package.module.Class``; with a colon, that of a saved model:
``transformers:folder``, ``transformers.AutoModelForSequenceClassification:folder``, ``timm:resnet18``; or that of a way
to fine-tune it, ``lora_classifier:folder``.

Names can come from a file (a saved study), so not every importable object is called: classes must be modules, and
functions must be annotated to return a module or belong to the packages above.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from hfta_nb.errors import FamilyError
from hfta_nb.models import weights as files
from hfta_nb.models.model_zoo import fine_tuning, pretrained
from hfta_nb.models.model_zoo.dotted import KNOWN_PACKAGES, find, package, unknown
from hfta_nb.models.model_zoo.signatures import WITHOUT, Parameters, first_line, is_plain, returned
from hfta_nb.models.recipes import DEFAULT_DATA, Family
from hfta_nb.search.grid import AxisSpec

HEADS: dict[str, tuple[str, tuple[str, ...]]] = {
    "ForMaskedLM": ("masked_language_model", ("english_masked", "english_words_masked")),
    "ForCausalLM": ("language_model", ("english", "english_words")),
    "LMHeadModel": ("language_model", ("english", "english_words")),
    "ForImageClassification": ("classification", ("digits",)),
    "ForSequenceClassification": ("classification", ()),
    "ForTokenClassification": ("segmentation", ()),
}
"""Tasks of transformers' models, by the end of their name."""

LABELLED = ("classification", "segmentation")
"""Tasks of these whose models have a head for the data's classes."""

PACKAGES_OF_IMAGES, OTHERS = ("torchvision.models.", "timm."), (".video.", ".detection.", ".optical_flow.")
"""Packages whose models take images, and the exceptions in them."""

MANY = 8


@dataclass(frozen=True)
class Recipe:
    """How a constructor is called.

    Attributes:
        make: returns the module.
        axes: axes of its signature.
        facts: fact to parameter.
        required: parameters without default.
        open: whether it takes further keyword arguments that its signature does not list.
        tasks, data: see `Family`.
        help: one line.
    """

    make: Callable[..., Any]
    axes: dict[str, AxisSpec]
    facts: dict[str, str]
    required: tuple[str, ...] = ()
    open: bool = False
    tasks: tuple[str, ...] = ()
    data: tuple[str, ...] = DEFAULT_DATA
    help: str = ""


@dataclass(frozen=True)
class Constructor:
    """Calls the constructor of a name; only the name is pickled."""

    path: str

    def __call__(self, **arguments: Any) -> nn.Module:
        recipe = _recipe(self.path)
        module: nn.Module = recipe.make(**{recipe.facts.get(k, k): v for k, v in arguments.items()})
        return module

    @property
    def __signature__(self) -> inspect.Signature:
        recipe = _recipe(self.path)
        facts = {parameter: fact for fact, parameter in recipe.facts.items()}
        names = [facts.get(name, name) for name in recipe.required]
        return inspect.Signature([inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY) for n in names])


def family_of(path: str) -> Family:
    """The family of a constructor.

    Args:
        path: its name, with the package; of a saved model with a colon and its folder, or the name of its repository in
            the hub's cache.

    Raises:
        FamilyError: the package is not installed, the name does not exist, or it does not build a module.
    """
    recipe = _recipe(path)
    return Family(
        path,
        Constructor(path),
        recipe.axes,
        tuple(recipe.facts),
        recipe.data,
        help=recipe.help,
        tasks=recipe.tasks,
        open=recipe.open,
        inputs=("images",) if path.startswith(PACKAGES_OF_IMAGES) and not any(part in path for part in OTHERS) else (),
    )


def _recipe(path: str) -> Recipe:
    name, colon, source = path.partition(":")
    if not colon:
        return recipe_of(path)
    if name == "timm":
        return _of_timm(path, source, pretrained.PRETRAINED)
    if name.startswith("timm."):
        return _of_timm(path, name.removeprefix("timm."), source)
    folder = files.folder_of(source, path)
    config = folder / files.CONFIG
    return _of_saved(path, name, folder, config.stat().st_mtime_ns if config.is_file() else 0)


@functools.cache
def recipe_of(path: str) -> Recipe:
    """See `family_of`; of a constructor."""
    top, _, rest = path.partition(".")
    if top == "timm" and "." not in rest:
        return _of_timm(path, rest)
    found = find(path)
    if isinstance(found, type) and issubclass(found, nn.Module):
        config = getattr(found, "config_class", None)
        if top == "transformers" or (config is not None and hasattr(config, "attribute_map")):
            return _of_transformers(path, found, config)
        return _of_callable(path, found)
    if isinstance(found, type | types.ModuleType) or not callable(found):
        what = "is a package, not a constructor" if isinstance(found, types.ModuleType) else "is not a module of torch"
        raise FamilyError(
            what,
            where=path,
            got=found,
            accepted="a class of nn.Module, or a function that returns one",
            remedy=_examples(found),
        )
    if top not in KNOWN_PACKAGES and returned(found) is None:
        raise FamilyError(
            "does not say that it builds a module",
            where=path,
            accepted="a function whose return annotation is a class of nn.Module",
            remedy="annotate it (-> nn.Module), or make it a family with @hfta_nb.family",
        )
    return _of_callable(path, found)


# Where constructors come from.


def _of_callable(path: str, make: Callable[..., Any]) -> Recipe:
    own = Parameters(path, make)
    made = None if isinstance(make, type) else returned(make)
    if own.open and made is not None:
        own.add_hidden(Parameters(path, made))
    own.check()
    fixed = {k: v for k, v in WITHOUT.items() if k in own.names}
    tasks: tuple[str, ...] = ()
    if path.startswith(("torchvision.models.", "timm.")):
        tasks = ("segmentation",) if ".segmentation." in path else ("classification",)
    return Recipe(
        functools.partial(make, **fixed) if fixed else make,
        own.axes,
        own.facts,
        own.required,
        own.open,
        tasks,
        ("photographs",) if tasks == ("segmentation",) else DEFAULT_DATA,
        first_line(make),
    )


def _of_timm(path: str, name: str, begin: str | None = None) -> Recipe:
    timm = package("timm", path)
    if not timm.is_model(name):
        known = timm.list_models()
        raise unknown(path, "no such model of timm", [f"timm.{n}" for n in known])
    entry = timm.model_entrypoint(name)
    hidden = Parameters(path, entry)
    made = returned(entry)
    if made is not None:
        hidden.add_hidden(Parameters(path, made))
    make = functools.partial(_make_timm, name, begin)
    axes = hidden.axes | pretrained.axes(begin)
    return Recipe(make, axes, hidden.facts, (), True, ("classification",), DEFAULT_DATA, first_line(entry))


def _make_timm(name: str, begin: str | None, **settings: Any) -> nn.Module:
    source, train = settings.pop("weights", begin), settings.pop("train", files.ALL)
    return pretrained.timm_model(name, source, train, **settings)


def _of_transformers(path: str, kind: type[nn.Module], config: Any) -> Recipe:
    if config is None:
        raise FamilyError(
            "has no configuration class of its own", where=path, remedy="name a model, such as BertForMaskedLM"
        )
    fields = _fields(path, config)
    facts = {f: p for f, p in fields.facts.items() if f != "num_classes"} | _labels(kind)
    task, data = _head(kind)
    length = getattr(config, "attribute_map", {}).get("max_position_embeddings", "max_position_embeddings")
    if length not in fields.axes:
        length = ""
    if length and task in ("language_model", "masked_language_model"):
        facts["context"] = "context"
    make = functools.partial(_make_transformer, kind, config, length, "use_cache" in fields.names)
    tasks = (task,) if task else ()
    axes = fields.axes | pretrained.axes(None)
    return Recipe(make, axes, facts, (), False, tasks, data or DEFAULT_DATA, first_line(kind))


def _make_transformer(
    kind: type[nn.Module],
    config: Any,
    length: str,
    caches: bool,
    context: int | None = None,
    weights: str | None = None,
    train: Any = files.ALL,
    **settings: Any,
) -> nn.Module:
    if caches:  # useless in training, and large
        settings = {"use_cache": False, **settings}
    made = config(**settings)
    if context is not None and length not in settings and getattr(made, length) < context + 2:
        # Some models number positions from the padding index, which is at most 1.
        made = config(**settings, **{length: context + 2})
    return pretrained.transformer(kind, made, weights, train)


@functools.cache
def _of_saved(path: str, name: str, folder: Path, changed_ns: int) -> Recipe:
    """Of a model of transformers that was saved to a folder, whose configuration gives the sizes and the defaults."""
    config = pretrained.config_of(folder, path)
    kind = pretrained.class_of(fine_tuning.CLASSES.get(name, name), config, path)
    fields = _fields(path, type(config))
    saved = {n: getattr(config, n, a.default) for n, a in fields.axes.items()}
    axes = {n: replace(a, default=saved[n]) if is_plain(saved[n]) else a for n, a in fields.axes.items()}
    task, data = _head(kind)
    make = functools.partial(_make_saved, path, kind, folder, "use_cache" in fields.names)
    axes |= pretrained.axes(pretrained.PRETRAINED)
    if name in fine_tuning.CLASSES:
        axes, make = fine_tuning.axes(name, axes), functools.partial(fine_tuning.build, name, make, path)
    tasks = (task,) if task else ()
    return Recipe(make, axes, _labels(kind), (), False, tasks, data or DEFAULT_DATA, first_line(kind))


def _make_saved(
    path: str,
    kind: type[nn.Module],
    folder: Path,
    caches: bool,
    weights: str | None = pretrained.PRETRAINED,
    train: Any = files.ALL,
    **settings: Any,
) -> nn.Module:
    if caches:
        settings = {"use_cache": False, **settings}
    config = pretrained.config_of(folder, path, **settings)
    return pretrained.transformer(kind, config, folder if weights == pretrained.PRETRAINED else weights, train)


def _fields(path: str, config: Any) -> Parameters:
    """The parameters of a configuration's class that say what the model is."""
    return Parameters(path, config, leave_out=set(Parameters(path, _base_of(config)).names))


def _head(kind: type[nn.Module]) -> tuple[str, tuple[str, ...]]:
    return HEADS[end] if (end := _end(kind)) else ("", DEFAULT_DATA)


def _labels(kind: type[nn.Module]) -> dict[str, str]:
    """How the data's classes are called, where the model has a head for them."""
    return {"num_classes": "num_labels"} if _head(kind)[0] in LABELLED else {}


def _end(kind: type[nn.Module]) -> str:
    return next((end for end in HEADS if kind.__name__.endswith(end)), "")


def _base_of(config: Any) -> Any:
    """The base class of configurations, whose parameters do not affect the architecture."""
    bases = [base for base in config.__mro__ if base.__name__ in ("PreTrainedConfig", "PretrainedConfig")]
    return bases[0] if bases else object


def _examples(found: Any) -> str:
    if not isinstance(found, types.ModuleType):
        return ""
    members = {n: v for n, v in vars(found).items() if not n.startswith("_")}
    good = [n for n, v in members.items() if _builds(v)][:MANY]
    return f"for example {', '.join(f'{found.__name__}.{n}' for n in good)}" if good else ""


def _builds(value: Any) -> bool:
    if isinstance(value, type):
        return issubclass(value, nn.Module)
    return inspect.isfunction(value) and returned(value) is not None
