"""Hyperparameters with one value per member."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from hfta_nb.array import PerMember
from hfta_nb.errors import OptimError


class Values:
    """One number or boolean per member.

    Kept on the host in float64, whatever the parameters' dtype: through float32 a float64 run would be 1.5e-9 off.

    Attributes:
        per_member: M Python values.
    """

    __slots__ = ("_tensors", "per_member")

    def __init__(self, per_member: list[Any]) -> None:
        self.per_member = per_member
        self._tensors: dict[tuple[torch.dtype, torch.device], Tensor] = {}

    @classmethod
    def of(cls, name: str, value: Any, members: int) -> Values:
        """One value for all, a list of M, or `per_member` of M.

        Raises:
            OptimError: a list of another length, or something that is not a number or boolean.
        """
        if isinstance(value, PerMember):
            value = list(value.value)
        if isinstance(value, Tensor):
            value = value.tolist()
        given = list(value) if isinstance(value, list) else [value] * members
        if len(given) != members:
            raise OptimError(
                "not one value per member", where=name, got=given, accepted=f"one value, or a list of {members}"
            )
        checked = []
        for i, v in enumerate(given):
            v = v.item() if isinstance(v, Tensor) and v.ndim == 0 else v
            if not isinstance(v, bool | int | float):
                raise OptimError("not a number", where=f"{name}, member {i}", got=v)
            checked.append(v)
        return cls(checked)

    @property
    def uniform(self) -> bool:
        """Whether all members have the same value."""
        first = self.per_member[0]
        return all(v == first for v in self.per_member)

    def factor(self, like: Tensor) -> float | Float[Tensor, "M 1"]:
        """What to multiply ``[M, P]`` by: a number where uniform, else a tensor ``[M, 1]`` in its dtype."""
        return float(self.per_member[0]) if self.uniform else self.column(like)

    def column(self, like: Tensor) -> Float[Tensor, "M 1"]:
        """The values as ``[M, 1]`` in the dtype and on the device of `like`."""
        key = like.dtype, like.device
        if key not in self._tensors:
            self._tensors[key] = torch.tensor(self.per_member, dtype=like.dtype, device=like.device).unsqueeze(1)
        return self._tensors[key]

    def select(self, indices: list[int]) -> Values:
        return Values([self.per_member[i] for i in indices])

    def check(self, name: str, *, low: float = 0.0, below: float | None = None) -> Values:
        """The values, if all are within bounds.

        Raises:
            OptimError: with the member whose value is not.
        """
        for i, v in enumerate(self.per_member):
            if not low <= v or (below is not None and not v < below):
                accepted = f"at least {low:g}" + (f" and below {below:g}" if below is not None else "")
                raise OptimError("out of bounds", where=f"{name}, member {i}", got=v, accepted=accepted)
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Values) and self.per_member == other.per_member

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self.per_member[0] if self.uniform else self.per_member)
