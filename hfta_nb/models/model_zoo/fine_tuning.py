"""Families that fine-tune a saved model of transformers: its head alone, its last layers, or adapters of peft.

Their name is followed by the model's folder: ``lora_classifier:folder``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from hfta_nb.errors import FamilyError
from hfta_nb.errors.caught_warnings import caught_warnings
from hfta_nb.models import weights as files
from hfta_nb.models.model_zoo.dotted import package
from hfta_nb.search.grid import AxisSpec

Build = Callable[..., nn.Module]
"""Builds a model with its weights; `train` is as for `weights.freeze`."""

CLASSIFIER, CAUSAL_LM = "transformers.AutoModelForSequenceClassification", "transformers.AutoModelForCausalLM"
CLASSES = {
    "lora_classifier": CLASSIFIER,
    "lora_causal_lm": CAUSAL_LM,
    "linear_probe": CLASSIFIER,
    "finetune": "transformers",
}
"""The model's class by family; "transformers" for the one that was saved."""

PEFT_TASKS = {"lora_classifier": "SEQ_CLS", "lora_causal_lm": "CAUSAL_LM"}

_LAYERS = AxisSpec("layers_to_train", "int", None, low=1,
                   help="how many of the last layers are adapted or trained; None for all")  # fmt: skip
_LORA = (
    AxisSpec("r", "int", 8, low=1, help="rank of the adapters"),
    AxisSpec("alpha", "float", 8, above=0, help="lora_alpha: the adapters' output is scaled by alpha / r"),
    AxisSpec("lora_dropout", "float", 0.0, low=0, high=1, help="dropout of the adapters' input"),
    AxisSpec("target_modules", "any", None,
             help='modules that get an adapter: names, "all-linear", or None for peft\'s choice'),
    AxisSpec("init", "any", True, (True, False, "gaussian", "orthogonal"), help="peft's init_lora_weights"),
    AxisSpec("use_rslora", "bool", False, help="scale by alpha / sqrt(r)"),
    AxisSpec("use_dora", "bool", False, help="adapt magnitude and direction (DoRA)"),
)  # fmt: skip


def axes(name: str, model: Mapping[str, AxisSpec]) -> dict[str, AxisSpec]:
    """The axes of a family, given those of the model that it adapts.

    The family says what is trained; and an adapter is one of the folder's weights.
    """
    lora = name in PEFT_TASKS
    own = {n: axis for n, axis in model.items() if n != "train" and (n != "weights" or not lora)}
    if name == "linear_probe":
        return own
    return own | {spec.name: spec for spec in (*(_LORA if lora else ()), _LAYERS)}


def build(name: str, make: Build, path: str, layers_to_train: int | None = None, **settings: Any) -> nn.Module:
    """A model of a family, as transformers and peft make it after ``torch.manual_seed``.

    Args:
        name: one of `CLASSES`.
        make: builds the model to adapt.
        path: of the family; for messages.
        layers_to_train: see `axes`.
        settings: values of the axes.

    Raises:
        FamilyError: the model has no such layers or modules, or peft is not installed.
    """
    if name == "linear_probe":
        return make(train=files.HEAD, **settings)
    if name == "finetune":
        last = None if layers_to_train is None else lambda module, _: _from_layer(module, layers_to_train, path)
        return make(train=last or files.ALL, **settings)
    own = {spec.name: settings.pop(spec.name, spec.default) for spec in _LORA}
    anew = list[str]()

    def begun(module: nn.Module, names: Sequence[str]) -> Sequence[str]:
        anew.extend(_owners(module, names))
        return names

    model = make(train=begun, **settings)
    last_layers = None if layers_to_train is None else _last(model, layers_to_train, path)
    return _adapted(model, PEFT_TASKS[name], own, last_layers, anew, path)


def _adapted(
    model: nn.Module, task: str, own: dict[str, Any], layers: list[int] | None, anew: list[str], path: str
) -> nn.Module:
    peft = package("peft", path)
    targets = own["target_modules"]
    try:
        config = peft.LoraConfig(
            task_type=task,
            r=own["r"],
            lora_alpha=own["alpha"],
            lora_dropout=own["lora_dropout"],
            target_modules=targets if targets is None or isinstance(targets, str) else list(targets),
            init_lora_weights=own["init"],
            use_rslora=own["use_rslora"],
            use_dora=own["use_dora"],
            layers_to_transform=layers,
            # What begins anew is not in the model's folder; with the adapter alone it would be lost.
            modules_to_save=anew or None,
        )
        with caught_warnings():  # of a name in transformers that is to go, and of layers that it takes as they are
            warnings.simplefilter("ignore")
            found: nn.Module = peft.get_peft_model(model, config)
    except (ValueError, TypeError) as error:
        raise FamilyError(f"peft refuses it ({error})", where=path, got={k: v for k, v in own.items() if v}) from error
    return found.train()


def _owners(module: nn.Module, names: Sequence[str]) -> list[str]:
    """The outermost modules whose parameters all have these names."""
    found, chosen = list[str](), set(names)
    for path, inner in module.named_modules():
        own = {f"{path}.{name}" for name, _ in inner.named_parameters()}
        if own and own <= chosen and not any(path.startswith(f"{outer}.") for outer in found):
            found.append(path)
    return found


def _layers(module: Any, path: str) -> tuple[str, nn.ModuleList]:
    """The list of a model's layers, the last one (of the decoder) where it has two, and its name."""
    count = getattr(module.config, "num_hidden_layers", None)
    found = [(n, m) for n, m in module.named_modules() if isinstance(m, nn.ModuleList) and len(m) == count]
    if not found:
        raise FamilyError(f"no list of {count} layers in {type(module).__name__}", where=path, got="layers_to_train",
                          remedy="leave it out, or take transformers:FOLDER, which has the axis train")  # fmt: skip
    return found[-1]


def _last(module: nn.Module, count: int, path: str) -> list[int]:
    """The numbers of the last `count` layers."""
    _, layers = _layers(module, path)
    if count > len(layers):
        raise FamilyError("more layers than the model has", where=f"{path}, layers_to_train", got=count,
                          accepted=f"1 to {len(layers)}, or linear_probe for the head alone")  # fmt: skip
    return list(range(len(layers) - count, len(layers)))


def _from_layer(module: nn.Module, count: int, path: str) -> list[str]:
    """The names of the parameters of the last `count` layers and of what follows them in the model."""
    prefix, _ = _layers(module, path)
    last = {f"{prefix}.{i}" for i in _last(module, count, path)}
    names = [name for name, _ in module.named_parameters()]
    inside = [name for name in names if name.startswith(f"{prefix}.")]
    after = names[names.index(inside[-1]) + 1 :] if inside else []
    head = len(prefix.split(".")) + 1
    return [name for name in inside if ".".join(name.split(".")[:head]) in last] + after
