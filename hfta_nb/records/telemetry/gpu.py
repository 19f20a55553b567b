"""An NVIDIA GPU through NVML: activity, memory and power.

Hopper and later GPUs have GPM (see `hfta_nb.records.telemetry.gpm`), which measures how much of the GPU is active.
Older ones only report the share of time in which any kernel ran, which small kernels can drive to 100%.

Source: NVML API reference, https://docs.nvidia.com/deploy/nvml-api/
"""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Callable
from typing import Any

from hfta_nb.records.telemetry.gpm import MOST_FAILURES, Gpm
from hfta_nb.records.telemetry.sampler import Sampler, fraction


class GpuSampler(Sampler):
    """Activity, memory and power of one GPU, or of a MIG slice of one.

    NVML numbers GPUs by their place on the PCI bus; torch's ``cuda:0`` is the first that ``CUDA_VISIBLE_DEVICES``
    leaves, in an order of its own. They are matched by UUID, else by PCI address, never by number.
    """

    def __init__(self, device: str = "cuda") -> None:
        super().__init__(device)
        self._index = _index(device)
        self._nvml: _Nvml | None = None
        self._trouble = ""
        try:
            self._nvml = _Nvml(_properties(self._index))
        except Exception as error:  # no driver, library or permission: use torch only
            self._trouble = f"no NVML: {_message(error)}"

    @property
    def note(self) -> str:
        return self._trouble if self._nvml is None else self._nvml.trouble

    def _counters(self) -> tuple[Callable[[], dict[str, float]], ...]:
        if self._nvml is None:
            return self._torch_memory, self._own_memory
        return self._nvml.activity, self._nvml.memory, self._nvml.power, self._own_memory

    def close(self) -> None:
        if self._nvml is not None:
            self._nvml.close()

    def _torch_memory(self) -> dict[str, float]:
        import torch

        if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            return {}
        free, total = torch.cuda.mem_get_info(self._index)
        return {"memory_bytes": float(total - free), "memory_total_bytes": float(total)}

    def _own_memory(self) -> dict[str, float]:
        # Memory of torch's allocator; NVML's list of processes is empty or wrong in a container.
        import torch

        if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            return {}
        return {"process_memory_bytes": float(torch.cuda.memory_reserved(self._index))}


class _Nvml:
    """NVML's handles of one GPU.

    A MIG slice has a handle of its own, which knows its memory; activity and power belong to the GPU around it:
    GPM is asked there for the slice by its GPU instance, utilization rates don't exist under MIG, and power is that of
    the whole GPU.

    Attributes:
        trouble: why GPM is not used; empty if it is.

    Raises:
        pynvml.NVMLError: there is no NVML, or it does not know the GPU.
    """

    def __init__(self, properties: Any) -> None:
        import pynvml

        self._lib: Any = pynvml
        self.trouble = ""
        self._lib.nvmlInit()
        try:
            self._handle = self._find(properties)
            self._gpu, instance = self._around()
            self._gpm = self._open_gpm(instance)
        except BaseException:
            self._lib.nvmlShutdown()
            raise
        # Runs once: in `close`, when the sampler is garbage-collected, or when the interpreter ends.
        self.close = weakref.finalize(self, _release, self._lib, self._gpm)

    def activity(self) -> dict[str, float]:
        if self._gpm is not None:
            found = self._gpm.values()
            self.trouble = self._gpm.trouble and f"no GPM: {self._gpm.trouble}"
            if found is not None:
                return found
            if self._gpm.failures >= MOST_FAILURES:
                self._gpm.free()
                self._gpm = None
        rates = self._lib.nvmlDeviceGetUtilizationRates(self._gpu)
        return {"gpu_utilization": fraction(rates.gpu, 100.0)}

    def memory(self) -> dict[str, float]:
        memory = self._lib.nvmlDeviceGetMemoryInfo(self._handle)
        return {"memory_bytes": float(memory.used), "memory_total_bytes": float(memory.total)}

    def power(self) -> dict[str, float]:
        return {"power_w": self._lib.nvmlDeviceGetPowerUsage(self._gpu) / 1000.0}

    def _find(self, properties: Any) -> Any:
        """The handle of torch's device.

        A UUID comes without its prefix; for a MIG slice it is the slice's.
        """
        uuid = str(getattr(properties, "uuid", "")).removeprefix("GPU-").removeprefix("MIG-")
        for prefix in ("GPU-", "MIG-") if uuid else ():
            with contextlib.suppress(self._lib.NVMLError):
                return self._lib.nvmlDeviceGetHandleByUUID(prefix + uuid)
        address = f"{properties.pci_domain_id:08x}:{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}.0"
        return self._lib.nvmlDeviceGetHandleByPciBusId(address)

    def _around(self) -> tuple[Any, int | None]:
        """The GPU that the handle is, or is a slice of, and the slice's GPU instance."""
        with contextlib.suppress(self._lib.NVMLError):
            if self._lib.nvmlDeviceIsMigDeviceHandle(self._handle).value:
                gpu = self._lib.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self._handle)
                return gpu, self._lib.nvmlDeviceGetGpuInstanceId(self._handle)
        return self._handle, None

    def _open_gpm(self, instance: int | None) -> Gpm | None:
        try:
            if self._lib.nvmlGpmQueryDeviceSupport(self._gpu).isSupportedDevice:
                return Gpm(self._lib, self._gpu, instance)
            self.trouble = "no GPM: this GPU has none"
        except Exception as error:
            self.trouble = f"no GPM: {_message(error)}"
        return None


def gpu_name(device: str) -> str:
    """The GPU's name and memory."""
    properties = _properties(_index(device))
    return f"{properties.name}, {math.floor(properties.total_memory / 2**30)} GiB"


def _message(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _release(lib: Any, gpm: Gpm | None) -> None:
    if gpm is not None:
        gpm.free()
    with contextlib.suppress(Exception):
        lib.nvmlShutdown()


def _index(device: str) -> int:
    import torch

    index = torch.device(device).index
    return torch.cuda.current_device() if index is None else index


def _properties(index: int) -> Any:
    import torch

    return torch.cuda.get_device_properties(index)
