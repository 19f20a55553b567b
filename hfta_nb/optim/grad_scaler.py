"""Loss scaling with one scale, and one check for overflow, per member."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from hfta_nb.engine.array import FusedArray, not_compiled
from hfta_nb.errors import OptimError
from hfta_nb.errors.border import STATE, takes
from hfta_nb.optim.array_gradients import column, per_row, pieces, rows_of
from hfta_nb.optim.hyperparameters import FLAG, Kind, above, plain
from hfta_nb.optim.lbfgs import LBFGS
from hfta_nb.optim.optimizer_base import ArrayOptimizer

_KINDS: dict[str, Kind] = {
    "growth_factor": above(1.0),
    "backoff_factor": Kind("below 1", lambda v: v < 1),
    "growth_interval": Kind("a whole number above 0", lambda v: v > 0 and v == int(v)),
}


class GradScaler:
    """Scales losses so that small gradients survive half precision; a member that overflows skips its step only.

    Args:
        array: the array.
        init_scale: the scale at first; one value, or one per member, as are all others.
        growth_factor: of the scale, after `growth_interval` steps without overflow; above 1.
        backoff_factor: of the scale, after an overflow; below 1.
        growth_interval: steps.
        enabled: False: neither scales nor checks.

    Raises:
        OptimError: a value is out of bounds, or a list has not one value per member.

    Example:
        >>> from hfta_nb import fuse, optim
        >>> array = fuse([torch.nn.Linear(4, 2) for _ in range(3)])
        >>> optimizer, scaler = optim.SGD(array, lr=0.1), GradScaler(array, init_scale=[2.0, 4.0, 8.0])
        >>> x, y = torch.ones(5, 4), torch.zeros(5, 2)
        >>> losses = array.backward(torch.nn.functional.mse_loss, x, y, scale=scaler.scales)
        >>> scaler.step(optimizer)
        >>> scaler.update()
        >>> scaler.get_scale()
        [2.0, 4.0, 8.0]

    Source: `torch.amp.GradScaler`, member for member.
    """

    def __init__(
        self,
        array: FusedArray,
        init_scale: Any = 65536.0,
        growth_factor: Any = 2.0,
        backoff_factor: Any = 0.5,
        growth_interval: Any = 2000,
        enabled: Any = True,
    ) -> None:
        if not isinstance(array, FusedArray):
            raise OptimError("not a FusedArray", where="GradScaler", got=array, accepted="what hfta_nb.fuse gives")
        self.array = array
        members = len(array)
        given = {"growth_factor": growth_factor, "backoff_factor": backoff_factor, "growth_interval": growth_interval}
        self._set = {k: torch.tensor(column(k, v, members, _KINDS[k])) for k, v in given.items()}
        self._enabled: list[bool] = FLAG.rows("enabled", enabled, members)
        self._on = torch.tensor(self._enabled)
        first = torch.tensor(column("init_scale", init_scale, members, above(0.0)), dtype=torch.float32)
        self._first = torch.where(self._on, first, 1.0)
        self._scale = self._first.clone()
        self._streak = torch.zeros(members, dtype=torch.int32)
        self._found: dict[int, Tensor] = {}
        self._stepped: set[int] = set()
        array.followers.add(self)

    @property
    def scales(self) -> Float[Tensor, " M"]:
        """The scales, for ``array.backward(..., scale=scaler.scales)``."""
        self._follow_device()
        return self._scale

    def _follow_device(self) -> None:
        """Move to the device of the array."""
        device = self.array.arenas[0].data.device if self.array.arenas else self._scale.device
        if self._scale.device != device:
            for name in ("_scale", "_streak", "_on", "_first"):
                setattr(self, name, getattr(self, name).to(device))
            self._set = {k: v.to(device) for k, v in self._set.items()}

    @not_compiled
    @takes(OptimError)
    def scale(self, outputs: Any) -> Any:
        """Losses ``[M]``, or any tensors ``[M, *any]`` in lists or tuples, times the scales."""
        if isinstance(outputs, Tensor):
            if outputs.ndim == 0 or len(outputs) != len(self.array):
                raise OptimError(
                    "not one loss per member", where="GradScaler.scale", got=outputs, accepted=f"[{len(self.array)}]"
                )
            return outputs * per_row(self.scales.to(outputs.device), outputs)
        if isinstance(outputs, list | tuple):
            return type(outputs)(self.scale(v) for v in outputs)
        raise OptimError("not a tensor", where="GradScaler.scale", got=outputs, accepted="tensors [M, ...]")

    @torch.no_grad()
    @not_compiled
    def unscale_(self, optimizer: ArrayOptimizer) -> None:
        """Divide the gradients of the optimizer's parameters by the scales, and note who has overflowed.

        Raises:
            OptimError: that has been done since the last `update`, or the gradients are in float16.
        """
        where = "GradScaler.unscale_"
        self._check(optimizer, where)
        if id(optimizer) in self._found:
            raise OptimError("called twice since the last update()", where=where, got=optimizer)
        inverse = self.scales.double().reciprocal().float()
        found = torch.zeros(len(self.array), dtype=torch.bool, device=self._scale.device)
        names = {p: n for n, p in self.array.named_parameters()}
        held = {names[p]: p for group in optimizer.param_groups for p in group["params"]}
        parts = list(pieces(self.array, held))
        if any(p.dtype == torch.float16 for p in parts):
            raise OptimError("gradients in float16 can't be unscaled", where=where, remedy="keep parameters in float32")
        for piece in parts:
            if piece.numel():
                found |= ~rows_of(piece).abs().amax(1).isfinite()  # much faster than all entries' `isfinite`
            piece.mul_(per_row(inverse, piece))
        self._found[id(optimizer)] = found & self._on

    @not_compiled
    def step(self, optimizer: ArrayOptimizer, *args: Any, **kwargs: Any) -> Any:
        """``optimizer.step()``, except for the members that have overflowed.

        Raises:
            OptimError: called twice since the last `update`, or with a closure.
        """
        where = "GradScaler.step"
        self._check(optimizer, where)
        if args or "closure" in kwargs or isinstance(optimizer, LBFGS):
            raise OptimError("can't be used with a closure", where=where)
        if id(optimizer) in self._stepped:
            raise OptimError("called twice since the last update()", where=where, got=optimizer)
        if not self._any():
            return optimizer.step(**kwargs)
        if id(optimizer) not in self._found:
            self.unscale_(optimizer)
        self._stepped.add(id(optimizer))
        return optimizer.step(skip=self._found[id(optimizer)], **kwargs)

    @not_compiled
    @takes(OptimError)
    def update(self, new_scale: Any = None) -> None:
        """Shrink the scales of members that have overflowed, and grow those of members that long have not.

        Args:
            new_scale: take this instead; one value, or one per member.

        Raises:
            OptimError: no optimizer has been unscaled or stepped since the last `update`.
        """
        if not self._any():
            return
        if new_scale is not None:
            values = column("new_scale", new_scale, len(self.array), above(0.0))
            given = torch.tensor(values, dtype=torch.float32).to(self.scales.device)
            self._scale.copy_(torch.where(self._on, given, 1.0))
        elif not self._found:
            raise OptimError("no step since the last update()", where="GradScaler.update")
        else:
            self._grow(torch.stack(list(self._found.values())).any(0))
        self._found.clear()
        self._stepped.clear()

    def _grow(self, found: Tensor) -> None:
        scale, streak = self.scales.double(), self._streak + 1
        full = streak == self._set["growth_interval"]
        grown = (scale * self._set["growth_factor"]).float()
        more = torch.where(full & grown.isfinite(), grown, self._scale)
        less = (scale * self._set["backoff_factor"]).float()
        # In place, so that a step that was captured finds them.
        self._scale.copy_(torch.where(self._on, torch.where(found, less, more), self._scale))
        self._streak.copy_(torch.where(found | full, 0, streak))

    def get_scale(self) -> list[float]:
        """The scale of each member."""
        return self._scale.tolist()

    def is_enabled(self) -> list[bool]:
        """Per member."""
        return list(self._enabled)

    def progress(self) -> tuple[dict[int, Tensor], set[int]]:
        """What has been done since the last `update`."""
        return dict(self._found), set(self._stepped)

    def set_progress(self, progress: tuple[dict[int, Tensor], set[int]]) -> None:
        """Go back to there: the step is made once more."""
        self._found, self._stepped = dict(progress[0]), set(progress[1])

    def tensors(self) -> list[Tensor]:
        """What a step changes, always in the same memory until members or states are put in."""
        return [self.scales, self._streak]

    # Saving and surgery.

    def state_dict(self) -> dict[str, Any]:
        """Scales and settings, lists with one value per member."""
        return {
            "scale": self._scale.tolist(),
            "growth_tracker": self._streak.tolist(),
            "init_scale": self._first.tolist(),
            "enabled": self._on.tolist(),
            **{k: v.tolist() for k, v in self._set.items()},
        }

    @takes(OptimError, state_dict=STATE)
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take what `state_dict` gave.

        Raises:
            OptimError: it is of another number of members, or of something else.
        """
        wanted = {"scale", "growth_tracker", "init_scale", "enabled", *self._set}
        if set(state_dict) != wanted:
            raise OptimError("not the state of a GradScaler", where="GradScaler", got=sorted(state_dict),
                             accepted=str(sorted(wanted)))  # fmt: skip
        if len(state_dict["scale"]) != len(self.array):
            raise OptimError("another number of members", where="GradScaler", got=len(state_dict["scale"]),
                             accepted=str(len(self.array)))  # fmt: skip
        saved = {k: plain(v) for k, v in state_dict.items()}
        self._scale = torch.tensor(saved["scale"], dtype=torch.float32)
        self._streak = torch.tensor(saved["growth_tracker"], dtype=torch.int32)
        self._first = torch.tensor(saved["init_scale"], dtype=torch.float32)
        self._enabled = list(saved["enabled"])
        self._on = torch.tensor(self._enabled)
        self._set = {k: torch.tensor(saved[k], dtype=torch.float64) for k in self._set}
        self._follow_device()

    def copy_member(self, src: int, dst: int) -> None:
        """Member `dst` takes scale and settings of member `src`."""
        for t in (self._scale, self._streak, self._first, self._on, *self._set.values()):
            t[dst] = t[src]
        self._enabled[dst] = self._enabled[src]

    def take_member(self, index: int, other: GradScaler, src: int) -> None:
        """Member `index` takes scale and settings of member `src` of another scaler."""
        mine = (self.scales, self._streak, self._first, self._on, *self._set.values())
        theirs = (other.scales, other._streak, other._first, other._on, *other._set.values())
        for one, value in zip(mine, theirs, strict=True):
            one[index] = value[src]
        self._enabled[index] = other._enabled[src]

    def reset_member(self, index: int) -> None:
        """The member's scale begins anew."""
        self._scale[index] = self._first[index]
        self._streak[index] = 0

    def select(self, indices: Sequence[int], array: FusedArray) -> GradScaler:
        """The scaler of ``array``, which is ``self.array.select(indices)``, with these members' scales."""
        return self._merged([(self, list(indices))], array)

    def join(self, other: GradScaler, array: FusedArray) -> GradScaler:
        """The scaler of ``array``, which is ``hfta_nb.join(self.array, other.array)``, with the scales of both."""
        return self._merged([(s, list(range(len(s.array)))) for s in (self, other)], array)

    @staticmethod
    def _merged(parts: Sequence[tuple[GradScaler, list[int]]], array: FusedArray) -> GradScaler:
        count = sum(len(rows) for _, rows in parts)
        if count != len(array):
            raise OptimError("another number of members", where="GradScaler", got=count, accepted=str(len(array)))
        states = [(s.state_dict(), rows) for s, rows in parts]
        made = GradScaler(array)
        made.load_state_dict({k: [s[k][i] for s, rows in states for i in rows] for k in states[0][0]})
        return made

    # Within.

    def _any(self) -> bool:
        return any(self._enabled)

    def _check(self, optimizer: Any, where: str) -> None:
        if not isinstance(optimizer, ArrayOptimizer) or optimizer.array is not self.array:
            raise OptimError("not an optimizer of this scaler's array", where=where, got=optimizer)
