"""Tells people about torch idioms that work differently on an array than on a single module.

Torch's functions accept any iterable of parameters, and therefore the parameters of an array, whose first axis is the
member axis. The calling frame shows which of torch's functions reads them.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from types import FrameType, FunctionType
from typing import Any, Self, overload

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad
from torch.optim import Optimizer

from hfta_nb.engine.array import initialising, surgery
from hfta_nb.engine.array.foreign_optimizers import cure
from hfta_nb.engine.eager.current_member import refuse_all, shown_attribute
from hfta_nb.engine.eager.engine import Engine
from hfta_nb.engine.eager.holders import is_code
from hfta_nb.engine.eager.ownership import is_of_array, owner_of
from hfta_nb.engine.eager.state import ArrayState
from hfta_nb.engine.members.arena import Arena
from hfta_nb.engine.padded.runtime import architectures_of
from hfta_nb.errors import ArrayWarning, FusionError, OptimError


class Answering:
    """The container interface of `FusedArray`: members and parameters."""

    _state: ArrayState

    @property
    def axes_known(self) -> bool:
        """True if `warn_of_shared_input` has nothing more to report."""
        return self._state.axes_known

    @axes_known.setter
    def axes_known(self, axes_known: bool) -> None:
        self._state.axes_known = axes_known

    def __getattr__(self, name: str) -> Any:
        """An attribute that the model or its class has (`array.hidden`); with a member axis, if members have set it."""
        held = _attributes(self)
        if name in held:
            return shown_attribute(self, held[name])  # type: ignore[arg-type]
        for kind in type(self.__dict__["_model"]).__mro__ if held else ():
            if name in vars(kind) and not is_code(vars(kind)[name]):
                return shown_attribute(self, vars(kind)[name])  # type: ignore[arg-type]
        own = self.__dict__.get("forward")  # within a loss, the member's module; its methods and properties, too
        return getattr(own, name) if isinstance(own, nn.Module) else super().__getattr__(name)  # type: ignore[misc]

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute; one that the model has (`array.hidden = None`), for all members."""
        held = _attributes(self)
        own = getattr(type(self), name, None)
        if name in held and name not in self.__dict__ and (own is None or _is_method(name, own)):
            held[name] = value
        else:
            super().__setattr__(name, value)

    def select(self, indices: Sequence[int]) -> Self:
        """See `FusedArray.select`."""
        raise NotImplementedError

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """The parameters of the plain module, each with a leading member axis.

        `hfta_nb.optim.param_groups` selects among them by name and by the plain module's shapes.
        """
        # A generator, so that its caller's frame belongs to the function that reads it.
        _warn(sys._getframe(1))
        yield from super().parameters(recurse)  # type: ignore[misc]

    @overload
    def __getitem__(self, index: int) -> nn.Module: ...
    @overload
    def __getitem__(self, index: slice | Sequence[int]) -> Self: ...
    def __getitem__(self, index: int | slice | Sequence[int]) -> nn.Module | Self:
        """Member `index` as a plain module: same class, same `state_dict` keys, a detached copy.

        A slice or a list of members returns a new array of them, like `FusedArray.select`; so does a tensor or array of
        their numbers, or of a truth value per member.

        Raises:
            IndexError: there is no such member.
            FusionError: a slice or list is empty, or holds a number that is not a member; the index is no number.
        """
        refuse_all(self, "array[...]")  # type: ignore[arg-type]
        count = len(self._state)
        if isinstance(index, str) or not (isinstance(index, slice | Sequence) or hasattr(index, "__index__")):
            accepted = f"a whole number below {count}, a slice, or a list of numbers"
            raise FusionError("not the number of a member", where="array[...]", got=index, accepted=accepted)
        if isinstance(index, slice):
            return self.select(range(count)[index])
        if isinstance(index, Sequence) or getattr(index, "ndim", False):
            chosen = surgery.numbers(index, count)
            return self.select([i + count if isinstance(i, int) and -count <= i < 0 else i for i in chosen])
        return surgery.member(self._state, index)

    def apply(self, fn: Callable[[nn.Module], Any]) -> Self:
        """Apply a function to every submodule, as `torch.nn.Module.apply` does.

        If it writes parameters or buffers, it is applied to each member's plain module too, first member first.
        Functions of `torch.nn.init` see the plain module's shapes everywhere.

        Raises:
            FusionError: the function gives a member tensors of other names, shapes or dtypes. Then none is changed.
        """
        initialising.apply(self._state, fn, lambda: super(Answering, self).apply(fn))  # type: ignore[misc]
        return self

    def __iter__(self) -> Iterator[nn.Module]:
        """The members, each as a plain module.

        Raises:
            OptimError: a torch optimizer iterates over the array.
        """
        kind = _torch_optimizer(sys._getframe(1))
        if kind is not None:
            raise OptimError("takes no array", where=_named(kind), got=self, remedy=cure(kind))
        return (surgery.member(self._state, i) for i in range(len(self._state)))

    @property
    def engine(self) -> Engine:
        """Runs blocks of members."""
        return self._state.engine

    @property
    def owned(self) -> dict[str, Tensor]:
        """For members of different architectures: by parameter or buffer, which entries belong to the members, bool
        ``[M, *shape]``. The other entries are padding: zero, with a gradient of zero."""
        return self._state.owned

    def box(self, index: int, name: str) -> tuple[int, ...] | None:
        """A member's true shape of a parameter; None if its architecture has no such parameter."""
        architectures = self._state.engine.architectures
        if architectures is None:
            return tuple(self._state.tensors.get_parameter(name).shape[1:])
        return architectures.boxes(index % len(self._state)).get(name)

    def arena_of(self, name: str) -> Arena:
        """The arena in which a parameter lies."""
        return self._state.arena_of(name)

    def waste(self) -> float:
        """The fraction of the parameters that is padding; 0 for members of one architecture."""
        architectures = architectures_of(self._state)
        return 0.0 if architectures is None else architectures.blueprint.waste()


def _attributes(array: Answering) -> dict[str, Any]:
    """The attributes of the model, or of the member for which a loss is computed, that are no attributes of an array;
    none while the array is being made."""
    own = array.__dict__
    return own["_model"].__dict__ if own.get("_built") else {}


def _is_method(name: str, own: Any) -> bool:
    """Whether a class attribute is a method of arrays, which nobody means to replace; a model may have its name."""
    return isinstance(own, FunctionType) and not hasattr(nn.Module, name)


def _torch_optimizer(frame: FrameType) -> type[Optimizer] | None:
    """The class of the optimizer whose constructor runs in this frame; otherwise None."""
    made = frame.f_locals.get("self") if frame.f_code.co_name == "__init__" else None
    return type(made) if isinstance(made, Optimizer) else None


def _named(kind: type[Optimizer]) -> str:
    return f"torch.optim.{kind.__name__}" if _is_torchs(kind) else kind.__name__


def _is_torchs(kind: type[Optimizer]) -> bool:
    return getattr(torch.optim, kind.__name__, None) is kind


def _warn(frame: FrameType) -> None:
    """Warn if an optimizer of torch reads an array's parameters as those of one module."""
    kind = _torch_optimizer(frame)
    if kind is torch.optim.Muon:  # which refuses them itself, as they have another axis
        raise OptimError("takes no parameters of an array", where=_named(kind), remedy=cure(kind))
    if kind is not None and _is_torchs(kind):  # others are tried before their first step
        text = (
            f"torch.optim.{kind.__name__} on the parameters of an array takes all members for one model; "
            f"hfta_nb.optim.{kind.__name__}(array, ...) has the same arguments, each one value, or one per member"
        )
        warnings.warn(text, ArrayWarning, stacklevel=_outside(frame, "torch.", _WRAPPING))


_WRAPPING = "hfta_nb.engine.array.foreign_optimizers"
"""It wraps constructors of torch's."""
_NORMS = "torch.nn.utils.{0} on the parameters of an array {1}; hfta_nb.optim.{0}(array{2}) {3} each member {4}"
_CLIPS = _NORMS.format("clip_grad_norm_", "clips by one norm over all members", ", max_norm", "clips", "by its own")
_TAKES = _NORMS.format("get_total_norm", "or their gradients takes one norm over all members", "", "gives", "its own")


def _watched(function: Callable[..., Any], is_of_array: Callable[[Tensor], Any], text: str) -> Callable[..., Any]:
    """A function of torch that takes one norm of all tensors it is given, with an eye on them."""

    @functools.wraps(function)
    def watched(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        given = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        if any(is_of_array(t) for t in given):
            warnings.warn(text, ArrayWarning, stacklevel=_outside(sys._getframe(1), "torch.") - 1)
        return function(given, *args, **kwargs)

    return watched


for _place, _name, _is_of_array, _text in (
    (clip_grad, "_clip_grads_with_norm_", owner_of, _CLIPS),  # every way to clip by a norm goes through one of these
    (nn.utils, "clip_grads_with_norm_", owner_of, _CLIPS),
    (nn.utils, "get_total_norm", is_of_array, _TAKES),
):
    if hasattr(_place, _name):
        setattr(_place, _name, _watched(getattr(_place, _name), _is_of_array, _text))


def _refused(function: Callable[..., Any], cure: str) -> Callable[..., Any]:
    """A function of torch that has all parameters of one module in one vector."""

    @functools.wraps(function)
    def refused(*given: Any) -> Any:
        parameters = [given[-1]] if isinstance(given[-1], Tensor) else list(given[-1])
        if any(owner_of(p) is not None for p in parameters):
            where = f"torch.nn.utils.{function.__name__}"
            raise FusionError("takes the parameters of an array for those of one module", where=where, remedy=cure)
        return function(*given[:-1], parameters)

    return refused


nn.utils.parameters_to_vector = _refused(
    nn.utils.parameters_to_vector, "torch.stack([parameters_to_vector(member.parameters()) for member in array])"
)


def _outside(frame: FrameType | None, *packages: str) -> int:
    """The `stacklevel`, for a warning of `_warn`, of the first frame outside of these packages."""
    level = 3  # `_warn`, `parameters`, and the frame itself
    while frame is not None and str(frame.f_globals.get("__name__")).startswith(packages):
        frame, level = frame.f_back, level + 1
    return level
