"""Families by the name of a constructor: ``torchvision.models.resnet18``, ``timm.vit_tiny_patch16_224``,
``transformers.BertForMaskedLM``, ``package.module.Class``.

Names can come from a file (a saved study), so not every importable object is called: classes must be modules, and
functions must be annotated to return a module or belong to the packages above.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import nn

from hfta_nb.errors import FamilyError
from hfta_nb.models.model_zoo.dotted import KNOWN_PACKAGES, find, package, unknown
from hfta_nb.models.recipes import DEFAULT_DATA, FACTS, Family
from hfta_nb.models.training_axes import TRAINING_AXES
from hfta_nb.search.grid import AxisSpec

FACT_NAMES: dict[str, str] = {
    **{name: name for name in FACTS if name != "context"},
    **dict.fromkeys(("num_labels", "n_classes"), "num_classes"),
    **dict.fromkeys(("in_chans", "num_channels"), "in_channels"),
    "img_size": "image_size",
}
"""Parameters that the data fills in, each with its fact."""

WITHOUT: dict[str, Any] = {
    **dict.fromkeys(("weights", "weights_backbone")),
    **dict.fromkeys(("pretrained", "pretrained_backbone", "progress"), False),
}
"""Parameters that are never an axis, and their values: a variant starts from its own seed, not from pretrained
weights."""

NO_AXES = frozenset({*WITHOUT, "device", "dtype", "pretrained_cfg", "pretrained_cfg_overlay", "checkpoint_path"})

HEADS: dict[str, tuple[str, tuple[str, ...]]] = {
    "ForMaskedLM": ("masked_language_model", ("english_masked", "english_words_masked")),
    "ForCausalLM": ("language_model", ("english", "english_words")),
    "LMHeadModel": ("language_model", ("english", "english_words")),
    "ForImageClassification": ("classification", ("digits",)),
    "ForSequenceClassification": ("classification", ()),
}
"""Tasks of transformers' models, by the end of their name."""

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
        recipe = recipe_of(self.path)
        module: nn.Module = recipe.make(**{recipe.facts.get(k, k): v for k, v in arguments.items()})
        return module

    @property
    def __signature__(self) -> inspect.Signature:
        recipe = recipe_of(self.path)
        facts = {parameter: fact for fact, parameter in recipe.facts.items()}
        names = [facts.get(name, name) for name in recipe.required]
        return inspect.Signature([inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY) for n in names])


def family_of(path: str) -> Family:
    """The family of a constructor.

    Args:
        path: its name, with the package.

    Raises:
        FamilyError: the package is not installed, the name does not exist, or it does not build a module.
    """
    recipe = recipe_of(path)
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


@functools.cache
def recipe_of(path: str) -> Recipe:
    """See `family_of`."""
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
    if top not in KNOWN_PACKAGES and _returned(found) is None:
        raise FamilyError(
            "does not say that it builds a module",
            where=path,
            accepted="a function whose return annotation is a class of nn.Module",
            remedy="annotate it (-> nn.Module), or make it a family with @hfta_nb.family",
        )
    return _of_callable(path, found)


# Where constructors come from.


def _of_callable(path: str, make: Callable[..., Any]) -> Recipe:
    own = _Parameters(path, make)
    made = None if isinstance(make, type) else _returned(make)
    if own.open and made is not None:
        own.add_hidden(_Parameters(path, made))
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
        _first_line(make),
    )


def _of_timm(path: str, name: str) -> Recipe:
    timm = package("timm", path)
    if not timm.is_model(name):
        known = timm.list_models()
        raise unknown(path, "no such model of timm", [f"timm.{n}" for n in known])
    entry = timm.model_entrypoint(name)
    hidden = _Parameters(path, entry)
    made = _returned(entry)
    if made is not None:
        hidden.add_hidden(_Parameters(path, made))
    make = functools.partial(timm.create_model, name, pretrained=False)
    return Recipe(make, hidden.axes, hidden.facts, (), True, ("classification",), DEFAULT_DATA, _first_line(entry))


def _of_transformers(path: str, kind: type[nn.Module], config: Any) -> Recipe:
    if config is None:
        raise FamilyError(
            "has no configuration class of its own", where=path, remedy="name a model, such as BertForMaskedLM"
        )
    common = set(_Parameters(path, _base_of(config)).names)
    fields = _Parameters(path, config, leave_out=common)
    facts = {f: p for f, p in fields.facts.items() if f != "num_classes"}
    end = next((end for end in HEADS if kind.__name__.endswith(end)), "")
    task, data = HEADS.get(end, ("", DEFAULT_DATA))
    if task == "classification":
        facts["num_classes"] = "num_labels"
    length = getattr(config, "attribute_map", {}).get("max_position_embeddings", "max_position_embeddings")
    if length not in fields.axes:
        length = ""
    if length and task in ("language_model", "masked_language_model"):
        facts["context"] = "context"
    make = functools.partial(_make_transformer, kind, config, length, "use_cache" in fields.names)
    tasks = (task,) if task else ()
    return Recipe(make, fields.axes, facts, (), False, tasks, data or DEFAULT_DATA, _first_line(kind))


def _make_transformer(
    kind: type[nn.Module], config: Any, length: str, caches: bool, context: int | None = None, **settings: Any
) -> nn.Module:
    if caches:  # useless in training, and large
        settings = {"use_cache": False, **settings}
    made = config(**settings)
    if context is not None and length not in settings and getattr(made, length) < context + 2:
        # Some models number positions from the padding index, which is at most 1.
        made = config(**settings, **{length: context + 2})
    return kind(made)


def _base_of(config: Any) -> Any:
    """The base class of configurations, whose parameters do not affect the architecture."""
    bases = [base for base in config.__mro__ if base.__name__ in ("PreTrainedConfig", "PretrainedConfig")]
    return bases[0] if bases else object


# Signatures.


@dataclass
class _Parameters:
    """The usable parameters of a signature."""

    path: str
    of: Any
    leave_out: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.axes: dict[str, AxisSpec] = {}
        self.facts: dict[str, str] = {}
        self.lacking: list[str] = []
        found = _signature(self.of)
        parameters = [] if found is None else list(found.parameters.values())
        self.open = found is None or any(p.kind is p.VAR_KEYWORD for p in parameters)
        named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        self.names = [p.name for p in named]
        for parameter in named:
            if parameter.name not in self.leave_out and parameter.name not in NO_AXES:
                self._take(parameter)
        self.required = tuple(p.name for p in named if p.default is p.empty)

    def _take(self, parameter: inspect.Parameter) -> None:
        name = parameter.name
        needed = parameter.default is parameter.empty
        default = None if needed else parameter.default
        if name in FACT_NAMES:
            self.facts.setdefault(FACT_NAMES[name], name)
            return
        kind = _kind(parameter.annotation, default)
        if kind is not None and name not in TRAINING_AXES and _is_plain(default):
            self.axes[name] = AxisSpec(name, kind[0], default, kind[1])
        elif needed:
            self.lacking.append(name)

    def add_hidden(self, more: _Parameters) -> None:
        """Add parameters that are passed on through ``**kwargs``; the constructor sets their defaults."""
        self.facts = {**more.facts, **self.facts}
        hidden = {k: v for k, v in more.axes.items() if k not in more.required}
        self.axes = {**{k: AxisSpec(k, v.type, None, v.choices) for k, v in hidden.items()}, **self.axes}

    def check(self) -> None:
        if self.lacking:
            raise FamilyError(
                "takes arguments that can't be axes",
                where=self.path,
                got=", ".join(self.lacking),
                accepted="numbers, booleans, strings and tuples of these",
                remedy="write a function that builds it and make that a family with @hfta_nb.family",
            )


def _signature(of: Any) -> inspect.Signature | None:
    for evaluated in (True, False):
        try:
            return inspect.signature(of, eval_str=evaluated)
        except NameError:
            continue
        except (TypeError, ValueError):
            return None
    return None


def _returned(function: Any) -> type[nn.Module] | None:
    """The module class in a function's return annotation."""
    found = _signature(function)
    kind = None if found is None else found.return_annotation
    if isinstance(kind, str):  # the annotation has a name that can't be resolved there
        kind = getattr(inspect.getmodule(function), kind, None)
    return kind if isinstance(kind, type) and issubclass(kind, nn.Module) else None


_TYPES = {int: "int", float: "float", bool: "bool", str: "str"}


def _kind(annotation: Any, default: Any) -> tuple[str, tuple[Any, ...]] | None:
    """Type and choices of an axis; None if its values can't be written."""
    if annotation is inspect.Parameter.empty or isinstance(annotation, str):
        return _TYPES.get(type(default), "any"), ()
    if annotation in _TYPES:
        return _TYPES[annotation], ()
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return "any", inner
    if origin in (typing.Union, types.UnionType):
        kinds = [k for k in (_kind(a, default) for a in inner if a is not type(None)) if k is not None]
        if not kinds:
            return None
        if {k[0] for k in kinds} == {"float", "int"}:
            return "float", ()
        none_too = type(None) in inner and default is not None  # which a numeric axis would refuse
        return kinds[0] if len(kinds) == 1 and not none_too else ("any", ())
    plain = annotation in (tuple, list, Any) or origin in (tuple, list, Sequence)
    return ("any", ()) if plain else None


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def _first_line(of: Any) -> str:
    lines = (inspect.getdoc(of) or "").strip().splitlines()
    return lines[0].strip() if lines else ""


def _examples(found: Any) -> str:
    if not isinstance(found, types.ModuleType):
        return ""
    members = {n: v for n, v in vars(found).items() if not n.startswith("_")}
    good = [n for n, v in members.items() if _builds(v)][:MANY]
    return f"for example {', '.join(f'{found.__name__}.{n}' for n in good)}" if good else ""


def _builds(value: Any) -> bool:
    if isinstance(value, type):
        return issubclass(value, nn.Module)
    return inspect.isfunction(value) and _returned(value) is not None
