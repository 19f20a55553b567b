"""What the lr schedulers of an array share: one of torch's for each member, over stubs of its values."""

from __future__ import annotations

import copy
import functools
import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch.optim import lr_scheduler as reference

from hfta_nb.engine.array import in_full, not_compiled
from hfta_nb.engine.array.access import FunctionStates
from hfta_nb.errors import OptimError
from hfta_nb.errors.border import MOST, STATE, number, takes
from hfta_nb.errors.caught_warnings import caught_warnings
from hfta_nb.optim.hyperparameters import plain, rows_of
from hfta_nb.optim.optimizer_base import ArrayOptimizer
from hfta_nb.optim.stub_values import functions_in, pull, push, restore, values_of
from hfta_nb.optim.surgery import checked

Factory = Callable[[torch.optim.Optimizer], reference.LRScheduler]


class ArrayLRScheduler:
    """Base: changes the values of the optimizer's groups, per member, as torch's scheduler of the same name would.

    Args:
        optimizer: of an array.
        factories: per member, makes torch's scheduler of an optimizer.

    Raises:
        OptimError: torch's scheduler does not take the settings of a member.

    Attributes:
        how: how the members are served, in words.
        members: torch's schedulers, one per member.
    """

    how: ClassVar[str] = "torch's own, one per member"

    @takes(OptimError)
    def __init__(self, optimizer: ArrayOptimizer, factories: Sequence[Factory]) -> None:
        if not isinstance(optimizer, ArrayOptimizer):
            raise OptimError("not the optimizer of an array", where=type(self).__name__, got=optimizer,
                             accepted="one of hfta_nb.optim")  # fmt: skip
        self.optimizer = optimizer
        self._factories = list(factories)
        if len(self._factories) != len(optimizer.array):
            raise OptimError("not one per member", where=type(self).__name__, got=len(self._factories),
                             accepted=f"{len(optimizer.array)}")  # fmt: skip
        self._note_functions(FunctionStates(len(self._factories), shows=False))
        stubs = pull(optimizer)
        self._before = [values_of(c) for c in stubs]
        try:
            self.members = [self._make(i) for i in range(len(stubs))]
        except OptimError:
            for stub, values in zip(stubs, self._before, strict=True):
                restore(stub, values)
            raise
        push(optimizer)
        optimizer.follow(self)

    def _note_functions(self, states: FunctionStates) -> None:
        """Note the user's functions, and what they keep for each member: a counter counts each member's calls."""
        self._states = states
        self._functions = tuple({id(f): f for factory in self._factories for f in functions_in(factory)}.values())

    @contextmanager
    def _alone(self, index: int) -> Iterator[None]:
        with self._states.used(self._functions), self._states.alone(index):
            yield

    @contextmanager
    def _stepping(self, index: int) -> Iterator[None]:
        """The context of a step of a member's scheduler.

        Raises:
            OptimError: in place of its error; the optimizer's values are as before, as no member's are written.
        """
        try:
            with self._alone(index):
                yield
        except OptimError:
            raise
        except Exception as error:
            raise _failed(error, f"{type(self).__name__}.step, member {index}", self._factories[index]) from error

    def _make(self, index: int) -> reference.LRScheduler:
        try:
            with self._alone(index):
                made = self._factories[index](self.optimizer.stubs[index])
            made.step  # noqa: B018 - else it is no scheduler
            return made
        except (TypeError, ValueError, ArithmeticError, KeyError, AttributeError) as error:
            raise _failed(error, f"{type(self).__name__}, member {index}", self._factories[index]) from error

    @not_compiled
    def step(self, metrics: Any = None, epoch: Any = None) -> None:
        """Go one step (as a rule: one epoch) on, or to a given epoch.

        Args:
            metrics: for `ReduceLROnPlateau`, one per member ``[M]``. Where no member's scheduler takes metrics, a value
                given by position is the epoch, as in torch.
            epoch: to go to, one value or a list or tuple with one per member; fractions for
                `CosineAnnealingWarmRestarts`. torch deprecates it for most schedulers, and warns.

        Raises:
            OptimError: not one number per member, or a member's scheduler takes no epoch.
        """
        wanting = [isinstance(m, reference.ReduceLROnPlateau) for m in self.members]
        if metrics is not None and not any(wanting):
            if epoch is not None:
                raise OptimError("takes no metrics", where=f"{type(self).__name__}.step", got=metrics)
            metrics, epoch = None, metrics
        epochs = self._epochs(epoch)
        rows = self._metrics(metrics, wanting)
        pull(self.optimizer)
        if epoch is None:
            for i, (member, value) in enumerate(zip(self.members, rows, strict=True)):
                with self._stepping(i):
                    member.step(*value)
        else:
            self._go_to(rows, epochs)
        push(self.optimizer)

    def step_some(self, places: Sequence[int], metrics: Sequence[float] | None = None) -> None:
        """Go one step on with these members alone.

        Args:
            metrics: for `ReduceLROnPlateau`, one per member of the array.
        """
        pull(self.optimizer)
        for place in places:
            with self._stepping(place):
                self.members[place].step(*(() if metrics is None else (metrics[place],)))
        push(self.optimizer)

    def _go_to(self, rows: Sequence[tuple[Any, ...]], epochs: Sequence[Any]) -> None:
        """Go to these epochs; what torch warns of for each member is told once."""
        with caught_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for i, (member, value, epoch) in enumerate(zip(self.members, rows, epochs, strict=True)):
                with self._stepping(i):
                    member.step(*value, epoch=epoch)  # type: ignore[misc]
        for text, kind in dict.fromkeys((str(w.message), w.category) for w in caught):
            warnings.warn(text, kind, stacklevel=3)

    def _metrics(self, metrics: Any, wanting: Sequence[bool]) -> list[tuple[Any, ...]]:
        where = f"{type(self).__name__}.step"
        if metrics is None:
            if any(wanting):
                raise OptimError("no metrics", where=where, accepted="one per member: a tensor [M] or a list")
            return [()] * len(wanting)
        values = plain(metrics)
        if not isinstance(values, list) or len(values) != len(wanting):
            raise OptimError("not one metric per member", where=where, got=metrics, accepted=f"{len(wanting)} numbers")
        return [(v,) if wants else () for v, wants in zip(values, wanting, strict=True)]

    def _epochs(self, epoch: Any) -> list[Any]:
        """The epoch to which each member goes; None for the next."""
        count, where = len(self.members), f"{type(self).__name__}.step"
        if epoch is None:
            return [None] * count
        values = plain(epoch)
        values = list(values) if isinstance(values, list | tuple) else [values] * count
        numbers = all(isinstance(v, int | float) and number(v) and 0 <= v < MOST for v in values)
        if len(values) != count or not numbers:
            accepted = f"a number from 0, or a list of {count}, one per member"
            raise OptimError("not an epoch", where=where, got=epoch, accepted=accepted)
        for i, member in enumerate(self.members):
            if "epoch" not in inspect.signature(member.step).parameters:
                remedy = "call step() without it"
                raise OptimError(f"{type(member).__name__} takes no epoch", where=f"{where}, member {i}", got=epoch,
                                 remedy=remedy)  # fmt: skip
        return values

    @property
    def _initial_step(self) -> Any:
        """What torch's `SequentialLR` asks its schedulers for.

        Raises:
            OptimError: it does.
        """
        remedy = "use hfta_nb.optim.lr_scheduler.SequentialLR, which has the same arguments"
        raise OptimError("takes no scheduler of an array", where="torch.optim.lr_scheduler.SequentialLR",
                         got=type(self).__name__, remedy=remedy)  # fmt: skip

    def get_last_lr(self) -> list[list[float]]:
        """Per group, the lr of each member."""
        pull(self.optimizer)
        columns = [
            [float(lr) for lr in m.get_last_lr()] if hasattr(m, "get_last_lr") else [g["lr"] for g in stub.param_groups]
            for m, stub in zip(self.members, self.optimizer.stubs, strict=True)
        ]
        return [list(group) for group in zip(*columns, strict=True)]

    # Saving and surgery.

    def state_dict(self) -> dict[str, Any]:
        """Per member, the state of torch's scheduler. Functions are not saved, as in torch."""
        return {"members": [m.state_dict() for m in self.members]}

    @takes(OptimError, state_dict=STATE)
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take what `state_dict` gave; the values themselves are in the optimizer's state, as in torch.

        Raises:
            OptimError: it is of another number of members.
        """
        states = state_dict.get("members")
        if not isinstance(states, list | tuple) or not all(isinstance(saved, Mapping) for saved in states):
            raise OptimError("not the state of a scheduler", where=type(self).__name__, got=list(state_dict),
                             accepted=STATE.accepted)  # fmt: skip
        if len(states) != len(self.members):
            raise OptimError("another number of members", where=type(self).__name__, got=len(states),
                             accepted=str(len(self.members)))  # fmt: skip
        for member, saved in zip(self.members, states, strict=True):
            member.load_state_dict(copy.deepcopy(saved))

    def copy_member(self, src: int, dst: int) -> None:
        """Member `dst` takes the scheduler of member `src`, as far as it has come.

        Raises:
            IndexError: there is no such member.
            OptimError: not a member's number.
        """
        src, dst = checked(self.optimizer.array, src), checked(self.optimizer.array, dst)
        self.take_member(dst, self, src)

    def take_member(self, index: int, other: ArrayLRScheduler, src: int) -> None:
        """Member `index` takes the scheduler of member `src` of another, as far as it has come; its optimizer comes
        first, as the values that schedulers change are there."""
        self.members[index] = other._copied(src, pull(self.optimizer)[index], {})
        self._factories[index], self._before[index] = other._factories[src], copy.deepcopy(other._before[src])
        self._states.take(index, other._states, src)
        self._note_functions(self._states)

    def reset_member(self, index: int) -> None:
        """The member's schedule, and the values of its groups that it changes, begin anew."""
        stub = pull(self.optimizer)[index]
        restore(stub, self._before[index])
        self._states.values.drop(index)
        self.members[index] = self._make(index)
        push(self.optimizer)

    def select(self, indices: Sequence[int], optimizer: ArrayOptimizer) -> ArrayLRScheduler:
        """These members' schedulers, for the optimizer of an array that has just them."""
        return self._merged([(self, list(indices))], optimizer)

    def join(self, other: ArrayLRScheduler, optimizer: ArrayOptimizer) -> ArrayLRScheduler:
        """The schedulers of the members of both, for the optimizer of an array that has them all.

        Where the classes differ, the result is a `ByMember`.
        """
        return self._merged([(s, list(range(len(s.members)))) for s in (self, other)], optimizer)

    def _merged(
        self, parts: Sequence[tuple[ArrayLRScheduler, list[int]]], optimizer: ArrayOptimizer
    ) -> ArrayLRScheduler:
        count = sum(len(rows) for _, rows in parts)
        if count != len(optimizer.array):
            raise OptimError("another number of members", where=type(self).__name__, got=count,
                             accepted=f"the optimizer's {len(optimizer.array)}")  # fmt: skip
        same = all(type(s) is type(self) for s, _ in parts)
        made: ArrayLRScheduler = object.__new__(type(self) if same else ByMember)
        made.optimizer = optimizer
        stubs = pull(optimizer)
        origins = [(s, i) for s, rows in parts for i in rows]
        made._inherit(parts, origins)
        made.members = [
            s._copied(i, c, made._memo(n)) for n, ((s, i), c) in enumerate(zip(origins, stubs, strict=True))
        ]
        made._factories = [s._factories[i] for s, i in origins]
        made._before = [copy.deepcopy(s._before[i]) for s, i in origins]
        made._note_functions(FunctionStates(count, shows=False))
        for n, (s, i) in enumerate(origins):
            made._states.take(n, s._states, i)
        optimizer.follow(made)
        return made

    def _inherit(
        self, parts: Sequence[tuple[ArrayLRScheduler, list[int]]], origins: Sequence[tuple[ArrayLRScheduler, int]]
    ) -> None:
        """Take over what a subclass has of its own."""

    def _memo(self, index: int) -> dict[int, Any]:
        return {}

    def _copied(self, index: int, stub: torch.optim.Optimizer, memo: dict[int, Any]) -> reference.LRScheduler:
        member = self.members[index]
        shared = {id(v): v for v in self._states.owners(self._functions)}
        return copy.deepcopy(member, {**shared, **memo, id(member.optimizer): stub})

    def __repr__(self) -> str:
        return f"{type(self).__name__} of {len(self.members)} members"


class ByMember(ArrayLRScheduler):
    """A scheduler of any class for each member.

    Args:
        optimizer: of an array.
        factories: a function of a torch optimizer that makes a scheduler for it, of `torch.optim.lr_scheduler`, of
            ``timm.scheduler`` or one's own; or a list of such, one per member.

    Methods that the schedulers have beside `step` are called for each member, ``step_update(num_updates)`` of timm's
    among them; a list or a tensor ``[M]`` is one value per member.

    Example:
        >>> from hfta_nb import fuse, optim
        >>> optimizer = optim.SGD(fuse([torch.nn.Linear(2, 1) for _ in range(2)]), lr=0.1)
        >>> scheduler = ByMember(optimizer, [
        ...     lambda o: torch.optim.lr_scheduler.StepLR(o, step_size=10),
        ...     lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, T_max=100),
        ... ])
        >>> scheduler.get_last_lr()
        [[0.1, 0.1]]

    Source: `torch.optim.lr_scheduler`.
    """

    @takes(OptimError)
    def __init__(self, optimizer: ArrayOptimizer, factories: Factory | Sequence[Factory]) -> None:
        if callable(factories):
            factories = [factories] * (len(optimizer.array) if isinstance(optimizer, ArrayOptimizer) else 0)
        factories = in_full(factories)
        if not isinstance(factories, list | tuple) or not all(map(callable, factories)):
            accepted = "a function of an optimizer, or a list with one per member"
            raise OptimError("does not make schedulers", where="ByMember", got=factories, accepted=accepted)
        super().__init__(optimizer, factories)

    def step(self, *args: Any, **kwargs: Any) -> None:
        """As `ArrayLRScheduler.step`; schedulers that are not torch's get what it is given, each its own."""
        if all(isinstance(m, reference.LRScheduler) for m in self.members):
            super().step(*args, **kwargs)
        else:
            self._call("step", *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        """A method of the schedulers, called for each member."""
        members = self.__dict__.get("members") or ()
        if name.startswith("_") or not members or not all(callable(getattr(m, name, None)) for m in members):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return functools.partial(self._call, name)

    def _call(self, name: str, *args: Any, **kwargs: Any) -> list[Any]:
        """Call a method of each member's scheduler.

        Raises:
            OptimError: a list has not one value per member.
        """
        members = len(self.members)
        rows = [rows_of(name, v, members, False) for v in args]
        named = {k: rows_of(f"{name}, {k}", v, members, False) for k, v in kwargs.items()}
        pull(self.optimizer)
        found = []
        for i, m in enumerate(self.members):
            with self._stepping(i):
                found.append(getattr(m, name)(*(row[i] for row in rows), **{k: row[i] for k, row in named.items()}))
        push(self.optimizer)
        return found


def _failed(error: Exception, where: str, factory: Factory) -> OptimError:
    """In place of an error of a member's scheduler, which the factory makes."""
    settings = getattr(factory, "keywords", None) or {}
    what = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
    accepted = "functions of the epoch that return a number" if "lr_lambda" in settings else ""
    return OptimError(what, where=where, got=settings or factory, accepted=accepted)
