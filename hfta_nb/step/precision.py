"""In what precision a step computes, in the ways that torch has for it: TF32 products, or autocast.

Parameters, gradients, optimizer state and metrics stay float32 in all of them.

Source: "Automatic Mixed Precision package" and "TensorFloat-32 on Ampere (and later) devices" of torch's documentation.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from hfta_nb import optim
from hfta_nb.array import FusedArray
from hfta_nb.errors import DeviceError, StudyError

PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
"""fp32: as the study's dtype says; tf32: float32 whose products keep 10 bits of the factors; bf16 and fp16: autocast,
fp16 with a loss scale."""

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
        """Around forward, loss and backward: float32 products and convolutions as the precision says."""
        return _tf32() if self.name == "tf32" else nullcontext()

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
    if name not in PRECISIONS:
        raise StudyError("unknown precision", where="precision", got=name, accepted=", ".join(PRECISIONS))
    if name != "fp32" and dtype != torch.float32:
        raise StudyError(
            f"{name} is a precision of float32 models",
            where="precision", got=f"{name} with {str(dtype).removeprefix('torch.')}", accepted="fp32",
            remedy="use dtype='float32', or leave precision out",
        )  # fmt: skip
    lacking = _lacking(name, device)
    if lacking:
        raise DeviceError(lacking, where="precision", got=f"{name} on {device}", remedy="use fp32 or bf16")
    return str(name)


def _lacking(name: str, device: torch.device) -> str:
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
        with torch.autocast("cpu", half), torch.random.fork_rng(devices=[]):
            nn.LSTM(8, 8)(torch.zeros(2, 1, 8))
    except RuntimeError:
        return False
    return True


@contextlib.contextmanager
def _tf32() -> Iterator[None]:
    """Within, products and convolutions of float32 are TF32; afterwards all settings are what they were.

    Torch keeps each setting twice, by an older and a newer name, and refuses to read the one where the other differs.
    So both are set, and the newer ones last, which know more values.
    """
    backends: Any = torch.backends
    places = (
        *(backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn),
        *(backends.mkldnn.matmul, backends.mkldnn.conv),
    )
    before = [place.fp32_precision for place in places]
    matmul = torch.get_float32_matmul_precision()
    cudnn = None
    with contextlib.suppress(RuntimeError):  # somebody has set the newer one only: the older one can't be read
        cudnn = backends.cudnn.allow_tf32
    try:
        torch.set_float32_matmul_precision("high")
        backends.cudnn.allow_tf32 = True
        for place in places:
            place.fp32_precision = "tf32"
        yield
    finally:
        torch.set_float32_matmul_precision(matmul)
        if cudnn is not None:
            backends.cudnn.allow_tf32 = cudnn
        for place, value in zip(places, before, strict=True):
            place.fp32_precision = value


def whole(value: Tensor) -> Tensor:
    """A score in float32, where it was computed in half of that."""
    return value.float() if value.dtype in _HALF.values() else value
