"""What the optimizers of an array share: parameter groups, steps, closures, and the face of `torch.optim`."""

from __future__ import annotations

import abc
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import torch
from torch import Tensor

from hfta_nb.engine.array import Arena, in_full, not_compiled
from hfta_nb.errors import OptimError
from hfta_nb.errors.border import FUNCTION, ITEMS, TRUTH, Kind, bounded, takes
from hfta_nb.optim.bound_step import BoundStep
from hfta_nb.optim.group_values import GroupValues
from hfta_nb.optim.groups import Group, groups_of, listed, names_of
from hfta_nb.optim.hooks import with_step_hooks
from hfta_nb.optim.hyperparameters import HostColumn, Reader, check_lr, plain
from hfta_nb.optim.optimizer_stub import OptimizerStub
from hfta_nb.optim.surgery import Surgery, checked
from hfta_nb.optim.torch_schedulers import answer_scheduler

MARKS = Kind("no members", "a list of members, or a tensor [M]",
             lambda v: not v.is_meta if isinstance(v, Tensor) else ITEMS.accepts(v))  # fmt: skip


class ArrayOptimizer(Surgery):
    """Base of the optimizers.

    Args:
        params: an array; or parameters of one, (name, parameter) pairs, or dicts as torch's parameter groups:
            ``{"params": ..., "lr": ...}``, where each hyperparameter is one value or a list with one per member.
        defaults: hyperparameters of groups that don't give their own.

    Raises:
        OptimError: parameters of no array, or of several, or given twice; a value out of bounds, or a list that has not
            one value per member.

    Attributes:
        array: the array that is trained.
        param_groups: live: what is assigned to ``param_groups[0]["lr"]`` is used from the next step on. One value per
            member calculates as one number does: ``group["lr"] *= 0.9``.
        guard: makes what is entered around steps that are not bound, which may need memory.
        made: steps since it was built.
        how: how the members are updated, in words.
    """

    how: ClassVar[str]

    @takes(OptimError)
    def __init__(self, params: Any, defaults: Mapping[str, Any]) -> None:
        self.defaults: Group = {name: in_full(value) for name, value in defaults.items()}
        self._prepare_groups(params)
        for k, group in enumerate(self.param_groups):
            check_lr(group, f"group {k}, " if k else "")
        self._begin()

    def _prepare_groups(self, params: Any) -> None:
        self.array, groups = groups_of(params, type(self).__name__)
        self.param_groups: list[Group] = []
        self._names: list[list[str]] = []
        self._readers: list[Reader] = []
        self.stubs: list[OptimizerStub] = []
        self._schedulers: list[weakref.ref[Any]] = []
        self._bound_step: BoundStep | None = None
        self.guard: Callable[[ArrayOptimizer], AbstractContextManager[Any]] = nullcontext
        self.made = 0
        self._marked: Tensor | None = None  # members to leave out of the step under way, on the device
        for group in groups:
            self._admit(group)
        self.array.followers.add(self)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """This class; an lr scheduler of torch that asks for it is told its counterpart.

        Raises:
            OptimError: one does.
        """
        answer_scheduler(sys._getframe(1), type(self).__name__)
        return type(self)

    # Groups.

    def add_param_group(self, param_group: Mapping[str, Any]) -> None:
        """Add a group, with the constructor's values for what it doesn't give. See `torch.optim.Optimizer`.

        Raises:
            OptimError: as the constructor. Nothing has changed then.
        """
        check_lr(param_group, f"group {len(self.param_groups)}, ")
        self._admit(param_group)
        self._grown()

    def _admit(self, group: Mapping[str, Any]) -> None:
        where = type(self).__name__ if not self.param_groups else f"{type(self).__name__}, group {len(self._names)}"
        own = GroupValues({**self.defaults, **listed(group, where)}, len(self.array), self.kinds)
        taken = {name: k for k, names in enumerate(self._names) for name in names}
        if self.param_groups and ("param_names" in own) != ("param_names" in self.param_groups[0]):
            raise OptimError("some groups come with names of parameters and some without", where=where)
        names = names_of(own, self.array, taken, where)
        reader = Reader(self.kinds, len(self.array), f"group {len(self._names)}" if self._names else "")
        self.check(reader.read(own), self._shapes(names), where)
        self.param_groups.append(own)
        self._names.append(names)
        self._readers.append(reader)

    def _shapes(self, names: Iterable[str]) -> dict[str, Tensor]:
        parameters = dict(self.array.named_parameters())
        return {name: parameters[name] for name in names}

    def check(self, values: Mapping[str, HostColumn], parameters: Mapping[str, Tensor], where: str) -> None:
        """Whatever must hold beyond the bounds of each hyperparameter.

        Args:
            values: of a group, one per member.
            parameters: by name, each ``[M, *shape]``.
            where: for the error.

        Raises:
            OptimError: it doesn't.
        """

    def read(self) -> list[dict[str, HostColumn]]:
        """The hyperparameters of each group, one value per member.

        Raises:
            OptimError: what was assigned can't be used.
        """
        return [r.read(group) for r, group in zip(self._readers, self.param_groups, strict=True)]

    def rows(self, group: int, name: str) -> list[Any]:
        """The value of every member, of a hyperparameter or anything else in a group."""
        value = self.param_groups[group][name]
        members = len(self.array)
        if name in self.kinds:
            return self.kinds[name].rows(name, value, members)
        value = plain(value)
        return list(value) if isinstance(value, list) and len(value) == members else [value] * members

    def extras(self, group: int) -> list[str]:
        """What the group holds beside parameters and hyperparameters, such as "initial_lr"."""
        own = {*self.kinds, "params", "param_names"}
        return [k for k in self.param_groups[group] if k not in own and k not in self.defaults]

    # Lr schedulers of this optimizer, in the order in which they were made; surgery takes them along.

    def follow(self, scheduler: Any) -> None:
        """From now on the scheduler's members are copied and reset with the optimizer's."""
        self._schedulers.append(weakref.ref(scheduler))

    def unfollow(self, scheduler: Any) -> None:
        """The scheduler comes along no more."""
        self._schedulers = [r for r in self._schedulers if r() not in (None, scheduler)]

    def schedulers(self) -> list[Any]:
        """The lr schedulers of this optimizer."""
        return [s for s in (r() for r in self._schedulers) if s is not None]

    # Steps.

    @not_compiled
    @takes(OptimError, set_to_none=TRUTH)
    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients, or set them to zero."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    if set_to_none:
                        p.grad = None
                    else:
                        p.grad = p.grad.detach() if p.grad.grad_fn is not None else p.grad
                        p.grad.zero_()

    @not_compiled
    @with_step_hooks
    @takes(OptimError, closure=FUNCTION.or_none, skip=MARKS)
    def step(self, closure: Callable[[], Any] | None = None, *, skip: Sequence[int] | Tensor = ()) -> Any:
        """Update every parameter that has a gradient, each member with its own hyperparameters.

        Args:
            closure: computes the gradients again and returns the losses ``[M]``.
            skip: members that are left as they are, values, state and step count; or ``[M]`` on the device, true for
                such.

        Returns:
            What the closure returned.
        """
        if isinstance(skip, Tensor) and skip.layout != torch.strided:
            raise OptimError("a sparse tensor", where="step, skip", got=skip, accepted="a truth value per member")
        self.array.take_over()
        self.array.settle_missing()
        self.take_written()
        marked, listed = (skip, []) if isinstance(skip, Tensor) else (None, self._listed(skip))
        prepared = self._bound_step
        if prepared is not None and closure is None and prepared.is_bound(self.param_groups):
            ready = prepared.skips if marked is not None else not listed
            if ready:
                prepared.run(marked)
                self.made += 1
                return None
        self._marked = marked
        try:
            with self.guard(self):
                found = self._whole_step(closure, listed if marked is None else marked.nonzero().flatten().tolist())
            self.made += 1
            return found
        finally:
            self._marked = None

    def _listed(self, skip: Sequence[int]) -> list[int]:
        if isinstance(skip, tuple) and not skip:  # in each step of most loops
            return []
        return [checked(self.array, i) for i in bounded(skip, OptimError, "skip")]

    @property
    def bound(self) -> bool:
        """Whether the next step's calls are made already, if nothing changes that they depend on."""
        return self._bound_step is not None

    @property
    def begun(self) -> bool:
        """Of a step that has failed, whether it may have changed something, where no `guard` has put that back."""
        return self._bound_step is None or self._bound_step.done > 0

    def ready(self) -> tuple[Any, ...] | None:
        """What the next step, if gradients lie where they do now, will call: a step that was captured is good for as
        long as these objects are the same. New values that are kept on the device are taken over here.

        Returns:
            None where a step computes on the host, or isn't bound yet.
        """
        return None

    def tensors(self) -> dict[str, Tensor]:
        """What a step that is `ready` changes beside the parameters, by name."""
        return {}

    @torch.no_grad()
    def _whole_step(self, closure: Callable[[], Any] | None, skip: Sequence[int]) -> Any:
        losses = None
        if closure is not None:
            with torch.enable_grad():
                losses = closure()
        self._update(self.read(), sorted(set(skip)))
        return losses

    _arenas: list[Arena]
    """Those of the array, when the state was laid out."""

    def _follow_arenas(self) -> None:
        """Lay the state out anew if the array has moved to another device or dtype."""
        arenas = self.array.arenas
        if len(arenas) != len(self._arenas) or any(a is not b for a, b in zip(arenas, self._arenas, strict=True)):
            self._grown()

    # For subclasses.

    @abc.abstractmethod
    def _begin(self) -> None:
        """Make ready for the first step."""

    @abc.abstractmethod
    def _grown(self) -> None:
        """A group has been added, or the array has other arenas: lay the state out anew."""

    @abc.abstractmethod
    def _update(self, values: Sequence[Mapping[str, HostColumn]], skip: list[int]) -> None:
        """Update the parameters in place.

        Args:
            values: hyperparameters by group, as `read` gives them.
            skip: members that are left as they are.
        """

    def __repr__(self) -> str:
        groups = []
        for group in self.param_groups:
            shown = ", ".join(f"{k}={plain(group[k])!r}" for k in self.kinds)
            groups.append(f"{len(group['params'])} parameters: {shown}")
        return f"{type(self).__name__}({'; '.join(groups)})"
