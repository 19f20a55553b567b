"""Hyperparameters: what a person gives (one value, or one per member) as one value per member."""

from __future__ import annotations

import array
import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hfta_nb.engine.array import PerMember, in_full
from hfta_nb.errors import OptimError, border

HostColumn = NDArray[Any]
"""One number, flag or word per member, ``[M]``, in the host's memory. Numbers in float64, whatever the parameters'
dtype: through float32 a float64 run would be 1.5e-9 off."""

Factor = float | Tensor
"""What a pass over ``[M, P]`` multiplies by: a number where all members have the same, else a tensor ``[M, 1]``."""


@dataclass(frozen=True)
class Kind:
    """What a hyperparameter may be.

    Attributes:
        accepted: in words.
        test: whether a single number (each number of a tuple) is accepted.
        size: how many numbers make one value: 0 for a plain number, 2 for a pair.
        words: accepted values that are not numbers (None among them).
        convert: makes the value what is kept.
    """

    accepted: str
    test: Callable[[Any], bool] = lambda v: True
    size: int = 0
    words: tuple[Any, ...] = ()
    convert: Callable[[Any], Any] = float

    def per_member(self, value: Any) -> bool:
        """Whether `value` (after `plain`) is a list with one value per member, rather than one value."""
        if not isinstance(value, list):
            return False
        return self.size == 0 or not (value and all(v is None or isinstance(v, int | float) for v in value))

    def _transposed(self, name: str, value: Any, members: int) -> Any:
        """Of a pair of columns ``(first values, second values)``, each one number or one per member, the M pairs.

        A list of M pairs stays as it is, also where M is 2.

        Raises:
            OptimError: a tuple holds a list that has not one value per member.
        """
        if not self.size or not isinstance(value, tuple | list) or len(value) != self.size:
            return value
        columns = [isinstance(v, list | tuple) for v in value]
        pairs = all(columns) and all(len(v) == self.size for v in value) and members == self.size
        if not any(columns) or (isinstance(value, list) and pairs):
            return value
        if any(c and len(v) != members for c, v in zip(columns, value, strict=True)):
            if isinstance(value, tuple):
                accepted = f"{self.accepted}; in place of each number a list of {members}, one value per member"
                raise OptimError("not one value per member", where=name, got=value, accepted=accepted)
            return value
        spread = [list(v) if c else [v] * members for c, v in zip(columns, value, strict=True)]
        return [tuple(row) for row in zip(*spread, strict=True)]

    def rows(self, name: str, value: Any, members: int) -> list[Any]:
        """One value per member.

        Raises:
            OptimError: a list of another length, or a value that is not accepted.
        """
        listed = isinstance(value, PerMember)
        value = plain(value)
        value = value if listed else self._transposed(name, value, members)
        if listed or self.per_member(value):
            return [self.one(f"{name}, member {i}", v) for i, v in enumerate(_of_members(name, value, members))]
        if not self.size and isinstance(value, tuple):
            raise refused_tuple("not a number" if self.convert is not str else "not known", name, value, self.accepted)
        return [self.one(name, value)] * members

    def one(self, where: str, value: Any) -> Any:
        """The value of one member.

        Raises:
            OptimError: it is not accepted.
        """
        if self.size:
            if not isinstance(value, tuple | list) or len(value) != self.size:
                raise OptimError(
                    "not a pair" if self.size == 2 else f"not {self.size} numbers",
                    where=where,
                    got=value,
                    accepted=self.accepted,
                    remedy=f"for one value per member give a list of tuples, or a tuple of {self.size} lists",
                )
            return tuple(self._number(f"{where}, value {k}", v, value) for k, v in enumerate(value))
        return self._number(where, value, value)

    def _number(self, where: str, value: Any, whole: Any) -> Any:
        if any(value is w or (isinstance(w, str) and value == w) for w in self.words):
            return value
        value = border.plain(value)
        if isinstance(value, bool | int | float) and self.convert is not str:
            try:
                if self.test(value):
                    return self.convert(value)
            except OverflowError:  # beyond a float, or infinity for a whole number
                pass
            raise OptimError("out of bounds", where=where, got=whole, accepted=self.accepted)
        what = "not a number" if self.convert is not str else "not known"
        raise OptimError(what, where=where, got=whole, accepted=self.accepted)


@dataclass(frozen=True)
class AnyKind(Kind):
    """A hyperparameter of which nothing is known but how many numbers make one value: the class says what is wrong."""

    def rows(self, name: str, value: Any, members: int) -> list[Any]:
        if not self.size and isinstance(value, tuple):
            return [plain(value)] * members
        return super().rows(name, value, members)

    def one(self, where: str, value: Any) -> Any:
        return tuple(value) if self.size and isinstance(value, list) else value


def at_least(low: float) -> Kind:
    return Kind(f"at least {low:g}", lambda v: v >= low)


def above(low: float) -> Kind:
    return Kind(f"above {low:g}", lambda v: v > low)


def pair(accepted: str, test: Callable[[Any], bool] = lambda v: True, words: tuple[Any, ...] = ()) -> Kind:
    return Kind(accepted, test, size=2, words=words)


NUMBER = Kind("a number")
FLAG = Kind("True or False", convert=bool)
COUNT = Kind("a whole number, at least 0", lambda v: 0 <= v < border.MOST and v == int(v), convert=int)
DECAY = Kind("a finite number, at least 0", lambda v: 0 <= v < math.inf)
LR = Kind("a finite number, at least 0", lambda v: v >= 0)  # a schedule may have made it infinite: see `check_lr`
BETAS = pair("a pair of numbers, each at least 0 and below 1", lambda v: 0 <= v < 1)
OF_ADAM: Mapping[str, Kind] = {"lr": LR, "betas": BETAS, "eps": at_least(0.0), "weight_decay": DECAY}
"""What Adam and its kin have in common."""


def rows_of(name: str, value: Any, members: int, takes_list: bool) -> list[Any]:
    """One value per member of a setting of which nothing is known.

    Args:
        name: of the setting.
        value: one value, or an array-like with one per member.
        members: how many.
        takes_list: whether torch takes a list: one without further lists in it is one value.

    Raises:
        OptimError: an array-like of another length.
    """
    value = in_full(value)
    listed = isinstance(value, PerMember)
    value = plain(value)
    if not isinstance(value, list):
        return [value] * members
    if takes_list and not listed and not any(isinstance(v, list | tuple) for v in value):
        return [value] * members
    return list(_of_members(name, value, members))


def _of_members(name: str, value: Any, members: int) -> Any:
    """A list, as long as there are members.

    Raises:
        OptimError: it is longer or shorter.
    """
    if len(value) != members:
        accepted = f"one value, or a list of {members}"
        raise OptimError("not one value per member", where=name, got=value, accepted=accepted)
    return value


def check_lr(group: Mapping[str, Any], where: str) -> None:
    """See that the learning rates that a person gives are finite.

    One that a schedule has made infinite is the member's own affair, which diverges alone, as in torch.

    Raises:
        OptimError: one is not.
    """
    value = plain(group.get("lr"))
    for i, lr in enumerate(value if isinstance(value, list) else [value]):
        if lr == math.inf:
            what = f"lr, member {i}" if isinstance(value, list) else "lr"
            raise OptimError("out of bounds", where=f"{where}{what}", got=lr, accepted=LR.accepted)


def refused_tuple(what: str, where: str, got: Any, accepted: str) -> OptimError:
    """The error for a tuple where one number, or one per member, is wanted."""
    remedy = "for one value per member give a list, an array, or hfta_nb.per_member(...)"
    return OptimError(what, where=where, got=got, accepted=accepted, remedy=remedy)


def plain(value: Any) -> Any:
    """Numbers, tuples and lists in place of `per_member` marks, tensors, arrays and other array-likes."""
    if isinstance(value, Tensor) and value.layout != torch.strided:
        raise OptimError("a sparse tensor", where="values", got=value, accepted="numbers, or a dense tensor of numbers")
    if isinstance(value, Tensor) and value.is_meta:
        raise OptimError("a tensor without values", where="values", got=f"{list(value.shape)} on meta",
                         accepted="numbers, or a tensor of numbers")  # fmt: skip
    if isinstance(value, PerMember):
        value = value.value
        return [plain(v) for v in (value.tolist() if isinstance(value, Tensor) else value)]
    if isinstance(value, Tensor):
        return value.item() if value.numel() == 1 and value.ndim == 0 else value.tolist()
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, range | array.array):
        return list(value)
    if not isinstance(value, type) and hasattr(value, "__array__"):  # a Series of pandas, an array of jax
        return np.asarray(value).tolist()
    if isinstance(value, tuple | list):
        try:
            return type(value)(plain(v) for v in value) if type(value) in (tuple, list) else [plain(v) for v in value]
        except RecursionError:
            border.refuse_nested(OptimError, {"values": value})
            raise
    return border.plain(value)


_DTYPES: dict[Any, Any] = {float: np.float64, bool: np.bool_, int: np.int64}


_QUICK = (bool, int, float, tuple, list)
"""Types of values that are compared as they are."""


def _same(a: Any, b: Any) -> bool:
    try:
        return bool(a == b)
    except (ValueError, RuntimeError):  # arrays or tensors in a list
        return False


class Reader:
    """Reads the live values of a group of parameters, and what has not changed since the last time only once."""

    def __init__(self, kinds: Mapping[str, Kind], members: int, where: str) -> None:
        self.kinds, self.members, self.where = kinds, members, where
        self._seen: dict[str, tuple[Any, HostColumn]] = {}

    def read(self, group: Mapping[str, Any]) -> dict[str, HostColumn]:
        """By name ``[M]``; of pairs ``[M, 2]``.

        Raises:
            OptimError: a value is not accepted, or missing.
        """
        found = {}
        for name, kind in self.kinds.items():
            if name not in group:
                raise OptimError("no value for this hyperparameter", where=f"{self.where}, {name}")
            raw, seen = group[name], self._seen.get(name)
            kept = type(raw) if type(raw) in _QUICK else list if isinstance(raw, list) else None
            if seen is not None and kept is type(seen[0]) and _same(raw, seen[0]):
                found[name] = seen[1]
                continue
            value = plain(raw)
            if seen is None or type(seen[0]) is not type(value) or seen[0] != value:
                rows = kind.rows(f"{self.where}, {name}" if self.where else name, value, self.members)
                dtype: Any = object if kind.words and not kind.size else _DTYPES.get(kind.convert, object)
                seen = copy.deepcopy(value), np.array(rows, dtype=dtype)
                self._seen[name] = seen
            found[name] = seen[1]
        return found


def power(base: HostColumn, exponent: HostColumn | float) -> HostColumn:
    """``base ** exponent`` as Python computes it: numpy's vectorised power may differ in the last bit."""
    bases = base.tolist()
    exponents = exponent.tolist() if isinstance(exponent, np.ndarray) else [exponent] * len(bases)
    return np.array([b**e for b, e in zip(bases, exponents, strict=True)])


def uniform(values: HostColumn) -> bool:
    """Whether all members have the same."""
    if values.ndim > 1:
        return bool((values == values[0]).all())
    listed: list[Any] = values.tolist()  # some numbers: faster than numpy's comparison
    return listed.count(listed[0]) == len(listed)


class Columns:
    """The numbers of an update, as the passes over ``[M, P]`` want them; what has not changed is not copied again."""

    def __init__(self) -> None:
        self._kept: tuple[bytes, torch.dtype, torch.device, Tensor] | None = None

    def on(self, numbers: Mapping[str, HostColumn], like: Tensor) -> dict[str, Any]:
        """By name a number (or flag) where all members have the same, else ``[M, 1]`` in the dtype of `like`.

        Half precision gets float32 columns: rounding a learning rate to eight bits would change the run.
        """
        found: dict[str, Any] = {k: v[0].item() for k, v in numbers.items() if uniform(v)}
        most = torch.finfo(torch.promote_types(like.dtype, torch.float32)).max
        for name, value in found.items():
            if type(value) is float and not -most <= value <= most:  # infinite in the dtype; torch refuses the number
                found[name] = math.copysign(math.inf, value) if value == value else value
        varied = {k: v for k, v in numbers.items() if k not in found}
        if not varied:
            return found
        dtype = torch.float32 if like.dtype in (torch.float16, torch.bfloat16) else like.dtype
        stack = np.stack([np.asarray(v, dtype=np.float64) for v in varied.values()])
        key = stack.tobytes(), dtype, like.device
        if self._kept is None or self._kept[:3] != key:
            self._kept = (*key, torch.from_numpy(stack).to(dtype).to(like.device).unsqueeze(-1))
        for (name, value), column in zip(varied.items(), self._kept[3], strict=True):
            found[name] = column.bool() if value.dtype == np.bool_ else column
        return found
