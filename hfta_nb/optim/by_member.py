"""An optimizer of any class, run member by member."""

from __future__ import annotations

import copy
import functools
import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from hfta_nb.engine.array import in_full, not_compiled
from hfta_nb.engine.array.access import own_names
from hfta_nb.errors import ArrayWarning, HftaError, OptimError
from hfta_nb.optim.hooks import with_step_hooks
from hfta_nb.optim.hyperparameters import AnyKind, HostColumn, Kind, plain
from hfta_nb.optim.member_optimizers import MemberOptimizer
from hfta_nb.optim.optimizer_state import (
    NO_VALUES,
    lost,
    moved,
    numbered,
    renamed,
    restore,
    shown,
    state_of_member,
    with_keys,
)
from hfta_nb.optim.rerun import evaluated
from hfta_nb.optim.surgery import Surgery


class ByMember(MemberOptimizer):
    """An optimizer of any class, one for each member.

    Each member has an optimizer of the class over its own parameters, as the plain module has them: norms, statistics,
    attributes of the optimizer and random numbers are the member's own. A class whose updates are elementwise gives the
    same numbers, and faster, on ``array.parameters()`` where all members have the same hyperparameters.

    Args:
        optimizer: a class of optimizers, torch's, a library's or one's own; or a function that makes one, as of
            ``lambda params, lr: Lookahead(Lion(params, lr=lr))``. It is called with groups of parameters.
        params: an array, its parameters, or groups of them.
        settings: arguments of the class, each one value or a list with one per member. Where the class itself takes
            several numbers (``betas``), a list of numbers is one value, and a list of pairs is per member.

    Raises:
        OptimError: the class does not take the settings, or a list has not one value per member.

    Attributes:
        members: the optimizers, one per member.

    ``step(closure)`` takes a closure that returns the losses ``[M]``. Members that ask for an evaluation, as often as
    they like and wherever they have put their parameters (L-BFGS, SAM), are evaluated together. Further methods of the
    class (``train()``, ``eval()``, ``first_step()``) are called for each member.

    Example:
        >>> from hfta_nb import fuse
        >>> array = fuse([torch.nn.Linear(4, 2) for _ in range(3)])
        >>> optimizer = ByMember(torch.optim.Adafactor, array, lr=[0.1, 0.2, 0.3], weight_decay=0.01)
        >>> losses = array.backward(torch.nn.functional.mse_loss, torch.ones(5, 4), torch.zeros(5, 2))
        >>> optimizer.step()
        >>> optimizer.param_groups[0]["lr"]
        [0.1, 0.2, 0.3]
    """

    how = "one member at a time, by the given class"

    def __init__(self, optimizer: Callable[..., torch.optim.Optimizer], params: Any, **settings: Any) -> None:
        if not callable(optimizer) or isinstance(optimizer, torch.optim.Optimizer | torch.nn.Module):
            accepted = "a class of optimizers, or a function that makes one of parameters"
            raise OptimError("not a class", where="ByMember", got=optimizer, accepted=accepted)
        self.torch_class = optimizer  # type: ignore[misc]
        self._given = {name: in_full(value) for name, value in settings.items()}
        self._common: tuple[str, ...] = ()  # hyperparameters that all groups have
        self._kinds: dict[str, AnyKind] = {}
        super().__init__(params, {})

    def settings(self) -> dict[str, Any]:
        return {"torch_class": self.torch_class, "_given": {}, "_common": (), "_kinds": self._kinds}

    @property
    def title(self) -> str:
        """The optimizer in words, with its class."""
        return f"ByMember({getattr(self.torch_class, '__name__', self.torch_class)})"

    # Hyperparameters: those of the groups here are the members', whoever changes them.

    @property
    def kinds(self) -> Mapping[str, Kind]:  # type: ignore[override]
        """Hyperparameters that all groups have."""
        return {name: self._kind(name) for name in self._common}

    def _kind(self, name: str, example: Any = None) -> AnyKind:
        if name not in self._kinds:
            usual = _defaults(self.torch_class).get(name, example)
            several = isinstance(usual, tuple | list) and all(isinstance(v, int | float | None) for v in usual)
            self._kinds[name] = AnyKind("what the class takes", size=len(usual) if several else 0)
        return self._kinds[name]

    def rows(self, group: int, name: str) -> list[Any]:
        return self._kind(name).rows(name, self.param_groups[group].get(name), len(self.array))

    def extras(self, group: int) -> list[str]:
        return [n for n in self.param_groups[group] if n not in NO_VALUES and n not in self._common]

    def _admit(self, group: Mapping[str, Any]) -> None:
        common, self._common = self._common, ()  # a group may have others
        try:
            super()._admit(group)
        finally:
            self._common = common

    def _torch_group(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {k: v for k, v in values.items() if v is not None or k in self._common}

    # Members.

    def _begin(self) -> None:
        columns = {n: self._kind(n).rows(n, v, len(self.array)) for n, v in self._given.items()}
        self._own_settings = [{n: column[i] for n, column in columns.items()} for i in range(len(self.array))]
        super()._begin()

    def _make(self, states: Sequence[Mapping[str, Any]] | None) -> None:
        self._table = [
            {n: self.rows(k, n) for n in group if n not in NO_VALUES} for k, group in enumerate(self.param_groups)
        ]
        self._written: set[tuple[int, str]] = set()
        super()._make(None)
        for member, saved in zip(self.members, states or (), strict=False):
            self._restore(member, saved)
        self._show(range(len(self.members)))

    def _constructed(self, index: int, values: Sequence[Mapping[str, HostColumn]]) -> torch.optim.Optimizer:
        groups = []
        for k, names in enumerate(self._names):
            params: list[Any] = [self._rows[index][n] for n in names]
            if "param_names" in self.param_groups[k]:
                params = list(zip(self.param_groups[k]["param_names"], params, strict=True))
            groups.append({"params": params, **self._own_values(k, index)})
        where, settings = f"{self.title}, member {index}", self._own_settings[index]
        try:
            made = self.torch_class(groups, **settings)
        except (TypeError, ValueError, AssertionError, KeyError, RuntimeError, NotImplementedError) as error:
            raise OptimError(str(error) or repr(error), where=where, got=settings) from error
        if not isinstance(made, torch.optim.Optimizer):
            raise OptimError("makes no torch.optim.Optimizer", where=where, got=made)
        for name, p in self._rows[index].items():
            if p._backward_hooks or p._post_accumulate_grad_hooks:
                what = "steps in hooks of its parameters, which no backward of an array calls"
                remedy = "use a class that steps in step(), or give array.parameters() to this one"
                raise OptimError(what, where=f"{where}, {name}", remedy=remedy)
        held = [p for group in made.param_groups for p in group["params"]]
        if len(made.param_groups) != len(groups) or len(held) != sum(map(len, self._names)):
            remedy = "give one ByMember the parameters of each"
            raise OptimError("arranges its groups otherwise", where=where, got=len(made.param_groups),
                             accepted=f"{len(groups)} groups as they are given", remedy=remedy)  # fmt: skip
        for group, own in zip(made.param_groups, groups, strict=True):
            group.update({n: v for n, v in own.items() if n != "params"})
        return made

    def _own_values(self, group: int, index: int) -> dict[str, Any]:
        """A member's values; None is not one where the class does not know the name: other members have it."""
        known = _defaults(self.torch_class)
        return {n: rows[index] for n, rows in self._table[group].items() if rows[index] is not None or n in known}

    def _sync_values(self, values: Sequence[Mapping[str, HostColumn]]) -> None:
        self._follow_arenas()
        for k, group in enumerate(self.param_groups):
            now = _plain_values(group)
            if now == self._seen[k]:
                continue
            for name in [n for n, v in now.items() if n not in self._seen[k] or v != self._seen[k][n]]:
                for member, value in zip(self.members, self.rows(k, name), strict=True):
                    if value is not None or name in member.param_groups[k]:
                        member.param_groups[k][name] = value
            self._seen[k] = now
            self._shown[k] = [shown(m.param_groups[k]) for m in self.members]

    def _show(self, changed: Sequence[int] = ()) -> None:
        """Take over into the groups what members have changed in theirs.

        Args:
            changed: members that are new.
        """
        if changed:
            self._shown: list[list[dict[str, Any]]] = [[{} for _ in self.members] for _ in self.param_groups]
        for k, group in enumerate(self.param_groups):
            now = [shown(m.param_groups[k]) for m in self.members]
            if now == self._shown[k]:
                continue
            names = {n: None for a, b in zip(now, self._shown[k], strict=True) for n in a if n not in b or a[n] != b[n]}
            for name in names:
                column = [one.get(name) for one in now]
                self._kind(name, column[0])
                same = all(v == column[0] for v in column)
                if name not in group or self.rows(k, name) != column:
                    group[name] = column[0] if same else column
                    self._written |= set() if changed else {(k, name)}
            self._shown[k] = now
        self._common = tuple(n for n in self.param_groups[0] if n not in NO_VALUES
                             and all(n in group for group in self.param_groups))  # fmt: skip
        self._seen = [_plain_values(group) for group in self.param_groups]

    # Steps.

    @not_compiled
    @with_step_hooks
    def step(self, closure: Callable[[], Any] | None = None, *, skip: Sequence[int] | Tensor = ()) -> Any:
        """See `ArrayOptimizer.step`; each member's optimizer calls the closure when and as often as it wants.

        Raises:
            OptimError: the closure returns something else than one loss per member.
        """
        if closure is None:
            return super().step(skip=skip)
        self.take_written()
        self._sync_values(())
        left = skip.nonzero().flatten().tolist() if isinstance(skip, Tensor) else list(skip)
        try:
            return evaluated(self, closure, {int(i) for i in left})
        finally:
            self._clear_grads()
            self._show()

    def _update(self, values: Sequence[Mapping[str, HostColumn]], skip: list[int]) -> None:
        super()._update(values, skip)
        self._show()

    def _run(self, index: int, call: Callable[[], Any]) -> Any:
        with self.array.generators.member(index):
            return super()._run(index, call)

    def _gradient(self, name: str, grad: Tensor, index: int) -> Tensor:
        if grad.is_sparse and name not in self._padded[index]:
            return grad.coalesce()[index]
        return super()._gradient(name, grad.to_dense() if grad.is_sparse else grad, index)

    def _push(self, index: int) -> None:
        for name, p in self._rows[index].items():
            view = self._views[name][index]
            if name not in self._padded[index] and p.data_ptr() != view.data_ptr():  # it was given another tensor
                view.copy_(p.detach())
                p.data = view
        super()._push(index)

    def __getattr__(self, name: str) -> Any:
        """A method of the class, called for each member."""
        members = self.__dict__.get("members") or ()
        if name.startswith("_") or not members or not callable(getattr(members[0], name, None)):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return functools.partial(self._call, name)

    @torch.no_grad()
    def _call(self, name: str, *args: Any, **kwargs: Any) -> list[Any]:
        self._sync_values(())
        calls = [functools.partial(getattr(member, name), *args, **kwargs) for member in self.members]
        found = [self._run(i, call) for i, call in enumerate(calls)]
        for names, group in zip(self._names, self.param_groups, strict=True):  # a method may have forgotten gradients
            for n, p in zip(names, group["params"], strict=True):
                if p.grad is not None and all(rows[n].grad is None for rows in self._rows):
                    p.grad = None
        self._clear_grads()
        self._show()
        return found

    # State, as `ToldState` tells it.

    def _saved_state(self, member: torch.optim.Optimizer) -> dict[str, Any]:
        with self._own_code(member):
            return state_of_member(member)

    def _restore(self, member: torch.optim.Optimizer, saved: Mapping[str, Any]) -> None:
        with self._own_code(member):
            restore(member, saved)

    @contextmanager
    def _own_code(self, member: torch.optim.Optimizer) -> Iterator[None]:
        """The context of the class's own `state_dict` or `load_state_dict`.

        Raises:
            OptimError: in place of its error.
        """
        try:
            yield
        except HftaError:
            raise
        except Exception as error:
            what = f"saving or loading fails: {type(error).__name__}: {error}"
            remedy = "see that state_dict() and load_state_dict() of the class work, as on one model"
            raise OptimError(what, where=self.title, got=type(member).__name__, remedy=remedy) from error

    def _torch_states(self) -> list[dict[str, Any]]:
        return [self._saved_state(member) for member in self.members]

    def _member_state(self, index: int) -> dict[str, dict[str, Any]]:
        state, own = self._saved_state(self.members[index])["state"], self._own[index]
        return {name: state[k] for name, k in self._numbers() if k in state and own.has(name)}

    def _state(self) -> dict[str, Any]:
        saved = self._torch_states()
        if forgotten := sorted({n for m, own in zip(self.members, saved, strict=True) for n in lost(m, own)}):
            warnings.warn(
                f"{self.title}: the state does not hold {forgotten}, attributes of the class of a kind that can't be "
                "saved: keep numbers, tensors, and lists and dicts of them",
                ArrayWarning,
                stacklevel=4,
            )
        return {"members": [with_keys(own, str) for own in saved]}

    def _load(self, state: Mapping[str, Any]) -> None:
        rows = state.get("members", ())
        if len(rows) != len(self.members):
            raise OptimError("another number of members", where=self.title, got=len(rows))
        for member, saved in zip(self.members, rows, strict=True):
            self._restore(member, with_keys(saved, numbered))

    def _put(self, member: torch.optim.Optimizer, state: Mapping[int, Any]) -> None:  # type: ignore[override]
        saved = self._saved_state(member)
        shared = {k: v for k, v in saved["state"].items() if not isinstance(k, int)}  # of no parameter
        self._restore(member, {**saved, "state": {**shared, **state}})

    def member_state(self, index: int) -> dict[str, Any]:
        """See `ArrayOptimizer.member_state`; "own" is what the class keeps beside the state of parameters."""
        found, saved = super().member_state(index), self._saved_state(self.members[index])
        named = {name: own for own, name in own_names(self.array, index).items()}
        numbers = {k: named[name] for name, k in self._numbers() if name in named}
        own = {**saved, "state": {k: v for k, v in saved["state"].items() if not isinstance(k, int)}}
        return {**found, "own": with_keys(own, renamed(numbers))}

    def load_members(self, states: Mapping[int, Mapping[str, Any]]) -> None:
        """See `ArrayOptimizer.load_members`."""
        super().load_members(states)
        for index, state in states.items():
            member, known = self.members[index], own_names(self.array, index)
            numbers = {own: k for name, k in self._numbers() for own, mine in known.items() if mine == name}
            saved = with_keys(state["own"], renamed(numbers))
            now = {k: v for k, v in self._saved_state(member)["state"].items() if isinstance(k, int)}
            self._restore(member, {**saved, "state": {**saved["state"], **now}})
        self._show(range(len(self.members)))

    def _copy_rows(self, src: int, dst: int) -> None:
        self._own_settings[dst] = dict(self._own_settings[src])
        self._graft(dst, self, src)

    def _graft(self, index: int, other: ByMember, src: int) -> None:
        """A member's optimizer becomes a copy of member `src` of another, over its own parameters."""
        mine, theirs = self.members[index], other.members[src]
        memo: dict[int, Any] = {id(p): self._rows[index][n] for n, p in other._rows[src].items()}
        memo[id(theirs)] = mine
        vars(mine).update(copy.deepcopy(vars(theirs), memo))
        moved(mine, {i: p for i, p in memo.items() if isinstance(p, torch.nn.Parameter)})

    def _reset_row(self, index: int) -> None:
        written = set(self._written)
        self._table = [
            {n: self.rows(k, n) for n in group if n not in NO_VALUES and (k, n) not in written}
            for k, group in enumerate(self.param_groups)
        ]
        self.members[index] = self._constructed(index, ())
        self._show()
        self._written = written

    def take_member(self, index: int, other: Surgery, src: int) -> None:
        """See `ArrayOptimizer.take_member`."""
        super().take_member(index, other, src)
        if isinstance(other, ByMember):
            self._own_settings[index] = dict(other._own_settings[src])
            self._graft(index, other, src)
            for k in range(len(self.param_groups)):
                own = {n: self.rows(k, n)[index] for n in self.param_groups[k] if n not in NO_VALUES}
                self.members[index].param_groups[k].update(own)
            self._show()

    def _take_rows(self, parts: Sequence[tuple[Surgery, Sequence[int]]]) -> None:
        origins = [(o, i) for o, rows in parts if isinstance(o, ByMember) for i in rows]
        self._own_settings = [dict(o._own_settings[i]) for o, i in origins]
        for o in {id(o): o for o, _ in origins}.values():
            o._sync_values(())
        self._make(None)
        for index, (o, i) in enumerate(origins):
            self._graft(index, o, i)
        self._show(range(len(self.members)))


def _defaults(optimizer: Any) -> dict[str, Any]:
    """Default arguments of a class."""
    try:
        parameters = inspect.signature(optimizer).parameters
    except (TypeError, ValueError):
        return {}
    return {n: p.default for n, p in parameters.items() if p.default is not inspect.Parameter.empty}


def _plain_values(group: Mapping[str, Any]) -> dict[str, Any]:
    return {n: plain(v) for n, v in group.items() if n not in NO_VALUES}
