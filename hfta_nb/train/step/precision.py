"""In what precision a step computes, in the ways that torch has for it: TF32 products, or autocast.

Parameters, gradients, optimizer state and metrics stay float32 in all of them.

Source: "Automatic Mixed Precision package" and "TensorFloat-32 on Ampere (and later) devices" of torch's documentation.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hfta_nb import optim
from hfta_nb.engine.array import FusedArray
from hfta_nb.engine.array.access import streams_apart
from hfta_nb.errors import DeviceError, StudyError

PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
"""fp32: as the study's dtype says, never TF32; tf32: float32 whose products keep 10 bits of the factors; bf16 and fp16:
autocast, fp16 with a loss scale."""

_HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}
_AMPERE = (8, 0)  # the first compute capability with TF32


@dataclass(frozen=True)
class Precision:
    """A precision on a device. Contexts are entered and left within a step: torch's settings never leak to a caller.

    Attributes:
        name: one of `PRECISIONS`.
    """

    name: str = "fp32"
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def scales(self) -> bool:
        """Whether losses are scaled, so that small gradients survive."""
        return self.name == "fp16"

    def autocast(self) -> AbstractContextManager[Any]:
        """Around forward and loss; the backward pass does not belong in it."""
        half = _HALF.get(self.name)
        return nullcontext() if half is None else torch.autocast(self.device.type, half)

    def products(self) -> AbstractContextManager[Any]:
        """Around forward, loss and backward: float32 products and convolutions as the precision says.

        On a GPU "fp32" has to be said as well: there cuDNN's convolutions are TF32 by default.
        """
        if self.name == "tf32":
            return _Float32("tf32", "cuda", "mkldnn")
        return _Float32("ieee", "cuda") if self.name == "fp32" and self.device.type == "cuda" else nullcontext()

    def array_scaler(self, array: FusedArray) -> optim.GradScaler | None:
        """A scale per member, where losses are scaled."""
        return optim.GradScaler(array) if self.scales else None

    def plain_scaler(self) -> torch.amp.GradScaler | None:
        """torch's own, where losses are scaled."""
        return torch.amp.GradScaler(self.device.type) if self.scales else None

    def check_modules(self, modules: Iterable[nn.Module]) -> None:
        """See whether the device has what these modules need in this precision.

        Raises:
            DeviceError: bfloat16 or float16 LSTMs on a CPU without them; torch fails there with a plain module too.
        """
        half = _HALF.get(self.name)
        if half is not None and self.device.type == "cpu" and not has_lstm(half):
            named = (pair for module in modules for pair in module.named_modules())
            name = next((name for name, m in named if isinstance(m, nn.LSTM)), None)
            if name is not None:
                other = "bf16" if self.scales and has_lstm(torch.bfloat16) else "fp32"
                raise DeviceError(
                    f"this CPU has no {str(half).removeprefix('torch.')} LSTM",
                    where=f"precision, {name or 'the module'}", got=self.name, remedy=f"use precision='{other}'",
                )  # fmt: skip


def check(name: Any, device: torch.device, dtype: torch.dtype) -> str:
    """The precision that was asked for.

    Raises:
        StudyError: there is none of this name, or it is not one of this dtype.
        DeviceError: the device has no such arithmetic.
    """
    if not (isinstance(name, str) and name in PRECISIONS):
        raise StudyError("unknown precision", where="precision", got=name, accepted=", ".join(PRECISIONS))
    if name != "fp32" and dtype != torch.float32:
        raise StudyError(
            f"{name} is a precision of float32 models",
            where="precision", got=f"{name} with {str(dtype).removeprefix('torch.')}", accepted="fp32",
            remedy="use dtype='float32', or leave precision out",
        )  # fmt: skip
    reason = _unsupported_reason(name, device)
    if reason:
        raise DeviceError(reason, where="precision", got=f"{name} on {device}", remedy="use fp32 or bf16")
    return str(name)


def _unsupported_reason(name: str, device: torch.device) -> str:
    """What the device lacks for a precision; empty where it has it. bf16 and fp16 any CPU computes, if slowly."""
    if device.type == "cuda":
        if name == "tf32" and torch.cuda.get_device_capability(device) < _AMPERE:
            return "this GPU has no TF32, which begins with compute capability 8.0"
        if name == "bf16" and not torch.cuda.is_bf16_supported():
            return "this GPU has no bfloat16"
    elif name == "tf32" and not getattr(torch.cpu, "_is_amx_fp16_supported", bool)():
        return "this CPU has no TF32, which needs AMX with FP16"
    return ""


@functools.cache
def has_lstm(half: torch.dtype) -> bool:
    """Whether this CPU has an LSTM under autocast to a dtype: a plain module is tried, once."""
    try:
        with torch.autocast("cpu", half), streams_apart(torch.device("cpu")):
            nn.LSTM(8, 8)(torch.zeros(2, 1, 8))
    except RuntimeError:
        return False
    return True


class _Setting(NamedTuple):
    """A setting of torch for float32, which it keeps twice, by an older name and by newer ones.

    It refuses to read the older one where the newer differ. So both are set, the newer last, which know more values.

    Attributes:
        places: the newer names, backend and operator.
        get, put: read and set the older one.
        values: of the older one, by value of the newer.
    """

    places: tuple[tuple[str, str], ...]
    get: Callable[[], Any]
    put: Callable[[Any], Any]
    values: Mapping[str, Any]


_SETTINGS = (
    _Setting(
        (("cuda", "matmul"), ("mkldnn", "matmul")),
        torch._C._get_float32_matmul_precision,
        torch._C._set_float32_matmul_precision,
        {"tf32": "high", "ieee": "highest"},
    ),
    _Setting(
        (("cuda", "conv"), ("cuda", "rnn"), ("mkldnn", "conv")),
        torch._C._get_cudnn_allow_tf32,
        torch._C._set_cudnn_allow_tf32,
        {"tf32": True, "ieee": False},
    ),
)
_get, _put = torch._C._get_fp32_precision_getter, torch._C._set_fp32_precision_setter


class _Float32:
    """Within, products and convolutions of float32 are TF32, or float32 throughout; afterwards all is what it was.

    Entered several times a step: so it calls what torch's properties call, and sets only what differs.

    Args:
        value: "tf32" or "ieee".
        backends: whose settings: "cuda", "mkldnn".
    """

    __slots__ = ("_backends", "_before", "_value")

    def __init__(self, value: str, *backends: str) -> None:
        self._value, self._backends = value, backends
        self._before: list[tuple[_Setting, Any, list[str]]] = []

    def __enter__(self) -> None:
        value, same = self._value, ("ieee", "none") if self._value == "ieee" else ("tf32",)
        for setting in _SETTINGS:
            newer = [_get(*place) for place in setting.places]
            own = zip(setting.places, newer, strict=True)
            if all(now in same for (backend, _), now in own if backend in self._backends):
                continue
            older = None
            with contextlib.suppress(RuntimeError):  # somebody has set the newer one only: the older can't be read
                older = setting.get()
            self._before.append((setting, older, newer))
            setting.put(setting.values[value])
            for place, now in zip(setting.places, newer, strict=True):
                _put(*place, value if place[0] in self._backends else now)

    def __exit__(self, *_: object) -> None:
        while self._before:
            setting, older, newer = self._before.pop()
            if older is not None:
                setting.put(older)
            for place, now in zip(setting.places, newer, strict=True):
                _put(*place, now)


def whole(value: Tensor) -> Tensor:
    """A score in float32, where it was computed in half of that."""
    return value.float() if value.dtype in _HALF.values() else value
