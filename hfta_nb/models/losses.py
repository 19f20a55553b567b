"""Losses by task. A loss sees ONE member's output and the target and returns a scalar, the mean over the mini-batch.

Targets that are missing (NaN, `IGNORED`, or 0 in a mask beside them) do not count; see `masks`.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from hfta_nb.data.labels import IGNORED as IGNORED
from hfta_nb.engine.array.access import HeldLoss as HeldLoss
from hfta_nb.engine.array.access import attach as attach
from hfta_nb.engine.array.access import held as held
from hfta_nb.engine.array.access import submodule_of as submodule_of
from hfta_nb.errors import FamilyError
from hfta_nb.models import masks
from hfta_nb.models.masks import classes_of, elementwise, mean_of_labelled
from hfta_nb.models.member_losses import MemberLoss as MemberLoss
from hfta_nb.models.member_losses import Target as Target
from hfta_nb.models.member_losses import binary_cross_entropy_with_logits as binary_cross_entropy_with_logits
from hfta_nb.models.member_losses import cross_entropy as cross_entropy
from hfta_nb.models.member_losses import huber_loss as huber_loss
from hfta_nb.models.member_losses import nll_loss as nll_loss
from hfta_nb.models.member_losses import smooth_l1_loss as smooth_l1_loss
from hfta_nb.models.targets import shaped_as

Loss = Callable[[Any, Any], Tensor]

PREDICTIONS = ("logits", "out", "prediction", "predictions", "pred", "preds", "output", "y_hat", "y_pred")
"""Names under which models return what they predict: Hugging Face's, torchvision's, and what people write."""


def prediction(output: Any) -> Tensor:
    """The prediction in a model's output: the output itself, or the first entry of a tuple or list.

    For an output with names (a dict, a dataclass, a named tuple, a Hugging Face output): the entry under one of
    `PREDICTIONS`, or the only tensor unless its name contains "hidden".

    Raises:
        FamilyError: no entry is known to be the prediction.
    """
    named = _named(output)
    if named is None:
        first: Tensor = output[0] if isinstance(output, tuple | list) else output
        return first
    tensors = {name: value for name, value in named.items() if isinstance(value, Tensor)}
    found = next((tensors[name] for name in PREDICTIONS if name in tensors), None)
    if found is None and len(tensors) == 1 and not any("hidden" in name for name in tensors):
        (found,) = tensors.values()
    if found is None and isinstance(output, tuple):
        found = output[0]
    if found is None:
        raise FamilyError(
            "no prediction in what the model returns",
            got=list(named),
            accepted="a tensor, a tuple with it first, or logits by name",
            remedy="name it logits, or give a loss (and metrics) of your own: Study(..., loss=..., metrics=...)",
        )
    return found


def _named(output: Any) -> Mapping[str, Any] | None:
    """The entries of an output that has names; None of one that has none."""
    if isinstance(output, Mapping):
        return output
    if dataclasses.is_dataclass(output) and not isinstance(output, type):
        return {field.name: getattr(output, field.name) for field in dataclasses.fields(output)}
    return output._asdict() if isinstance(output, tuple) and hasattr(output, "_asdict") else None


def classes_last(output: Tensor, target: Tensor) -> Tensor:
    """Logits with the classes in the last axis: ``[N, classes, H, W]`` (the target is ``[N, H, W]``) turned round."""
    return output.movedim(1, -1) if target.ndim == 3 else output


def _classes(output: Any, target: Any) -> Tensor:
    """Cross entropy, torch's own: ``[N, classes, ...]``; the target may be shares of classes of the same shape."""
    found = prediction(output)
    return mean_of_labelled(F.cross_entropy, found, shaped_as(classes_of(target), found))


def _each(output: Any, target: Any) -> Tensor:
    """Cross entropy of every point ``[N, P, classes]``, pixel ``[N, classes, H, W]`` or token ``[N, T, vocab]``."""
    y = classes_of(target)
    logits = classes_last(prediction(output), y)
    return mean_of_labelled(F.cross_entropy, logits.reshape(-1, logits.shape[-1]), y.reshape(-1))


def _squared(output: Any, target: Any) -> Tensor:
    return elementwise(F.mse_loss, prediction(output), target)


def _clicks(output: Any, target: Any) -> Tensor:
    return elementwise(F.binary_cross_entropy_with_logits, prediction(output), target)


BY_TASK: dict[str, Loss] = {
    "classification": _classes,
    "regression": _squared,
    "segmentation": _each,
    "language_model": _each,
    "masked_language_model": _each,
    "click": _clicks,
}


def for_task(task: str) -> Loss:
    """The usual loss of a task.

    Raises:
        FamilyError: there is none.
    """
    if task not in BY_TASK:
        raise FamilyError("no loss is known for this task", where="task", got=task, accepted=", ".join(BY_TASK))
    return BY_TASK[task]


def share_of_known(loss: Any, target: Any) -> Tensor | None:
    """The share of a mini-batch's targets that a built-in loss counts, ``[]`` or ``[M]``; None for other losses.

    Args:
        loss: the loss.
        target: as a step gets it, each tensor perhaps `per_member`.
    """
    own = getattr(loss, "share_of", None)
    if own is not None:
        return own(target)  # type: ignore[no-any-return]
    if isinstance(loss, NamedLoss):
        return masks.share_of_known(target, loss.__name__ in _OF_LABELS)
    return masks.share_of_known(target, loss is not _squared) if loss in _BUILT_IN else None


_BUILT_IN = tuple(BY_TASK.values())

NAMED = {
    **{name: name for name in ("cross_entropy", "nll_loss", "mse_loss", "l1_loss", "huber_loss", "smooth_l1_loss")},
    **{"mse": "mse_loss", "l1": "l1_loss", "mae": "l1_loss", "huber": "huber_loss", "smooth_l1": "smooth_l1_loss"},
    **{"nll": "nll_loss", "bce": "binary_cross_entropy_with_logits"},
    "binary_cross_entropy_with_logits": "binary_cross_entropy_with_logits",
}
"""Names of losses, and the function of `torch.nn.functional` that they mean."""
_OF_CLASSES = ("cross_entropy", "nll_loss")
_OF_LABELS = (*_OF_CLASSES, "binary_cross_entropy_with_logits")


class NamedLoss:
    """A loss of `torch.nn.functional`, of a model's `prediction`.

    Args:
        name: one of `NAMED`.
    """

    def __init__(self, name: str) -> None:
        self.__name__ = NAMED[name]
        self._function: Callable[..., Tensor] = getattr(F, self.__name__)

    def __call__(self, output: Any, target: Any) -> Tensor:
        found = prediction(output)
        if self.__name__ in _OF_CLASSES:
            return mean_of_labelled(self._function, found, shaped_as(classes_of(target), found))
        return elementwise(self._function, found, target)

    def __repr__(self) -> str:
        return self.__name__


def is_cross_entropy(loss: Any) -> bool:
    """Whether it is the usual loss of classes, by name or torch's own."""
    own = isinstance(loss, NamedLoss) and loss.__name__ == "cross_entropy"
    return own or loss is F.cross_entropy or loss in (_classes, _each)


_TORCHS: dict[str, Loss] = {f"{F.__name__}.{name}": getattr(F, name) for name in NAMED.values()}
"""Functions that a study is given as they are, by the names under which they are saved."""


def name_of(loss: Any) -> str:
    """The name from which `checked` makes this loss; empty if there is none."""
    if isinstance(loss, NamedLoss):
        return loss.__name__
    return next((name for name, function in _TORCHS.items() if function is loss), "")


def checked(loss: Any, where: str = "loss") -> Loss:
    """The loss that was given, or named.

    Raises:
        FamilyError: it is neither a function nor one of `NAMED`.
    """
    if isinstance(loss, str) and loss in NAMED:
        return NamedLoss(loss)
    if isinstance(loss, str) and loss in _TORCHS:
        return _TORCHS[loss]
    if callable(loss) and not isinstance(loss, type):
        return loss  # type: ignore[no-any-return]
    near = difflib.get_close_matches(loss, NAMED, 1) if isinstance(loss, str) else []
    remedy = f"make one: {loss.__name__}()" if isinstance(loss, type) else f"did you mean {near[0]}?" if near else ""
    accepted = f"a callable of (output, target), or one of {', '.join(NAMED)}"
    raise FamilyError("not a loss", where=where, got=loss, accepted=accepted, remedy=remedy)
