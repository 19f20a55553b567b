"""NVML's GPU performance monitoring (GPM), which Hopper and later GPUs have.

A sample is a copy of the GPU's counters, and a metric is computed from two samples. The newer sample of one call is the
older sample of the next, so that metrics cover all the time between calls and two buffers suffice.

Source: NVML API reference, "GPM functions", https://docs.nvidia.com/deploy/nvml-api/group__nvmlGpmFunctions.html
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

from hfta_nb.records.telemetry.sampler import fraction

METRICS = {
    "sm_active": "NVML_GPM_METRIC_SM_UTIL",
    "sm_occupancy": "NVML_GPM_METRIC_SM_OCCUPANCY",
    "tensor_active": "NVML_GPM_METRIC_ANY_TENSOR_UTIL",
    "dram_active": "NVML_GPM_METRIC_DRAM_BW_UTIL",
}
"""Names of values, with pynvml's constants of their metrics."""

SHORTEST_S = 0.1
"""The GPU updates its counters about this often; closer samples do not differ."""


MOST_FAILURES = 3
"""After this many failed samples in a row, GPM is considered broken."""


class Gpm:
    """GPM of one GPU. Not thread-safe, as GPM's samples are not.

    Args:
        lib: pynvml.
        gpu: handle of the GPU (not of a MIG slice).
        instance: GPU instance of a MIG slice; None for the whole GPU.

    Attributes:
        trouble: error of the latest sample; empty if it succeeded.
        failures: samples in a row that have failed.

    Raises:
        pynvml.NVMLError: the GPU does not give samples.
    """

    def __init__(self, lib: Any, gpu: Any, instance: int | None) -> None:
        self._lib, self._gpu, self._instance = lib, gpu, instance
        self.trouble, self.failures = "", 0
        self._buffers: list[Any] = []
        self._request = self._make_request()
        try:
            self._buffers += [lib.nvmlGpmSampleAlloc()]
            self._buffers += [lib.nvmlGpmSampleAlloc()]
            self._fill(self._buffers[0])
        except BaseException:
            self.free()
            raise
        self._filled_s = time.monotonic()

    def values(self) -> dict[str, float] | None:
        """The metrics since the last call, as fractions; those that the GPU lacks are left out.

        Returns:
            Empty if the last call is too recent; None on failure (see `trouble`). The next successful sample covers all
            the time since the last successful one.
        """
        if time.monotonic() - self._filled_s < SHORTEST_S:
            return {}
        older, newer = self._buffers
        try:
            self._fill(newer)
            self._request.sample1, self._request.sample2 = older, newer
            self._lib.nvmlGpmMetricsGet(self._request)
        except self._lib.NVMLError as error:
            self._failed(str(error))
            return None
        self._buffers, self._filled_s = [newer, older], time.monotonic()
        answers = zip(METRICS, self._request.metrics, strict=False)  # the array has room for every metric
        found = {name: fraction(a.value, 100.0) for name, a in answers if a.nvmlReturn == self._lib.NVML_SUCCESS}
        if not found:
            self._failed("none of the metrics is given")
            return None
        self.trouble, self.failures = "", 0
        return found

    def _failed(self, trouble: str) -> None:
        self.trouble, self.failures = trouble, self.failures + 1

    def free(self) -> None:
        """Release the buffers; may be called again."""
        while self._buffers:
            with contextlib.suppress(Exception):
                self._lib.nvmlGpmSampleFree(self._buffers.pop())

    def _fill(self, buffer: Any) -> None:
        if self._instance is None:
            self._lib.nvmlGpmSampleGet(self._gpu, buffer)
        else:
            self._lib.nvmlGpmMigSampleGet(self._gpu, self._instance, buffer)

    def _make_request(self) -> Any:
        request = self._lib.c_nvmlGpmMetricsGet_t()
        request.version = self._lib.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(METRICS)
        for answer, constant in zip(request.metrics, METRICS.values(), strict=False):
            answer.metricId = getattr(self._lib, constant)
        return request
