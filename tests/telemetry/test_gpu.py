"""An NVIDIA GPU through a stand-in for NVML that records every call."""

from __future__ import annotations

import gc
import sys
import types

import pynvml
import pytest
import torch

from hfta_nb.records import telemetry
from hfta_nb.records.telemetry import gpm, gpu
from tests.telemetry.nvml import FakeNvml

GPM = {"sm_active": 0.92, "sm_occupancy": 0.41, "tensor_active": 0.18, "dram_active": 0.33}
REST = {"memory_bytes": 3.0 * 2**30, "memory_total_bytes": 139.0 * 2**30, "power_w": 410.5}


class Clock:
    """Time that passes only when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch):
    found = Clock()
    monkeypatch.setattr(gpm, "time", found)
    return found


@pytest.fixture
def nvml(monkeypatch, clock):
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    place = {"uuid": "aaaa", "pci_domain_id": 0, "pci_bus_id": 0x3B, "pci_device_id": 0}
    named = {"name": "NVIDIA H200", "total_memory": 139 * 2**30 + 5}
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)  # whatever GPU this machine has
    monkeypatch.setattr(gpu, "_properties", lambda index: types.SimpleNamespace(**place, **named))
    return fake


def test_metrics_come_from_two_successive_samples_and_every_buffer_is_freed(nvml, clock):
    busy = telemetry.sampler("cuda:0")
    assert nvml.calls == [
        ("Init",),
        ("DeviceGetHandleByUUID", "GPU-aaaa"),
        ("DeviceIsMigDeviceHandle", "gpu"),
        ("GpmQueryDeviceSupport", "gpu"),
        ("GpmSampleAlloc",),
        ("GpmSampleAlloc",),
        ("GpmSampleGet", "gpu", 1),
    ]
    nvml.calls.clear()
    clock.now += 0.5
    first = busy.sample()
    assert first.device == "cuda:0"
    assert first.values == pytest.approx(GPM | REST)
    assert nvml.calls == [
        ("GpmSampleGet", "gpu", 2),
        ("GpmMetricsGet", 1, 1, 2),
        ("DeviceGetMemoryInfo", "gpu"),
        ("DeviceGetPowerUsage", "gpu"),
    ]
    nvml.calls.clear()
    clock.now += 0.5
    busy.sample()
    assert nvml.calls[:2] == [("GpmSampleGet", "gpu", 1), ("GpmMetricsGet", 1, 2, 1)]
    nvml.calls.clear()
    busy.close()
    assert sorted(nvml.calls[:-1]) == [("GpmSampleFree", 1), ("GpmSampleFree", 2)]
    assert nvml.calls[-1] == ("Shutdown",)
    busy.close()
    assert (nvml.live, nvml.open) == ([], 0)


def test_a_sampler_that_is_dropped_leaves_nothing_behind(nvml, clock):
    busy = telemetry.sampler("cuda:0")
    clock.now += 1
    busy.sample()
    del busy
    gc.collect()
    assert (nvml.live, nvml.open) == ([], 0)


def test_samples_too_close_to_each_other_have_no_activity(nvml, clock):
    with telemetry.sampler("cuda:0") as busy:
        clock.now += 0.05
        assert busy.sample().values == REST
        clock.now += 0.06
        assert busy.sample().values == pytest.approx(GPM | REST)


def test_a_metric_that_the_gpu_lacks_is_left_out(nvml, clock):
    del nvml.metrics[pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL]
    nvml.metrics[pynvml.NVML_GPM_METRIC_SM_UTIL] = 100.7
    with telemetry.sampler("cuda:0") as busy:
        clock.now += 1
        values = busy.sample().values
    assert "dram_active" not in values
    assert values["sm_active"] == 1.0
    assert values["tensor_active"] == pytest.approx(0.18)


def test_without_gpm_the_utilization_rate_stands_in(nvml):
    nvml.gpm_supported = False
    with telemetry.sampler("cuda:0") as busy:
        sample = busy.sample()
        assert sample.values == {"gpu_utilization": 0.73, **REST}
        assert sample.note == "no GPM: this GPU has none"
    assert nvml.open == 0


@pytest.mark.parametrize("function", ["nvmlGpmSampleGet", "nvmlGpmMetricsGet"])
def test_gpm_that_stops_working_gives_way_to_the_utilization_rate(nvml, clock, function):
    with telemetry.sampler("cuda:0") as busy:
        nvml.broken[function] = pynvml.NVML_ERROR_NO_PERMISSION
        for _ in range(gpm.MOST_FAILURES):
            clock.now += 1
            assert len(nvml.live) == 2
            assert busy.sample().values == {"gpu_utilization": 0.73, **REST}
        assert nvml.live == []
        sample = busy.sample()
        assert sample.values == {"gpu_utilization": 0.73, **REST}
        assert sample.note == "no GPM: Insufficient Permissions"
    assert nvml.open == 0


@pytest.mark.parametrize("function", ["nvmlGpmSampleGet", "nvmlGpmMetricsGet"])
def test_a_sample_that_fails_does_not_end_gpm(nvml, clock, function):
    with telemetry.sampler("cuda:0") as busy:
        for _ in range(gpm.MOST_FAILURES + 1):  # each followed by one that works
            nvml.broken[function] = pynvml.NVML_ERROR_TIMEOUT
            clock.now += 1
            failed = busy.sample()
            assert failed.values == {"gpu_utilization": 0.73, **REST}
            assert failed.note == "no GPM: Timeout"
            del nvml.broken[function]
            clock.now += 1
            found = busy.sample()
            assert found.values == pytest.approx(GPM | REST)
            assert found.note == ""


def test_gpm_that_is_not_permitted_at_first_leaves_no_buffers(nvml):
    nvml.broken["nvmlGpmSampleGet"] = pynvml.NVML_ERROR_NO_PERMISSION
    with telemetry.sampler("cuda:0") as busy:
        assert nvml.live == []
        sample = busy.sample()
        assert sample.values["gpu_utilization"] == 0.73
        assert sample.note == "no GPM: Insufficient Permissions"


@pytest.mark.parametrize(
    ("function", "lost"),
    [("nvmlDeviceGetPowerUsage", {"power_w"}), ("nvmlDeviceGetMemoryInfo", {"memory_bytes", "memory_total_bytes"})],
)
def test_a_counter_that_fails_costs_the_others_nothing(nvml, clock, function, lost):
    nvml.broken[function] = pynvml.NVML_ERROR_NOT_SUPPORTED
    with telemetry.sampler("cuda:0") as busy:
        clock.now += 1
        assert set(busy.sample().values) == (set(GPM) | set(REST)) - lost


def test_a_gpu_that_has_gone_gives_empty_samples(nvml, clock):
    with telemetry.sampler("cuda:0") as busy:
        for name in dir(FakeNvml):
            if name.startswith("nvml") and name not in ("nvmlShutdown", "nvmlGpmSampleFree"):
                nvml.broken[name] = pynvml.NVML_ERROR_GPU_IS_LOST
        clock.now += 1
        assert busy.sample().values == {}


def test_a_gpu_is_found_by_its_pci_address_where_its_uuid_is_not_known(nvml):
    nvml.uuids.clear()
    with telemetry.sampler("cuda:0") as busy:
        assert ("DeviceGetHandleByPciBusId", "00000000:3b:00.0") in nvml.calls
        assert busy.sample().values == REST


def test_of_a_mig_slice_gpm_is_asked_by_its_instance_and_power_of_the_gpu_around_it(nvml, clock):
    nvml.uuids = {"MIG-aaaa": "slice"}
    nvml.slices = {"slice": 7}
    with telemetry.sampler("cuda:0") as busy:
        clock.now += 1
        values = busy.sample().values
    assert values == pytest.approx(GPM | REST)
    samples = [call for call in nvml.calls if call[0].endswith("SampleGet")]
    assert samples == [("GpmMigSampleGet", "gpu", 7, 1), ("GpmMigSampleGet", "gpu", 7, 2)]
    assert ("DeviceGetMemoryInfo", "slice") in nvml.calls
    assert ("DeviceGetPowerUsage", "gpu") in nvml.calls


def test_without_a_driver_samples_are_empty_and_nothing_is_raised(nvml):
    nvml.broken["nvmlInit"] = pynvml.NVML_ERROR_LIBRARY_NOT_FOUND
    with telemetry.sampler("cuda:0") as busy:
        assert busy.sample().values == {}
        assert busy.note == "no NVML: NVML Shared Library Not Found"
    assert ("Shutdown",) not in nvml.calls


def test_a_gpu_that_nvml_does_not_know_leaves_nvml_closed(nvml):
    nvml.uuids.clear()
    nvml.addresses.clear()
    with telemetry.sampler("cuda:0") as busy:
        assert busy.sample().values == {}
    assert nvml.open == 0


def test_the_name_of_a_gpu_says_its_memory(nvml):
    assert telemetry.device_name("cuda:0") == "NVIDIA H200, 139 GiB"


def test_the_functions_and_constants_used_are_those_of_pynvml():
    used = [name for name in dir(FakeNvml) if name.startswith(("nvml", "NVML", "c_nvml"))]
    assert "nvmlInit" in used
    assert [name for name in used if not hasattr(pynvml, name)] == []


@pytest.mark.skipif("not __import__('torch').cuda.is_available()", reason="no GPU")
def test_a_real_gpu_gives_memory_and_activity():
    import time

    with telemetry.sampler("cuda:0") as busy:
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            values = busy.sample().values
            if {"sm_active", "gpu_utilization"} & set(values):
                break
    assert {"sm_active", "gpu_utilization"} & set(values)
    assert 0 < values["memory_bytes"] < values["memory_total_bytes"]
    assert all(0 <= v <= 1 for k, v in values.items() if k.endswith("active"))
