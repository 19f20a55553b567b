"""Models of transformers and timm with weights from this machine's files."""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hfta_nb.errors import FamilyError, HftaError
from hfta_nb.errors.caught_warnings import caught_warnings
from hfta_nb.models import weights as files
from hfta_nb.models.model_zoo.dotted import find, package
from hfta_nb.search.grid import AxisSpec

PRETRAINED = "pretrained"
"""As `weights`: those that belong to the family."""

POOLER = ".pooler."
"""What base models are often saved without, and begins anew then."""


def axes(default: str | None) -> dict[str, AxisSpec]:
    """The axes of what a model begins with, and of what of it is trained."""
    begin = "what a member begins with: a safetensors file or its folder, the family's own (pretrained), or None"
    train = "parameters that are trained: all, head, or patterns of their names; the others are frozen"
    return {
        "weights": AxisSpec("weights", "any", default, help=begin),
        "train": AxisSpec("train", "any", files.ALL, help=train),
    }


# transformers.


def config_of(folder: Path, path: str, **settings: Any) -> Any:
    """The configuration in a model's folder.

    Raises:
        FamilyError: there is none, it is damaged, or of no architecture that transformers has.
    """
    transformers = package("transformers", path)
    if not (folder / files.CONFIG).is_file():
        raise FamilyError(f"holds no {files.CONFIG}", where=path, got=str(folder))
    try:
        with _silent():
            return transformers.AutoConfig.from_pretrained(str(folder), local_files_only=True, **settings)
    except (OSError, ValueError, KeyError) as error:
        raise FamilyError(f"is not a configuration of transformers ({error})", where=path, got=str(folder)) from error


def class_of(name: str, config: Any, path: str) -> type[nn.Module]:
    """The class of a saved model: of a name, or as it was saved; of an Auto class, the one for this configuration.

    Raises:
        FamilyError: there is none.
    """
    if name == "transformers":
        saved = (getattr(config, "architectures", None) or [""])[0]
        if not saved:
            remedy = f"name it: transformers.AutoModelForSequenceClassification:{path.partition(':')[2]}"
            raise FamilyError("does not say of which class it is", where=path, remedy=remedy)
        name = f"transformers.{saved}"
    found = find(name)
    mapping = getattr(found, "_model_mapping", None)
    if mapping is not None and type(config) in mapping:
        found = mapping[type(config)]
        found = found[0] if isinstance(found, tuple) else found
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        accepted = "a class of transformers, or an Auto class that knows the configuration"
        raise FamilyError(f"has no model for {type(config).__name__}", where=path, got=name, accepted=accepted)
    return found


def transformer(kind: type[nn.Module], config: Any, source: str | Path | None, train: Any) -> nn.Module:
    """A model of transformers, as its `from_pretrained` makes it after ``torch.manual_seed``.

    Args:
        kind: its class.
        config: its configuration.
        source: of the weights; None for random ones.
        train: see `weights.freeze`; or a function that returns the names of what is trained, of the model and the names
            of what begins anew.

    Raises:
        FamilyError: the weights are not there, or not those of the model.
    """
    state, begun = dict[str, Tensor](), set[str]()
    if source is None or files.is_planned(source):
        model: Any = kind(config)
    else:
        state = dict(files.read(source))
        model, begun = _loaded_transformer(kind, config, state, f"weights {source}")
    names = [name for name, _ in model.named_parameters()]
    base = [name for name in names if name.startswith(_base(kind))]
    train = train(model, [n for n in names if n in begun]) if callable(train) else train
    files.freeze(model, train, [n for n in names if n in begun or (base and n not in base)])
    files.hold_once(model, state)
    found: nn.Module = model.train()
    return found


def _base(kind: type[nn.Module]) -> str:
    """What the names of the base model begin with in a model with a head."""
    return f"{getattr(kind, 'base_model_prefix', '')}."


def _loaded_transformer(kind: Any, config: Any, state: dict[str, Tensor], where: str) -> tuple[nn.Module, set[str]]:
    """A model with these weights, which may be its own tensors, and the names of what begins anew: the head."""
    title = config.name_or_path
    with _silent():
        model, info = kind.from_pretrained(
            None, config=config, state_dict=state, ignore_mismatched_sizes=True, output_loading_info=True,
            dtype=torch.get_default_dtype())  # fmt: skip
    for part in model.modules():  # which are named "None", as they come from no folder
        named: Any
        for named in (part, getattr(part, "config", None)):
            if hasattr(named, "name_or_path"):
                named.name_or_path = title
    for name in ("_weight_conversions", "_use_kernels"):  # empty, and in no random model, which it would keep apart
        if not vars(model).get(name, True):
            delattr(model, name)
    names, base = {name for name, _ in model.named_parameters()}, _base(kind)
    has_head = any(name.startswith(base) for name in names)
    unlike = {name for name, *_ in info["mismatched_keys"]}
    begun = (set(info["missing_keys"]) | unlike) & names
    lost = sorted(n for n in begun if (n.startswith(base) or not has_head) and POOLER not in f".{n}")
    files.check_names(where, [n for n in lost if n not in unlike], [n for n in lost if n in unlike])
    return model, begun


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Without the bar and the report of transformers, whose information is an error here, or as it should be."""
    log = package("transformers.utils.logging", "transformers")
    level, bar = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(level)
        if bar:
            log.enable_progress_bar()


# timm.


def timm_model(name: str, source: str | Path | None, train: Any, **settings: Any) -> nn.Module:
    """A model of timm, as its `create_model` makes it after ``torch.manual_seed``; its first layer is adapted to other
    channels, and its head begins anew for other classes.

    Args:
        name: timm's.
        source: of the weights; "pretrained" for those of the hub, if they are cached; None for random ones.
        train: see `weights.freeze`.
        settings: see the model.

    Raises:
        FamilyError: the weights are not there, or not those of the model.
    """
    timm = package("timm", f"timm.{name}")
    place, state = _hub_name(timm, name) if source == PRETRAINED else source, dict[str, Tensor]()
    if place is None or files.is_planned(place):
        model = timm.create_model(name, pretrained=False, **settings)
    else:
        state = dict(files.read(place, f"timm.{name}, weights"))
        model = _loaded(timm, name, state, settings, f"weights {place}")
    heads = model.pretrained_cfg.get("classifier") or ()
    begins = tuple(f"{head}." for head in ([heads] if isinstance(heads, str) else heads))
    files.freeze(model, train, [n for n, _ in model.named_parameters() if n.startswith(begins)])
    files.hold_once(model, state)
    found: nn.Module = model
    return found


def _hub_name(timm: Any, name: str) -> str:
    config = timm.get_pretrained_cfg(name)
    if config is None or not config.hf_hub_id:
        raise FamilyError("timm has no weights for it", where=f"timm.{name}", got=PRETRAINED,
                          accepted="a safetensors file or its folder")  # fmt: skip
    return str(config.hf_hub_id)


def _loaded(timm: Any, name: str, state: Mapping[str, Tensor], settings: Mapping[str, Any], where: str) -> nn.Module:
    config = timm.get_pretrained_cfg(name)
    heads = config.classifier if config is not None else None
    head = heads if isinstance(heads, str) or not heads else heads[0]
    saved = len(state[f"{head}.weight"]) if f"{head}.weight" in state else settings.get("num_classes", 0)
    overlay = {"state_dict": dict(state), "source": "", "custom_load": False, "num_classes": saved}
    make = {"pretrained": True, "pretrained_cfg_overlay": overlay}
    try:
        if settings.get("num_classes", saved) != saved:  # timm looks at no name then; with the file's head it does
            with torch.device("meta"), caught_warnings():
                warnings.simplefilter("ignore", UserWarning)
                timm.create_model(name, **{**settings, "num_classes": saved}, **make)
        model: Any = timm.create_model(name, **settings, **make)
    except (RuntimeError, KeyError) as error:
        if isinstance(error, HftaError):
            raise
        words = inspect.cleandoc(str(error)).replace("\n", " ")
        raise FamilyError(f"do not fit the model ({words})", where=where, got=name) from error
    for kept in (model.pretrained_cfg, getattr(model, "default_cfg", {})):
        kept.pop("state_dict", None)
    return model
