"""A stand-in for pynvml that records every call and uses pynvml's own structures and errors."""

from __future__ import annotations

import ctypes
import types
from typing import Any

import pynvml


class FakeNvml(types.ModuleType):
    """pynvml as `hfta_nb.records.telemetry` uses it, for one GPU that may be cut into MIG slices.

    Attributes:
        calls: every call in order: the function's name without "nvml", then its arguments.
        open: how many `nvmlInit` were not undone.
        live: sample buffers allocated and not freed.
        metrics: by metric number, percent; those absent are not supported.
        broken: names of functions that raise, by NVML error.
        uuids: what handle each UUID has.
    """

    NVMLError = pynvml.NVMLError
    NVML_SUCCESS = pynvml.NVML_SUCCESS
    NVML_GPM_METRICS_GET_VERSION = pynvml.NVML_GPM_METRICS_GET_VERSION
    NVML_GPM_METRIC_SM_UTIL = pynvml.NVML_GPM_METRIC_SM_UTIL
    NVML_GPM_METRIC_SM_OCCUPANCY = pynvml.NVML_GPM_METRIC_SM_OCCUPANCY
    NVML_GPM_METRIC_ANY_TENSOR_UTIL = pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL
    NVML_GPM_METRIC_DRAM_BW_UTIL = pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL
    c_nvmlGpmMetricsGet_t = pynvml.c_nvmlGpmMetricsGet_t  # noqa: N815 - pynvml's name

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.calls: list[tuple[Any, ...]] = []
        self.open = 0
        self.live: list[Any] = []
        self.gpm_supported = True
        self.metrics = {2: 92.0, 3: 41.0, 5: 18.0, 10: 33.0}
        self.broken: dict[str, int] = {}
        self.uuids: dict[str, str] = {"GPU-aaaa": "gpu"}
        self.addresses: dict[str, str] = {"00000000:3b:00.0": "gpu"}
        self.slices: dict[str, int] = {}
        self._made = 0

    def _note(self, name: str, *given: Any) -> None:
        self.calls.append((name.removeprefix("nvml"), *given))
        if name in self.broken:
            raise pynvml.NVMLError(self.broken[name])

    def nvmlInit(self) -> None:
        self._note("nvmlInit")
        self.open += 1

    def nvmlShutdown(self) -> None:
        self._note("nvmlShutdown")
        self.open -= 1

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        self._note("nvmlDeviceGetHandleByUUID", uuid)
        return self._known(self.uuids, uuid)

    def nvmlDeviceGetHandleByPciBusId(self, address: str) -> str:
        self._note("nvmlDeviceGetHandleByPciBusId", address)
        return self._known(self.addresses, address)

    def nvmlDeviceIsMigDeviceHandle(self, handle: str) -> Any:
        self._note("nvmlDeviceIsMigDeviceHandle", handle)
        return types.SimpleNamespace(value=int(handle in self.slices))

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle: str) -> str:
        self._note("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle)
        return "gpu"

    def nvmlDeviceGetGpuInstanceId(self, handle: str) -> int:
        self._note("nvmlDeviceGetGpuInstanceId", handle)
        return self.slices[handle]

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:
        self._note("nvmlDeviceGetUtilizationRates", handle)
        return types.SimpleNamespace(gpu=73, memory=12)

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:
        self._note("nvmlDeviceGetMemoryInfo", handle)
        return types.SimpleNamespace(used=3 * 2**30, total=139 * 2**30, free=136 * 2**30)

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:
        self._note("nvmlDeviceGetPowerUsage", handle)
        return 410_500

    def nvmlGpmQueryDeviceSupport(self, handle: str) -> Any:
        self._note("nvmlGpmQueryDeviceSupport", handle)
        return types.SimpleNamespace(isSupportedDevice=int(self.gpm_supported))

    def nvmlGpmSampleAlloc(self) -> Any:
        self._note("nvmlGpmSampleAlloc")
        self._made += 1
        buffer = _pointer(self._made)
        self.live.append(_address(buffer))
        return buffer

    def nvmlGpmSampleFree(self, buffer: Any) -> None:
        self._note("nvmlGpmSampleFree", _address(buffer))
        self.live.remove(_address(buffer))

    def nvmlGpmSampleGet(self, handle: str, buffer: Any) -> Any:
        self._note("nvmlGpmSampleGet", handle, _address(buffer))
        return buffer

    def nvmlGpmMigSampleGet(self, handle: str, instance: int, buffer: Any) -> Any:
        self._note("nvmlGpmMigSampleGet", handle, instance, _address(buffer))
        return buffer

    def nvmlGpmMetricsGet(self, asked: Any) -> Any:
        self._note("nvmlGpmMetricsGet", asked.version, _address(asked.sample1), _address(asked.sample2))
        for answer in asked.metrics[: asked.numMetrics]:
            known = answer.metricId in self.metrics
            answer.nvmlReturn = pynvml.NVML_SUCCESS if known else pynvml.NVML_ERROR_NOT_SUPPORTED
            answer.value = self.metrics.get(answer.metricId, float("nan"))
        return asked

    @staticmethod
    def _known(table: dict[str, str], key: str) -> str:
        if key not in table:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return table[key]


def _pointer(number: int) -> Any:
    """A sample buffer as NVML gives it: an opaque pointer."""
    return ctypes.cast(ctypes.c_void_p(number), pynvml.c_nvmlGpmSample_t)


def _address(buffer: Any) -> int:
    return int(ctypes.cast(buffer, ctypes.c_void_p).value or 0)
