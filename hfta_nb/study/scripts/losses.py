"""The losses and metrics of a script, in calls of `torch.nn.functional`."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from hfta_nb.data import Data
from hfta_nb.data.labels import IGNORED
from hfta_nb.errors import FamilyError, StudyError
from hfta_nb.models import losses, metrics
from hfta_nb.models.losses import HeldLoss, NamedLoss
from hfta_nb.models.metrics import Metric

_CLASSES = ("classification", "segmentation", "language_model", "masked_language_model")
_NUMBERS = {"regression": "mse_loss", "click": "binary_cross_entropy_with_logits"}
_ERROR = '''
class FamilyError(ValueError):
    """An argument can't be used."""

    def __init__(self, what, **details):
        super().__init__(f"{what}: {details}")
'''


def known_sources(loss: Any, data: Data, output: Any) -> dict[Any, str]:
    """What of this package stands in the script in another form: by the object, its source.

    Args:
        loss: of the family, or of a phase.
        data: of the study.
        output: of the module for two samples.

    Raises:
        StudyError: a loss of this package has no plain form on these data.
    """
    found: dict[Any, str] = {FamilyError: _ERROR}
    if isinstance(loss, HeldLoss):
        raise StudyError("has parameters, which train with the member", where="loss", got=loss)
    usual = losses.BY_TASK.get(data.task)
    if isinstance(loss, NamedLoss) or loss is usual:
        found[loss] = _text(loss, data, output)
    elif usual is not None and isinstance(data.y, Tensor):  # a family's own loss may call it
        found[usual] = _text(usual, data, None)
    return found


def accuracy(kind: Metric, data: Data, output: Any) -> str | None:
    """An expression of the number of right predictions in ``output`` and ``target``; None where there is no simple
    one."""
    y, found = data.y_validation, _prediction(output)
    if kind not in (metrics.accuracy, metrics.usual_accuracy) or found is None or not isinstance(y, Tensor):
        return None
    value = losses.prediction(output)
    classes = value.ndim == 2 and value.shape[1] > 1 and y.ndim == 1 and not y.is_floating_point()
    return f"({found}.argmax(1) == target)" if classes and not bool((y == IGNORED).any()) else None


def _text(loss: Any, data: Data, output: Any) -> str:
    """The definition of a loss of this package; `output` is None where what it gets is not known."""
    y, shown = data.y, "output" if output is None else _prediction(output)
    name = loss.__name__ if isinstance(loss, NamedLoss) else _NUMBERS.get(data.task, "cross_entropy")
    if not isinstance(y, Tensor):
        raise StudyError("targets of several parts, such as a mask, have no plain loss", where="loss", got=name,
                         remedy="give a loss of your own, a function with def")  # fmt: skip
    if shown is None:
        raise StudyError("no plain way to the prediction in what the module returns", where="loss", got=type(output))
    if y.is_floating_point() and any(bool(v.isnan().any()) for v in (y, data.y_validation)):
        raise StudyError("targets that are missing (NaN) have no plain loss", where="loss", got=name,
                         remedy="give a loss of your own, a function with def")  # fmt: skip
    if name in ("cross_entropy", "nll_loss"):
        each = not isinstance(loss, NamedLoss) and data.task != "classification"
        return _of_classes(name, shown, data, each)
    return _of_numbers(name, shown, data, output)


def _of_classes(name: str, shown: str, data: Data, each: bool) -> str:
    y, target = data.y, "target"
    if each and y.ndim != 3:  # of pixels [N, H, W] torch takes logits [N, classes, H, W]
        shown, target = f"{shown}.flatten(0, -2)", "target.flatten()"
    elif y.ndim == 2 and y.shape[1] == 1 and not y.is_floating_point():
        target = "target.squeeze(1)"
    if y.is_floating_point() or not any(bool((v == IGNORED).any()) for v in (y, data.y_validation)):
        body = f"return F.{name}({shown}, {target})"
    else:
        body = f"""
            # {IGNORED} marks targets that do not count
            total = F.{name}({shown}, {target}, ignore_index={IGNORED}, reduction="sum")
            return total / (target != {IGNORED}).sum().clamp(min=1)
        """
    return _defined(body)


def _of_numbers(name: str, shown: str, data: Data, output: Any) -> str:
    y = data.y
    if not y.is_floating_point() and any(bool((v == IGNORED).any()) for v in (y, data.y_validation)):
        raise StudyError(f"targets that are missing ({IGNORED}) have no plain loss", where="loss", got=name)
    value = None if output is None else losses.prediction(output)
    if value is not None and value.numel() != y[: len(value)].numel():
        raise StudyError("outputs and targets are of unlike shape", where="loss", got=[[*value.shape], [*y.shape]],
                         remedy="give a loss of your own, a function with def")  # fmt: skip
    target = "target.flatten()" + ("" if y.is_floating_point() else f".to({shown}.dtype)")
    return _defined(f"return F.{name}({shown}.flatten(), {target})")


def _defined(body: str) -> str:
    return "\ndef usual_loss(output, target):\n" + textwrap.indent(textwrap.dedent(body).strip(), "    ") + "\n"


def _prediction(output: Any) -> str | None:
    """The expression of the prediction in a module's output; None where there is none."""
    found = losses.prediction(output)
    if isinstance(output, Tensor):
        return "output"
    for name in losses.PREDICTIONS:
        if getattr(output, name, None) is found:
            return f"output.{name}"
        if isinstance(output, Mapping) and output.get(name) is found:
            return f"output[{name!r}]"
    return "output[0]" if isinstance(output, tuple | list) and output[0] is found else None


def outputs_of(module: torch.nn.Module, x: Any) -> Any:
    """What a module returns in evaluation, without gradient."""
    from hfta_nb.engine.array.access import call_module

    with torch.no_grad():
        return call_module(module.eval(), x)
