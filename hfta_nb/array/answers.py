"""What torch's idioms for one module do with an array, where that is not what they do with a module: told to a person.

torch's functions take any iterable of parameters, and so the parameters of an array, whose first axis counts members.
Which of torch's functions reads them is seen from the frame that does.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, overload

from torch import Tensor, nn

from hfta_nb.array import surgery
from hfta_nb.errors import ArrayWarning, OptimError

if TYPE_CHECKING:
    from hfta_nb.array.engine import Inputs
    from hfta_nb.array.fused import FusedArray

_CLIPPING = {"clip_grad_norm_": "clip_grad_norm_", "clip_grad_norm": "clip_grad_norm_"}
"""Functions of `torch.nn.utils.clip_grad` that mix members, and their counterparts."""


class Answering:
    """The part of `FusedArray` that is a container, of members and of parameters.

    Attributes:
        told: whether `warn_of_shared` has nothing more to say.
    """

    told = False

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """As of a plain module; each parameter has a leading member axis.

        `hfta_nb.optim.param_groups` chooses among them by name and plain shape.
        """
        # A generator, so that its caller's frame is that of the function that reads it.
        _tell(sys._getframe(1))
        yield from super().parameters(recurse)  # type: ignore[misc]

    @overload
    def __getitem__(self, index: int) -> nn.Module: ...
    @overload
    def __getitem__(self, index: slice | Sequence[int]) -> FusedArray: ...
    def __getitem__(self, index: int | slice | Sequence[int]) -> nn.Module | FusedArray:
        """Member `index` as a plain module: same class, same `state_dict` keys, a detached copy.

        A slice or a list of members gives a new array of them, as `FusedArray.select`.

        Raises:
            IndexError: there is no such member.
            FusionError: a slice or list is empty, or holds a number that is not a member.
        """
        array: FusedArray = self  # type: ignore[assignment]
        if isinstance(index, slice):
            return surgery.select(array, range(len(array))[index])
        if isinstance(index, Sequence):
            count = len(array)
            return surgery.select(array, [i + count if -count <= i < 0 else i for i in index])
        return surgery.member(array, index)

    def __iter__(self) -> Iterator[nn.Module]:
        """The members, each as a plain module.

        Raises:
            OptimError: an optimizer of torch asks.
        """
        array: FusedArray = self  # type: ignore[assignment]
        name = _torch_optimizer(sys._getframe(1))
        if name:
            remedy = f"use hfta_nb.optim.{name}(array, ...), whose hyperparameters are one value, or one per member"
            raise OptimError("takes no array", where=f"torch.optim.{name}", got=array, remedy=remedy)
        return (surgery.member(array, i) for i in range(len(array)))


def _torch_optimizer(frame: FrameType) -> str:
    """The name of the optimizer of torch whose constructor runs in this frame; else empty."""
    if frame.f_code.co_name != "__init__" or frame.f_globals.get("__name__") != "torch.optim.optimizer":
        return ""
    return type(frame.f_locals.get("self")).__name__


def _tell(frame: FrameType) -> None:
    """Warn where a function of torch reads an array's parameters as those of one module."""
    module, name = frame.f_globals.get("__name__"), frame.f_code.co_name
    if module == "torch.nn.utils.clip_grad" and name in _CLIPPING:
        text = (
            f"torch.nn.utils.{name} on the parameters of an array clips by one norm over all members; "
            f"hfta_nb.optim.{_CLIPPING[name]}(array, max_norm) clips each member by its own"
        )
        warnings.warn(text, ArrayWarning, stacklevel=_outside(frame, "torch."))
    elif optimizer := _torch_optimizer(frame):
        text = (
            f"torch.optim.{optimizer} on the parameters of an array takes all members for one model; "
            f"hfta_nb.optim.{optimizer}(array, ...) has the same arguments, each one value, or one per member"
        )
        warnings.warn(text, ArrayWarning, stacklevel=_outside(frame, "torch."))


def _outside(frame: FrameType | None, package: str) -> int:
    """The `stacklevel`, for a warning of `_tell`, of the first frame that is not of a package."""
    level = 3  # `_tell`, `parameters`, and the frame itself
    while frame is not None and str(frame.f_globals.get("__name__")).startswith(package):
        frame, level = frame.f_back, level + 1
    return level


# Inputs that have a member axis and don't say so.

_AXES: tuple[tuple[type[nn.Module], int], ...] = (
    (nn.Linear, 2),
    (nn.Conv1d, 3),
    (nn.Conv2d, 4),
    (nn.Conv3d, 5),
    (nn.RNNBase, 3),
    (nn.Embedding, 2),
)
"""Layers, and how many axes a mini-batch for each has as a rule."""


def warn_of_shared(array: FusedArray, inputs: Inputs) -> None:
    """Warn, once for each array, where an input looks as if its first axis counted members, and is not marked.

    That is plausible where the first layer expects one axis fewer, and the first axis is as long as there are members.
    """
    members = len(array)
    first = inputs.leaves[0] if inputs.leaves else None
    if array.told or members < 2 or inputs.per_member[0] or not isinstance(first, Tensor):
        return
    layer = next((m for m in array._skeleton.modules() if not list(m.children())), None)
    # A subclass of Linear is a part of another layer, such as attention, whose inputs are not its own.
    axes = next(
        (n for kind, n in _AXES if isinstance(layer, kind) and (kind is not nn.Linear or type(layer) is kind)), 0
    )
    if not axes or first.ndim != axes + 1 or first.shape[0] != members:
        return
    array.told = True
    shape = f"[{members}, {', '.join(str(n) for n in first.shape[1:])}]"
    text = (
        f"the input {shape} goes to all {members} members as a whole, although its first axis is as long as there are "
        f"members and {type(layer).__name__} takes {axes} axes: if each member is to get an entry of its own, call "
        "array(hfta_nb.per_member(x))"
    )
    warnings.warn(text, ArrayWarning, stacklevel=level_outside())


def level_outside() -> int:
    """The `stacklevel`, for a warning of `warn_of_shared`, of the first frame outside of the package and torch."""
    frame: Any = sys._getframe(2)
    level = 2
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in ("hfta_nb", "torch"):
        frame, level = frame.f_back, level + 1
    return level
