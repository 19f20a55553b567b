"""Compares two outcomes of a call: a member's in the array, and its plain module's."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hfta_nb.engine.comparison import Difference, Values, compare
from hfta_nb.engine.eager.member_outcome import MemberOutcome
from hfta_nb.engine.rules.rule_mode import Disagreement

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3, torch.float16: 5e-2, torch.bfloat16: 5e-2}
"""By dtype, relative to the largest value."""


class Mismatch(Disagreement):
    """A member's result differs from that of its plain module.

    Attributes:
        path: of the submodule where the difference begins; None if it is not known.
    """

    def __init__(self, message: str, path: str | None) -> None:
        super().__init__(message)
        self.path = path


def tolerance(expected: Tensor) -> float:
    """The relative tolerance; under autocast, float32 results may come from 16-bit values."""
    half = torch._C._is_any_autocast_enabled()
    return TOLERANCE[torch.bfloat16] if half else TOLERANCE.get(expected.dtype, TOLERANCE[torch.float32])


def differences(
    together: MemberOutcome,
    alone: MemberOutcome,
    must_have: Callable[[str], bool],
    nudged: Callable[[int], Values] | None = None,
) -> list[Difference]:
    """The differences by more than rounding. Values that are not finite alone are skipped.

    Args:
        together: the outcome in the array.
        alone: the outcome of the plain module.
        must_have: True for a key that the array's outcome must have if the plain module's has it.
        nudged: computes the outcome of the plain module after last bits have changed, which may make such a difference;
            see `PlainRun.nudged_outcome`.
    """
    wanted = {k: v for k, v in alone.items() if k in together or must_have(k)}
    half = torch._C._is_any_autocast_enabled()
    return compare(together, wanted, tolerance, again=nudged, half=half, diverging=True)


def mismatch(member: int, found: Difference, path: str | None) -> Mismatch:
    """The error for a member whose outcomes differ.

    Args:
        member: its number.
        found: the first difference.
        path: of the submodule where they begin to differ; None if it is not known.
    """
    place = f" from `{path}` on" if path else ""
    far = f" ({found.words})" if found.words else ""
    return Mismatch(f"member {member} comes to another {found.name} than alone{place}{far}", path)
