"""The member for which a loss or metric is being computed.

A loss may read more of its model than the output: its parameters (a penalty), an attribute (``model.kl``), or call it
again. While the loss of a member is computed, `member` returns that member's module, and the array itself shows the
member's tensors, submodules and attributes in place of those of all members.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from torch import Tensor, nn

from hfta_nb.engine.eager.foreign_reads import ForeignReads
from hfta_nb.engine.eager.hidden_names import shown
from hfta_nb.engine.members.tree import flatten
from hfta_nb.errors import FusionError

if TYPE_CHECKING:
    from hfta_nb.engine.eager.state import ArrayState

CONTAINERS = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")
"""The attributes in which `torch.nn.Module` stores its tensors and submodules."""


_modules: ContextVar[tuple[nn.Module | None, ...]] = ContextVar("_modules", default=())
"""The modules for which something is computed in this thread, the innermost last; None in `FusedArray.losses`."""


def member() -> nn.Module:
    """The module of the member for which a loss or metric is being computed.

    Its parameters and buffers are that member's, without a member axis, and part of its gradient; its attributes are
    those that its forward has set. Within the plain module's own step (`hfta_nb.Study.check`), it is that module.

    Raises:
        FusionError: outside of a loss or metric of `FusedArray.backward`, `FusedArray.evaluate` or a study.

    Example:
        >>> import torch, hfta_nb as hfta
        >>> array = hfta.fuse([torch.nn.Linear(4, 1) for _ in range(3)])
        >>> def loss(output, y):
        ...     penalty = sum(p.abs().sum() for p in hfta.member().parameters())
        ...     return torch.nn.functional.mse_loss(output, y) + 0.01 * penalty
        >>> array.backward(loss, torch.zeros(8, 4), torch.zeros(8, 1)).shape
        torch.Size([3])
    """
    modules = _modules.get()
    module = modules[-1] if modules else None
    if module is not None:
        return module
    if modules:
        raise only_outputs("hfta_nb.member()")
    raise FusionError(
        "no loss or metric of a member is being computed",
        where="hfta_nb.member()",
        remedy="call it within the loss of array.backward or of a study, or within a metric; elsewhere array[i] is "
        "member i, and array.parameters() has those of all members",
    )


def only_outputs(where: str) -> FusionError:
    """The error of a loss of `FusedArray.losses` that reads the model."""
    return FusionError(
        "the loss of array.losses gets a member's outputs, and not its module",
        where=where,
        remedy="add the term outside, one per member: array.losses(loss, out, y) + term, where a penalty is "
        "sum(p.abs().flatten(1).sum(1) for p in array.parameters()) and an attribute [M, ...] is read from the array; "
        "or use array.backward, whose loss may read hfta_nb.member()",
    )


def share(source: nn.Module, target: nn.Module) -> nn.Module:
    """Share the parameters, buffers and submodules of another module: changes in one apply to both."""
    for name in CONTAINERS:
        object.__setattr__(target, name, getattr(source, name))
    return target


@contextmanager
def alone(module: nn.Module | None) -> Iterator[None]:
    """The context in which a loss or metric of a plain module is computed; None for one that gets outputs only."""
    token = _modules.set((*_modules.get(), module))
    try:
        yield
    finally:
        _modules.reset(token)


@contextmanager
def current(module: nn.Module | None, state: ArrayState, watching: bool) -> Iterator[None]:
    """The context in which a loss or metric of an array's member is computed.

    Args:
        module: through which the member runs; None for a loss that gets outputs only.
        state: of the array.
        watching: find reads of tensors of all members.
    """
    watched = ForeignReads(state) if watching else nullcontext()
    with alone(module), watched, _shown(module, state), _as_parameters(module):
        yield


@contextmanager
def _shown(module: nn.Module | None, state: ArrayState) -> Iterator[None]:
    """Let the array show a member's module, and be called as it, within the context."""
    face = state.face()
    if face is None:
        yield
        return
    own, before = face.__dict__, dict(face.__dict__)
    if module is not None:
        share(module, face)
        own["_model"], own["forward"] = module, module
    else:
        own.update(dict.fromkeys(CONTAINERS, _Refused()), forward=_Refused())
    try:
        read = _refuse if module is None else partial(getattr, module)
        with shown(face, before["_model"] if module is None else module, read):
            yield
    finally:
        for name in (*CONTAINERS, "_model"):
            own[name] = before[name]
        if "forward" in before:
            own["forward"] = before["forward"]
        else:
            own.pop("forward", None)


def _refuse(*_: Any, **__: Any) -> NoReturn:
    raise only_outputs("the loss of array.losses")


class _Refused(dict[Any, Any]):
    """In place of the tensors and submodules of an array in a loss that gets outputs only."""

    __contains__ = __getitem__ = __iter__ = __call__ = get = items = keys = values = _refuse


@contextmanager
def _as_parameters(module: nn.Module | None) -> Iterator[None]:
    """Let a member's parameters, which are plain tensors in a block, count as `torch.nn.Parameter` within the context.

    Outside of it they do not: a model that sets an attribute to one would register it.
    """
    plain = [] if module is None else [p for p in module.parameters() if type(p) is Tensor]
    for p in plain:
        p.__dict__["_is_param"] = True
    try:
        yield
    finally:
        for p in plain:
            del p.__dict__["_is_param"]


def within_member(face: nn.Module) -> bool:
    """True while an array shows one member; see `current`."""
    return "forward" in face.__dict__


def shown_attribute(face: nn.Module, value: Any) -> Any:
    """An attribute of the model as its array shows it.

    Raises:
        FusionError: it has tensors, and a loss that gets outputs only is being computed.
    """
    if isinstance(face.__dict__.get("forward"), _Refused) and any(isinstance(v, Tensor) for v in flatten(value)[0]):
        _refuse()
    return value


def refuse_all(face: nn.Module, what: str) -> None:
    """Refuse what needs all members while an array shows one of them.

    Raises:
        FusionError: it does.
    """
    if within_member(face):
        raise FusionError(
            "the loss or metric of one member reads other members",
            where=what,
            remedy="within it, the array itself and hfta_nb.member() are that member's module; what compares members "
            "is computed outside, from array(x)",
        )
