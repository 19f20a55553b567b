"""A family from a `LightningModule`: its steps, and the values that they log, as the module of an array.

Nothing here imports Lightning: its classes are known by their names.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from hfta_nb.data import from_loader, leaves, tree_map
from hfta_nb.errors import DataError, FamilyError
from hfta_nb.models import metrics
from hfta_nb.models.metrics import Metric
from hfta_nb.models.recipes.functions import axis_of
from hfta_nb.models.recipes.lightning_optimizers import training_defaults
from hfta_nb.models.recipes.lists import parameters_of
from hfta_nb.models.recipes.preserve_rng import preserve_rng
from hfta_nb.models.recipes.recipe import Family
from hfta_nb.models.training_axes import ALIASES, TRAINING_AXES

_PACKAGES = ("pytorch_lightning", "lightning")
_HOOKS = ("backward", "configure_callbacks", "configure_gradient_clipping", "configure_model", "lr_scheduler_step",
          "optimizer_step", "optimizer_zero_grad", "prepare_data", "setup", "teardown",
          "transfer_batch_to_device")  # fmt: skip
"""What Lightning's trainer calls beside the steps, and an array has no place for, as for all that begin with "on_"."""

_NEVER_CALLED = ("on_test_", "on_predict_", "on_save_checkpoint", "on_load_checkpoint")
_ON_DATA = ("transfer_batch_to_device", "on_before_batch_transfer", "on_after_batch_transfer")
TASK = "generation"
"""The task of such data: the one without targets, as nobody but the steps knows what are inputs and targets."""

_STAGES = ("train", "val", "valid", "validation", "training")


def taken(family: Any, data: Any) -> tuple[Any, Any]:
    """Family and data of a study, where the family is a subclass of `LightningModule`; all others as they are.

    Args:
        family, data: as for `Study`. The data may be a `LightningDataModule`, or ``(training, validation)`` loaders.

    Raises:
        FamilyError: the class overrides a hook or uses something of the trainer that can't be fused, or its optimizer
            is not known.
        DataError: the data is no pair of loaders.
    """
    base = _base(family, "LightningModule")
    if base is None or not isinstance(family, type):
        return family, data
    _check_hooks(family, base, _HOOKS)
    training, validation = loaders = _loaders(data)
    with preserve_rng():
        torch.manual_seed(0)
        module = _built(family)
        if not module.automatic_optimization:
            raise _refused(family, "automatic_optimization = False", "a Phase for each optimizer: hfta_nb.Phase")
        defaults = training_defaults(module, family.__name__)
        logged = [_logged(module, loader, stage) for loader, stage in zip(loaders, (True, False), strict=True)]
    if "loss" not in logged[1]:
        raise FamilyError("logs no loss, and returns none", where=f"{family.__name__}.validation_step",
                          got=sorted(logged[1]), remedy='self.log("val_loss", loss)')  # fmt: skip
    names = tuple(dict.fromkeys(name for found in logged for name in found if name != "loss"))
    axes = {p.name: axis_of(family.__name__, p) for p in _own_parameters(family)}
    found = Family(
        family.__name__,
        Builder(family, names),
        axes,
        loss=_loss,
        metrics=metrics.checked({name: Metric(Logged(name), additive=True) for name in names}),
        help=(inspect.getdoc(family) or "").split("\n")[0],
        defaults=defaults,
        direct=True,
    )
    return found, from_loader(_paired(training), _paired(validation), task=TASK)


def unwrapped(module: nn.Module) -> nn.Module:
    """The `LightningModule` of a member; any other module as it is."""
    return module.module if isinstance(module, Steps) else module


class Builder:
    """Builds the module of a member from its values of the model's axes.

    Args:
        kind: the subclass of `LightningModule`.
        names: of the values that its steps log.
    """

    def __init__(self, kind: type[nn.Module], names: tuple[str, ...]) -> None:
        self.kind, self.names = kind, names
        self.__name__ = kind.__name__
        self.__signature__ = inspect.Signature(_own_parameters(kind))

    def __call__(self, **axes: Any) -> nn.Module:
        return Steps(self.kind(**axes), self.names)


class Steps(nn.Module):
    """A `LightningModule` that is called with a batch, and gives what its step of training or validation logs.

    Args:
        module: the `LightningModule`.
        names: of the logged values, the loss aside; what a step does not log is NaN.
    """

    def __init__(self, module: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.module, self.names = module, names

    def forward(self, *parts: Any, **named: Any) -> dict[str, Tensor]:
        """Scalars by name, "loss" first."""
        logged = step(self.module, self.training, named or (list(parts) if len(parts) > 1 else parts[0]))
        nothing = torch.full_like(logged["loss"].detach(), torch.nan)
        return {name: logged.get(name, nothing) for name in ("loss", *self.names)}


def step(module: nn.Module, training: bool, batch: Any) -> dict[str, Tensor]:
    """What a step returns and logs: the loss of training is the one that is returned."""
    name = "training_step" if training else "validation_step"
    with _logging(module) as logged:
        given = getattr(module, name)(batch, _NUMBER)
    returned = given.get("loss") if isinstance(given, Mapping) else given
    if isinstance(returned, Tensor) and (training or "loss" not in logged):
        logged["loss"] = returned
    elif training:
        raise FamilyError("returns no loss", where=f"{type(module).__name__}.{name}", got=given)
    return logged


@contextmanager
def _logging(module: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Collect what the module logs; whatever it asks of a trainer is refused."""
    logged: dict[str, Tensor] = {}

    def log(name: str, value: Any, *args: Any, **how: Any) -> None:
        if isinstance(value, nn.Module):
            raise FamilyError("logs an object of torchmetrics", where=type(module).__name__, got=name,
                              remedy="log its value for the batch, or give Study(..., metrics=...)")  # fmt: skip
        logged[plain_name(name)] = torch.as_tensor(value).detach()

    def log_dict(values: Mapping[str, Any], *args: Any, **how: Any) -> None:
        for name, value in values.items():
            log(name, value)

    before = dict(vars(module))
    vars(module).update(log=log, log_dict=log_dict, _trainer=_NoTrainer())
    try:
        yield logged
    finally:
        for name in ("log", "log_dict"):
            del vars(module)[name]
        vars(module)["_trainer"] = before["_trainer"]


def plain_name(name: str) -> str:
    """The name of a curve without the stage, which a study puts before it: "acc" of "train/acc" and "val_acc"."""
    parts = "".join(c if c.isalnum() else "_" for c in name).split("_")
    kept = parts[1:] if parts[0] in _STAGES and len(parts) > 1 else parts
    return "_".join(kept)


class Logged:
    """A metric that is a value which a step has logged."""

    def __init__(self, name: str) -> None:
        self.name = self.__name__ = name

    def __call__(self, output: Any, y: Any) -> Any:
        return output[self.name]


def _loss(output: Any, y: Any) -> Any:
    """The loss of a step."""
    return output["loss"]


class _NoTrainer:
    """Stands where a trainer would be."""

    def __getattr__(self, name: str) -> NoReturn:
        raise FamilyError("needs Lightning's trainer, which does not train the member", where="LightningModule",
                          got=f"self.trainer.{name}")  # fmt: skip


def _used(*args: Any) -> NoReturn:
    raise FamilyError("can't be fused, as members that join later are at another batch", where="batch_idx",
                      remedy="make the step independent of it")  # fmt: skip


_ASKED = ("eq", "ne", "lt", "le", "gt", "ge", "mod", "floordiv", "truediv", "mul", "add", "sub", "radd", "rsub", "rmul",
          "bool", "int", "index", "float")  # fmt: skip
_NUMBER = type("BatchNumber", (), {f"__{name}__": _used for name in _ASKED})()


def _base(kind: Any, name: str) -> type | None:
    """The class of Lightning of this name that a class is derived from."""
    every = kind.__mro__ if isinstance(kind, type) else ()
    return next((c for c in every if c.__name__ == name and c.__module__.partition(".")[0] in _PACKAGES), None)


def _check_hooks(kind: type, base: type, names: tuple[str, ...]) -> None:
    every = [n for n in dir(base) if n in names or (n.startswith("on_") and not n.startswith(_NEVER_CALLED))]
    for name in every:
        if getattr(kind, name, None) is not getattr(base, name):
            raise _refused(kind, name, "leave it out, or write the loop yourself: hfta_nb.fuse")


def _refused(kind: type, name: str, remedy: str) -> FamilyError:
    return FamilyError("can't be fused", where=kind.__name__, got=name, accepted="training_step, validation_step and "
                       "configure_optimizers of one optimizer", remedy=remedy)  # fmt: skip


def _own_parameters(kind: type) -> list[inspect.Parameter]:
    """The parameters that are axes of the model; those that have the name of a training axis keep their defaults."""
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    named = [p for p in parameters_of(kind) if p.kind not in several]
    return [p for p in named if p.name not in TRAINING_AXES and p.name not in ALIASES]


def _built(kind: type[nn.Module]) -> Any:
    lacking = [
        p.name for p in parameters_of(kind) if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if lacking:
        raise FamilyError("needs defaults, as its optimizer is read from the module that they give",
                          where=kind.__name__, got=lacking)  # fmt: skip
    return kind()


def _loaders(data: Any) -> tuple[DataLoader[Any], DataLoader[Any]]:
    """The loaders of training and validation."""
    base = _base(type(data), "LightningDataModule")
    if base is not None:
        _check_hooks(type(data), base, _ON_DATA)
        data.prepare_data()
        data.setup("fit")
        data = data.train_dataloader(), data.val_dataloader()
    fits = isinstance(data, tuple) and len(data) == 2 and all(isinstance(one, DataLoader) for one in data)
    if not fits:
        accepted = "a LightningDataModule, or (training, validation) where both are a DataLoader"
        raise DataError("not the data of a LightningModule", where="data", got=data, accepted=accepted)
    return data  # type: ignore[no-any-return]


def _logged(module: Any, loader: DataLoader[Any], training: bool) -> dict[str, Tensor]:
    """What a step of the first batch logs."""
    inputs = _as_inputs(next(iter(loader)))
    for tensor in leaves(inputs):
        if tensor.dtype == torch.uint8 and tensor.ndim == 4:
            raise DataError("images of bytes would be scaled", where="data", got="uint8",
                            remedy="convert them in the data set: images.float() / 255")  # fmt: skip
    dtype = next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.float32)
    batch = tree_map(lambda t: t.to(dtype) if t.is_floating_point() else t, inputs)
    module.train(training)
    with torch.set_grad_enabled(training):
        return step(module, training, list(batch) if isinstance(batch, tuple) else batch)


def _paired(loader: DataLoader[Any]) -> DataLoader[Any]:
    """The loader, whose batches are inputs as a whole."""
    found = copy.copy(loader)
    if loader.collate_fn is not None:
        found.collate_fn = Whole(loader.collate_fn)
    return found


class Whole:
    """Makes a batch an input as a whole, beside targets that nothing reads.

    Args:
        collate: makes a batch of samples.
    """

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self.collate = collate

    def __call__(self, samples: Any) -> tuple[Any, Tensor]:
        batch = _as_inputs(self.collate(samples))
        return batch, torch.zeros(len(leaves(batch)[0]))


def _as_inputs(batch: Any) -> Any:
    return tuple(batch) if isinstance(batch, list) else batch
