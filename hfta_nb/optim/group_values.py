"""The values of a parameter group, of which those that are one per member calculate member by member."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from numbers import Real
from typing import Any, NoReturn, Self

from hfta_nb.engine.array import PerMember
from hfta_nb.errors import OptimError
from hfta_nb.optim.hyperparameters import Kind, plain


def _with(function: Callable[[Any, Any], Any]) -> Callable[[MemberValues, Any], Any]:
    """A method that calculates with each member's value and another one."""
    return lambda values, other: values._each(function, other)


class MemberValues(list[Any]):
    """A list of M numbers, one per member, that calculates as a number does: each member's with its own.

    ``for group in optimizer.param_groups: group["lr"] *= 0.9`` is written for the one number of torch. The other
    operand is a number, or one per member. In everything else it is a list.
    """

    def _each(self, function: Callable[..., Any], *other: Any) -> Any:
        columns = []
        for value in map(plain, other):
            several = isinstance(value, list | tuple)
            if not several and not isinstance(value, Real):
                return NotImplemented
            if several and len(value) != len(self):
                accepted = f"a number, or a list of {len(self)}"
                raise OptimError("not one value per member", where="values of a group", got=value, accepted=accepted)
            columns.append(value if several else [value] * len(self))
        return MemberValues(map(function, self, *columns))

    __add__ = __radd__ = __iadd__ = _with(operator.add)  # those of a list would make it longer
    __mul__ = __rmul__ = __imul__ = _with(operator.mul)  # or repeat it
    __sub__, __rsub__ = _with(operator.sub), _with(lambda v, w: w - v)
    __truediv__, __rtruediv__ = _with(operator.truediv), _with(lambda v, w: w / v)
    __floordiv__, __mod__ = _with(operator.floordiv), _with(operator.mod)
    __pow__, __rpow__ = _with(operator.pow), _with(lambda v, w: w**v)

    def __neg__(self) -> Self:
        return self._each(operator.neg)  # type: ignore[no-any-return]

    def __abs__(self) -> Self:
        return self._each(abs)  # type: ignore[no-any-return]

    def _refuse(self, *_: Any) -> NoReturn:
        raise OptimError(
            "one value per member is no single number",
            where="values of a group",
            got=list(self),
            accepted="+, -, *, /, //, %, ** with a number, or one per member",
            remedy='calculate with each: group["lr"] = [max(0.9 * lr, 1e-6) for lr in group["lr"]]',
        )

    __float__ = __int__ = __round__ = _refuse

    def __lt__(self, other: Any) -> bool:
        return super().__lt__(other) if isinstance(other, list) else self._refuse()

    def __le__(self, other: Any) -> bool:
        return super().__le__(other) if isinstance(other, list) else self._refuse()

    def __gt__(self, other: Any) -> bool:
        return super().__gt__(other) if isinstance(other, list) else self._refuse()

    def __ge__(self, other: Any) -> bool:
        return super().__ge__(other) if isinstance(other, list) else self._refuse()


class GroupValues(dict[str, Any]):
    """A parameter group, live. Lists of one number per member are `MemberValues` in it, copied where they are set.

    Args:
        values: "params", and the value of each hyperparameter.
        members: their number.
        kinds: of the hyperparameters.
    """

    members = 0
    kinds: Mapping[str, Kind]

    def __init__(self, values: Mapping[str, Any], members: int, kinds: Mapping[str, Kind]) -> None:
        super().__init__()
        self.members, self.kinds = members, dict(kinds)
        self.update(values)

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, self._held(name, value))

    def update(self, *given: Mapping[str, Any] | Iterable[tuple[str, Any]], **named: Any) -> None:  # type: ignore[override]
        for name, value in dict(*given, **named).items():
            self[name] = value

    def setdefault(self, name: str, default: Any = None) -> Any:
        if name not in self:
            self[name] = default
        return self[name]

    def __ior__(self, other: Any) -> Self:  # type: ignore[override, misc]
        self.update(other)
        return self

    def __reduce__(self) -> Any:
        return dict, (dict(self),)

    def _held(self, name: str, value: Any) -> Any:
        if isinstance(value, PerMember) and name in self.kinds and not self.kinds[name].size:
            value = plain(value)
        if type(value) is not list or len(value) != self.members or isinstance(value, MemberValues):
            return value
        numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in value)
        return MemberValues(value) if numbers else value
