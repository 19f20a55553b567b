"""The recipe for a variant's module, loss and metrics."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from torch import Tensor, nn

from hfta_nb.data import AnyData, augment, task_of
from hfta_nb.data.labels import beside_mask
from hfta_nb.errors import FamilyError, GridError
from hfta_nb.models import imbalance, losses, metrics, phases, weights
from hfta_nb.models.metrics import Metric
from hfta_nb.models.phases import Phase
from hfta_nb.models.recipes.lists import as_list, lists_of
from hfta_nb.models.recipes.preserve_rng import settings_kept
from hfta_nb.models.recipes.showing import shown
from hfta_nb.models.study_config import ARGUMENTS, OTHER_NAMES
from hfta_nb.models.training_axes import ALIASES, NOT_AXES, TRAINING_AXES, USED_BY
from hfta_nb.search.grid import AxisSpec, bare_name

FACTS = (
    *("in_features", "out_features", "num_classes", "in_channels", "image_size"),
    *("vocab_size", "context", "dense_features", "categorical_features", "categories"),
)
"""Parameters of a build function that the data fills in if it knows them."""

DEFAULT_DATA = ("digits", "breast_cancer", "wine", "iris", "diabetes")
"""Data sets of a family that does not name any."""


@dataclass(frozen=True)
class Family:
    """A recipe whose `build` returns a plain module.

    Attributes:
        name: name of the family.
        function: the build function.
        axes: the axes of its signature, by name.
        facts: names of its parameters that the data fills in.
        data: names of suitable data sets, the default first.
        loss: function of one member's output and the target that returns a scalar; None for the task's usual loss.
        metrics: metrics by name; None for the task's usual ones.
        help: description in one line.
        phases: phases of a training step, if the module holds several networks; see `Phase`.
        defaults: the family's own defaults of training axes.
        monitor: the metric that decides which epoch is best, unless a study names another; None for the usual one.
        tasks: supported tasks (see `Data`); empty for any.
        inputs: kinds of inputs that its modules take (see `inputs.KINDS`); empty for any.
        param_groups: function of a parameter's name and the plain module's parameter that returns the hyperparameters
            of its group, such as ``{"weight_decay": 0.0}`` or ``{"lr_scale": 0.1}``; None for one group.
        own: what a study has replaced: "loss", "metrics", "param_groups".
        direct: whether it was made from a function or class passed to a study, and is not registered by name.
        open: whether `function` takes further keyword arguments, which are axes without checks.
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
    inputs: tuple[str, ...] = ()
    param_groups: Callable[..., Mapping[str, Any]] | None = None
    own: tuple[str, ...] = ()
    direct: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "loss", losses.held(self.loss, "loss"))
        own = tuple(replace(phase, loss=losses.held(phase.loss, phase.score)) for phase in self.phases)
        object.__setattr__(self, "phases", own)

    @cached_property
    def lists(self) -> frozenset[str]:
        """The arguments that take a list."""
        return lists_of(self.function)

    @property
    def training(self) -> dict[str, AxisSpec]:
        """The training axes with the family's own defaults, followed by the axes of its phases."""
        common = {
            name: replace(spec, default=self.defaults[name]) if name in self.defaults else spec
            for name, spec in TRAINING_AXES.items()
        }
        return common | phases.own_axes(self.phases, TRAINING_AXES)

    @property
    def specs(self) -> dict[str, AxisSpec]:
        """All axes that a grid may have: lr, the family's own, the other training axes, and the axes of augmentation
        that suit one of its data sets."""
        own = augment.axes_of(self.data)
        return self._specs(own, *(task_of(name) for name in self.data))

    @property
    def augmentation(self) -> dict[str, dict[str, AxisSpec]]:
        """The axes of augmentation among `specs`, by kind of data."""
        found = {
            kind: {n: a for n, a in axes.items() if n in self.specs and n not in self.axes}
            for kind, axes in augment.BY_KIND.items()
        }
        return {kind: axes for kind, axes in found.items() if axes}

    def specs_for(self, data: AnyData | str, more: Iterable[str] = ()) -> dict[str, AxisSpec]:
        """All axes that a grid may have on this data set.

        Args:
            data: the data set, or the name of a known one.
            more: further requested names; a family that is `open` accepts any.
        """
        specs = self._specs(augment.axes_for(data), task_of(data) if isinstance(data, str) else data.task)
        folds = () if isinstance(data, str) else data.folds
        if folds:
            specs["fold"] = AxisSpec("fold", "int", 0, low=0, high=len(folds) - 1, help="Fold of the training samples.")
        own = [n for n in more if n not in specs and self._takes(n)] if self.open else []
        return specs | {name: AxisSpec(name) for name in own}

    def no_axis(self, name: str, data: AnyData | str) -> GridError:
        """The error for an axis that `specs_for` lacks."""
        specs, where = self.specs_for(data), f"grid of {self.name}"
        if name in augment.AXES:
            what, suits = augment.why_not(name, data), [n for n in specs if n in augment.AXES]
            return GridError(what, where=where, got=name, accepted=", ".join(suits), remedy="take the axis out")
        if name in imbalance.AXES:
            what, remedy = f"{name} is for the usual loss of classes", "take the axis out, or leave out loss=..."
            return GridError(what, where=where, got=name, accepted=", ".join(specs), remedy=remedy)
        known = ALIASES.get(name.lower(), bare_name(name))
        close = [known] if known in specs else difflib.get_close_matches(name.lower(), [*specs, *ARGUMENTS], 1)
        remedy = (
            f"did you mean {close[0]}?"
            if close
            else "check the spelling; axes of the model are parameters of what builds it"
        )
        if close and close[0] in ARGUMENTS and close[0] not in specs:
            remedy = f"{close[0]} is one for all variants: give Study(..., {close[0]}=...)"
        remedy = (NOT_AXES | OTHER_NAMES).get(name.lower(), remedy)
        return GridError("unknown axis", where=where, got=name, accepted=", ".join(specs), remedy=remedy)

    def _specs(self, augmentation: Mapping[str, AxisSpec], *tasks: str | None) -> dict[str, AxisSpec]:
        # A parameter of the build function that has the name of an augmentation is an axis of the model.
        usual = self.loss is None or losses.is_cross_entropy(self.loss)
        remedies = {name: spec for task in tasks for name, spec in imbalance.axes_for(task).items()}
        more = {**(remedies if usual and not self.phases else {}), **augmentation}
        more = {name: spec for name, spec in more.items() if name not in self.axes}
        training = self.training
        return {"lr": training["lr"], **self.axes, **training, **more}

    @property
    def used_by(self) -> dict[str, tuple[str, frozenset[str]]]:
        """Axes that have no effect unless another axis has one of these values."""
        own = {f"{p.name}_{name}": USED_BY[name] for p in self.phases for name in phases.OWN_AXES if name in USED_BY}
        return USED_BY | own

    def build(self, **axes: Any) -> nn.Module:
        """Build the plain module of these values; other axes have their defaults.

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
        given = {k: as_list(v) if k in self.lists else v for k, v in given.items()}
        with settings_kept():
            module = self.function(**given)
        if not isinstance(module, nn.Module):
            raise FamilyError(
                "the build function did not return a module", where=self.name, got=module, accepted="torch.nn.Module"
            )
        return module

    def member(self, **axes: Any) -> nn.Module:
        """What `build` returns, with copies of the losses that have parameters. Weights that were loaded and are not
        trained are the same tensors in all members."""
        every = [self.loss, *(phase.loss for phase in self.phases)]
        own = {loss.name: loss.loss for loss in every if isinstance(loss, losses.HeldLoss)}
        with weights.shared():
            return losses.attach(self.build(**axes), own)

    def arguments(self, config: Mapping[str, Any], data: AnyData) -> dict[str, Any]:
        """The arguments of `build` for a variant's values on this data."""
        known = {k: data.facts[k] for k in self.facts if k in data.facts}
        return known | {k: v for k, v in config.items() if self._takes(k)}

    def loss_for(self, data: AnyData) -> losses.Loss:
        """The family's loss, or the usual one of the data's task."""
        return losses.for_task(data.task) if self.loss is None else self.loss  # a loss may be false: an empty bank

    def objective_for(self, data: AnyData) -> losses.Loss | tuple[Phase, ...]:
        """The objective of a training step: its phases, or the loss."""
        return self.phases or self.loss_for(data)

    def scores_for(self, data: AnyData) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The scores of an epoch, in training and in validation: the losses, then the metrics.

        With phases there are no metrics in training, because they would need another call of the module.
        """
        names = ("loss", *(p.score for p in self.phases))
        measured = tuple(self.metrics_for(data))
        return (names if self.phases else names + measured), names + measured

    def metrics_for(self, data: AnyData) -> dict[str, Metric]:
        """The family's metrics by name, or the usual ones of the data's task, which a loss of numbers makes a
        regression; none of targets of several kinds."""
        if self.metrics is not None:
            return self.metrics
        numbers = data.task == "classification" and metrics.of_numbers(self.loss)
        task = "regression" if numbers else data.task
        y, _ = beside_mask(data.examples[1])
        return metrics.usual(task, data.facts) if isinstance(y, Tensor) else {}

    def _repr_html_(self) -> str:
        return shown(self.name, self.axes, self.specs, self.data, self.help)

    def _takes(self, name: str) -> bool:
        """Whether an axis is an argument of `function`."""
        others = name in augment.AXES or name in imbalance.AXES or name in self.training or name in self.facts
        return name in self.axes or (self.open and name.isidentifier() and not others)

    def _required(self) -> list[str]:
        signature = inspect.signature(self.function).parameters.values()
        several = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        return [p.name for p in signature if p.default is p.empty and p.kind not in several]
