"""Metrics by task. A metric sees ONE member's output and the target, on the device; it runs inside `vmap` if it can.

Targets that are missing do not count; see `hfta_nb.models.masks`.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hfta_nb.errors import FamilyError
from hfta_nb.errors.border import FLAG, FUNCTION, check
from hfta_nb.models import frechet, metric_sums
from hfta_nb.models.accumulators import Factory, collected, is_of_function, of_torchmetrics
from hfta_nb.models.directions import direction_of, more_is_better, normal
from hfta_nb.models.losses import IGNORED, HeldLoss, MemberLoss, NamedLoss, classes_last, prediction
from hfta_nb.models.masks import classes_of, numbers_of
from hfta_nb.models.targets import shaped_as


@dataclass(frozen=True)
class Metric:
    """A metric, and which way is better.

    In validation, a function is called once per member, with the outputs and targets of the whole validation set, as a
    loop of one's own does with F1, AUC or R2. In training it is called for each batch, and the value of an epoch is the
    mean over samples.

    Attributes:
        function: from one member's output ``[N, ...]`` and target ``[N, ...]`` to one number, of Python, NumPy or a
            tensor; with `finish`, to a tensor of sums that add up over batches. An object of torchmetrics does as well.
        maximize: whether more is better: True or "max" for a score, False or "min" for an error; None where it is not
            known: then the metric can't be monitored or be an objective.
        finish: from the sums over all samples to a scalar, where the metric of many batches is not the mean of theirs.
        accumulator: makes what is kept for each member from batch to batch, outside `vmap`, where sums do not do; then
            `function` gives what it takes, the prediction.
        additive: the metric of many batches is the mean of theirs over samples, so that validation, too, calls it for
            each batch, and keeps no outputs.

    Raises:
        FamilyError: `maximize` is none of these.

    Example:
        >>> Metric(lambda output, y: (output - y).abs().max().item(), maximize="min").maximize
        False
    """

    function: Callable[[Any, Any], Any]
    maximize: bool | str | None = None
    finish: Callable[[Tensor], Tensor] | None = None
    accumulator: Factory | None = None
    additive: bool = False

    def __post_init__(self) -> None:
        check(FamilyError, "Metric", vars(self), function=FUNCTION, finish=FUNCTION.or_none,
              accumulator=FUNCTION.or_none, additive=FLAG)  # fmt: skip
        object.__setattr__(self, "maximize", self.maximizes)

    @property
    def maximizes(self) -> bool | None:
        """`maximize` as a truth value; None where it is not known."""
        return direction_of(self.maximize)

    @property
    def whole(self) -> bool:
        """Whether validation calls the function once, with the whole validation set."""
        bare = self.accumulator is None or is_of_function(self.accumulator)
        return bare and self.finish is None and not self.additive

    def __call__(self, output: Any, target: Any) -> Any:
        """The metric of this batch only: one number."""
        value = self.function(output, target)
        if self.accumulator is not None:
            kept = self.accumulator(value.device)
            kept.update(value, target)
            return kept.compute()
        return value if self.finish is None else self.finish(value)


def _seen(function: Callable[[Tensor, Tensor], Tensor], requested: bool = True) -> Callable[[Any, Any], Tensor]:
    """Of a model's prediction, classes in the last axis; of targets that are shares of classes the largest counts. NaN
    where outputs have no place for classes and nobody has `requested` the metric."""

    def see(output: Any, target: Any) -> Tensor:
        found, y = prediction(output), classes_of(target)
        classes = _largest(y) if y.is_floating_point() else shaped_as(y, found)
        logits = classes_last(found, classes)
        one = logits.numel() == classes.numel()
        if not requested and not one and logits.shape[:-1] != classes.shape:
            return found.new_full((2,), torch.nan)
        return function(logits, classes)

    see.__doc__ = function.__doc__
    return see


def _largest(shares: Tensor) -> Tensor:
    """The class of the largest share; `IGNORED` where shares are NaN."""
    return torch.where((shares == shares).all(-1), shares.argmax(-1), IGNORED)


def _of_logits(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Any, Any], Tensor]:
    """Of a model's prediction and its targets, both ``[N]`` or ``[N, 1]``."""

    def see(output: Any, target: Any) -> Tensor:
        found = prediction(output).reshape(-1)
        numbers, known = numbers_of(target, found, classes=True)
        return function(found, torch.where(known, numbers, IGNORED).reshape(-1).long())

    return see


def _errors(requested: bool) -> Callable[[Any, Any], Tensor]:
    """The sum of absolute errors, and their number; NaN of targets of another shape than the prediction's where nobody
    has `requested` the metric."""

    def see(output: Any, target: Any) -> Tensor:
        found = prediction(output)
        numbers, known = numbers_of(target, found)
        if not _fits(numbers.shape, found.shape):
            if not requested:
                return found.new_full((2,), torch.nan)
            raise FamilyError(
                "outputs and targets are of unlike shape",
                where="metric mae",
                got=[list(found.shape), list(numbers.shape)],
                remedy="name the study's metrics, functions of your own among them: Study(..., metrics={...}), or {}",
            )
        errors, known = (found - numbers).abs(), known.expand_as(found)
        return torch.stack([torch.where(known, errors, 0).sum(), known.sum().to(errors.dtype)])

    return see


def _fits(shape: torch.Size, whole: torch.Size) -> bool:
    """True if a tensor of this shape broadcasts to the whole."""
    return len(shape) <= len(whole) and all(n in (1, m) for n, m in zip(shape[::-1], whole[::-1], strict=False))


accuracy = Metric(_seen(metric_sums.hits), maximize=True, finish=metric_sums.ratio)
"""Fraction of samples (points, pixels, tokens) whose largest output is the target class; of those that have one. A
model with one output predicts class 1 where that is above 0."""

usual_accuracy = Metric(_seen(metric_sums.hits, requested=False), maximize=True, finish=metric_sums.ratio)
"""The same of any loss; NaN where its outputs, those of several tasks say, are no logits of the targets."""

top5 = Metric(_seen(metric_sums.top5), maximize=True, finish=metric_sums.ratio)
"""Fraction of samples whose target class is among the five largest outputs."""

usual_top5 = Metric(_seen(metric_sums.top5, requested=False), maximize=True, finish=metric_sums.ratio)
"""The same of any loss, likewise."""

mae = Metric(_errors(requested=True), maximize=False, finish=metric_sums.ratio)
"""Mean absolute error; output and target ``[N, ...]``."""

usual_mae = Metric(_errors(requested=False), maximize=False, finish=metric_sums.ratio)
"""The same of any loss; NaN where its outputs, quantiles say, have another shape than the targets."""

token_accuracy = accuracy
"""The name of `accuracy` for tokens."""

perplexity = Metric(_seen(metric_sums.surprise), maximize=False, finish=metric_sums.perplexity)
"""e to the mean cross entropy over all tokens; targets that are `losses.IGNORED` do not count."""

mean_iou = Metric(_seen(metric_sums.overlaps), maximize=True, finish=metric_sums.mean_iou)
"""Mean over the classes that occur of intersection over union, each counted over all samples."""

auroc = Metric(_of_logits(metric_sums.ranks), maximize=True, finish=metric_sums.auroc)
"""Area under the ROC curve; output is a logit ``[N]``, target 0 or 1. Logits in one of 4096 bins count as equal; NaN
without positives or negatives."""

frechet_distance = Metric(frechet.generated_and_real, maximize=False, finish=frechet.between)
"""Fréchet distance between generated and real images, of an output ``(generated, real)``; images in [-1, 1]. The
features are those of a fixed random network (`hfta_nb.models.frechet`): values do not compare with published FIDs."""

confusion = _seen(metric_sums.confusion)
"""Of an output and the target: how many targets of each class (rows) are predicted as each class (columns), ``[C, C]``;
those of several batches add up."""

balanced_accuracy = Metric(confusion, maximize=True, finish=metric_sums.balanced_accuracy)
"""Mean over the classes that occur of the fraction of their targets that is predicted rightly."""

macro_f1 = Metric(confusion, maximize=True, finish=metric_sums.macro_f1)
"""Mean over the classes that occur, or are predicted, of their F1."""

_OF_ONE = {
    "recall": lambda c: lambda counts: counts[c, c] / counts[c].sum().clamp(min=1),
    "precision": lambda c: lambda counts: counts[c, c] / counts[:, c].sum().clamp(min=1),
}
_of_class: dict[str, Metric] = {}


def _named(name: str) -> Metric | None:
    """A metric of one class by its name, ``recall_3`` or ``precision_3``: the same object each time.

    The recall of a class is the accuracy on its samples. It is 0 without any.
    """
    kind, _, number = name.rpartition("_")
    if kind not in _OF_ONE or not number.isdecimal():
        return None
    return _of_class.setdefault(name, Metric(confusion, maximize=True, finish=_OF_ONE[kind](int(number))))


def name_of(metric: Metric) -> str:
    """The name of a built-in metric; empty if it is none."""
    return next((name for name, known in (BUILT_IN | _of_class).items() if known is metric), "")


BUILT_IN = {
    **{"accuracy": accuracy, "top5": top5, "mae": mae, "token_accuracy": token_accuracy, "perplexity": perplexity},
    **{"mean_iou": mean_iou, "auroc": auroc, "balanced_accuracy": balanced_accuracy, "macro_f1": macro_f1},
}
"""Metrics that can be given by their names."""

BY_TASK: dict[str, dict[str, Metric]] = {
    "classification": {"accuracy": usual_accuracy},
    "regression": {"mae": usual_mae},
    "segmentation": {"mean_iou": mean_iou, "accuracy": accuracy},
    "language_model": {"perplexity": perplexity, "accuracy": token_accuracy},
    "masked_language_model": {"perplexity": perplexity, "accuracy": token_accuracy},
    "click": {"auroc": auroc},
    "generation": {"distance": frechet_distance},
}


MANY_CLASSES = 10
"""With more classes than this, `top5` is added."""


def of_numbers(loss: Any) -> bool | None:
    """Whether a loss is one of numbers, squared error say, or of classes; None for a user's function, of which nobody
    knows."""
    while isinstance(loss, partial | HeldLoss):
        loss = loss.func if isinstance(loss, partial) else loss.loss
    loss = loss.function if isinstance(loss, MemberLoss) else loss
    torch_s = [kind for kind in type(loss).__mro__ if kind.__module__ == nn.MSELoss.__module__]
    if isinstance(loss, NamedLoss) or getattr(loss, "__module__", "") == F.__name__:
        torch_s = [loss]
    known = {normal(kind.__name__).removesuffix("loss") for kind in torch_s}
    return True if known & _OF_NUMBERS else False if known & _OF_CLASSES else None


_OF_NUMBERS = {"mse", "l1", "smoothl1", "huber", "poissonnll", "gaussiannll", "softmargin", "hingeembedding"}
_OF_CLASSES = {"crossentropy", "nll", "nll2d", "bce", "bcewithlogits", "binarycrossentropy", "multimargin",
               "binarycrossentropywithlogits", "multilabelmargin", "multilabelsoftmargin"}  # fmt: skip


def usual(task: str, facts: Mapping[str, int]) -> dict[str, Metric]:
    """The usual metrics of a task on data with these facts."""
    many = task == "classification" and facts.get("num_classes", 0) > MANY_CLASSES
    found = BY_TASK.get(task, {}) | ({"top5": usual_top5} if many else {})
    if "ignored" in facts and found.get("accuracy") is usual_accuracy:
        hits = _seen(partial(metric_sums.hits, ignored=facts["ignored"]), requested=False)
        found = {**found, "accuracy": replace(usual_accuracy, function=hits)}
    return found


def _predicted(output: Any, target: Any) -> Tensor:
    return prediction(output)


_NAMES = ", ".join([*BUILT_IN, "recall_0", "precision_0"])
ACCEPTED = f"a function of (output, target), Metric, one of torchmetrics, or one of {_NAMES}"


def built_in(name: str) -> Metric:
    """The built-in metric of a name.

    Raises:
        FamilyError: there is none.
    """
    of_class = _named(name)
    if of_class is not None:
        return of_class
    if name not in BUILT_IN:
        near = difflib.get_close_matches(name, BUILT_IN, 1)
        remedy = f"did you mean {near[0]}?" if near else ""
        raise FamilyError("not a metric", where="metrics", got=name, accepted=ACCEPTED, remedy=remedy)
    return BUILT_IN[name]


def _in_full(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics with those that are given by name, and those of a collection each by its own."""
    found: dict[str, Any] = {}
    for name, metric in metrics.items():
        several = collected(metric)
        if several is None:
            found[name] = built_in(metric) if isinstance(metric, str) else metric
        else:
            found |= {f"{name}_{own}": value for own, value in several.items()}
    return found


def _check_arguments(name: str, function: Callable[..., Any]) -> None:
    """See that a metric can be called with an output and a target.

    Raises:
        FamilyError: it takes fewer, or asks for more.
    """
    called = function.forward if isinstance(function, nn.Module) else function
    try:
        signature = inspect.signature(called)
    except (ValueError, TypeError):
        return  # functions written in C do not tell what they take
    try:
        signature.bind(None, None)
    except TypeError as error:
        single = len(signature.parameters) == 1
        remedy = f"lambda output, y: {name}(output)" if single else "give all others a default, or by functools.partial"
        raise FamilyError(
            f"does not take an output and a target ({error})",
            where=f"metric {name}",
            got=f"{name}({', '.join(signature.parameters)})",
            accepted="a function of one member's output and the target",
            remedy=remedy,
        ) from error


def checked(metrics: Mapping[str, Any]) -> dict[str, Metric]:
    """Check named metrics, and look up which way is better where nobody says it; see `directions`.

    A text is the name of a built-in metric; a collection of torchmetrics stands for its metrics. Metrics of
    torchmetrics say themselves which way is better. An object of torchmetrics is updated with a member's prediction
    (logits, as the model gives them) and the target, batch by batch, and computed over the whole epoch. Functions see
    the whole validation set at once; see `Metric`.

    Raises:
        FamilyError: one of them can't be called with an output and a target, is not known, or has the name of the loss.
    """
    found = {}
    for name, metric in _in_full(metrics).items():
        if not isinstance(name, str) or not name.isidentifier() or name == "loss":
            raise FamilyError("not a name for a metric", got=name, accepted="an identifier other than loss")
        if not callable(metric):
            raise FamilyError(
                "not a metric",
                where=name,
                got=metric,
                accepted=ACCEPTED,
            )
        given = metric if isinstance(metric, Metric) else Metric(metric)
        bare = given.finish is None and given.accumulator is None and not given.additive
        kept = of_torchmetrics(name, given.function) if bare else None
        if kept is not None:
            given = replace(given, function=_predicted, accumulator=kept)
        else:
            _check_arguments(name, given.function)
        if given.maximize is None:
            given = replace(given, maximize=more_is_better(name, metric if kept else given.function))
        found[name] = given
    return found
